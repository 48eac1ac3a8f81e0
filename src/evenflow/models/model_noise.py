"""Random numbers of stacked models, each drawn from a generator of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten


class ModelNoise(TorchDispatchMode):
    """Inside the block, the random numbers of model m are drawn from generator m, as in a pass of that model alone.

    `torch.func.vmap` with ``randomness="different"`` draws for all models at once, with the models as the first
    dimension, and always from torch's global generator. Here these draws are made model by model. They are what
    `torch.nn.functional.dropout`, `torch.rand`, `torch.randn` and their like come down to; other draws stay as they
    are.

    Args:
        generators: one for each model.

    Attributes:
        drawn: how many draws were made.
    """

    def __init__(self, generators: Sequence[torch.Generator]) -> None:
        super().__init__()
        self.generators = list(generators)
        self.drawn = 0
        self._draws: dict[Any, Callable[..., Any]] = {
            aten.rand.default: self._new(torch.rand),
            aten.randn.default: self._new(torch.randn),
            aten.rand_like.default: self._like(Tensor.uniform_),
            aten.randn_like.default: self._like(Tensor.normal_),
            aten.bernoulli.default: lambda p: self._filled(torch.empty_like(p), Tensor.bernoulli_, p),
            aten.bernoulli.p: self._like(Tensor.bernoulli_),
            aten.bernoulli_.float: lambda out, p=0.5: self._filled(out, Tensor.bernoulli_, p),
            aten.uniform_.default: lambda out, *ends: self._filled(out, Tensor.uniform_, *ends),
            aten.normal_.default: lambda out, *moments: self._filled(out, Tensor.normal_, *moments),
            aten.native_dropout.default: self._dropout,
        }

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        options = dict(kwargs or {})
        draw = self._draws.get(func)
        if draw is None or options.get("generator") is not None or not self._stacked(args[0]):
            return func(*args, **options)
        self.drawn += 1
        options.pop("generator", None)
        return draw(*args, **options)

    def _stacked(self, shaped: Any) -> bool:
        shape = shaped.shape if isinstance(shaped, Tensor) else shaped
        return len(shape) > 0 and shape[0] == len(self.generators)

    def _filled(self, out: Tensor, fill: Callable[..., Tensor], *arguments: Any) -> Tensor:
        for m, generator in enumerate(self.generators):
            own = [value[m] if isinstance(value, Tensor) else value for value in arguments]
            fill(out[m], *own, generator=generator)
        return out

    def _like(self, fill: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def draw(like: Tensor, *arguments: Any, **options: Any) -> Tensor:
            return self._filled(torch.empty_like(like, **options), fill, *arguments)

        return draw

    def _new(self, make: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def draw(shape: Sequence[int], **options: Any) -> Tensor:
            return torch.stack([make(shape[1:], generator=generator, **options) for generator in self.generators])

        return draw

    def _dropout(self, x: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
        """Dropout of a GPU, which is one kernel for mask and product."""
        if train is False or p == 0:
            return x.clone(), torch.ones_like(x, dtype=torch.bool)
        kept = self._filled(torch.empty_like(x, dtype=torch.bool), Tensor.bernoulli_, 1 - p)
        return x * kept * (1 / (1 - p) if p < 1 else 0.0), kept
