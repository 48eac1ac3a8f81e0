"""The gradient as a sum over time: the share of each step's own copy of the parameters, from one backward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from evenflow.models.sequence_model import SequenceModel
from evenflow.probes.local_steps import Run, listen, need_plain_steps
from evenflow.probes.recurrence import need_sequences
from evenflow.probes.temporal_parts import Part, Readout, Steps, Symbols


@dataclass
class Alignment:
    """How a direction d stands to the gradient g: the condition 3.33 of Galvan, ``1 + α² - 2 α cos θ <= μ²``.

    Attributes:
        cosine: cos θ, of the angle between d and g.
        ratio: α = |d| / |g|.
    """

    cosine: Tensor
    ratio: Tensor

    @property
    def gap(self) -> Tensor:
        """``√(1 + α² - 2 α cos θ)``, which is |d - g| / |g|: the least μ the condition holds for.

        The proof wants a μ below 1, or smaller where the loss is badly conditioned.
        """
        return (1 + self.ratio**2 - 2 * self.ratio * self.cosine).clamp(min=0).sqrt()


def alignment(direction: Sequence[Tensor], gradient: Sequence[Tensor]) -> Alignment:
    """The angle and the ratio between two lists of tensors, each taken as one vector.

    >>> alignment([torch.tensor([2.0, 0.0])], [torch.tensor([1.0, 0.0])]).gap
    tensor(1.)
    """
    d, g = norm(direction), norm(gradient)
    return Alignment(inner(direction, gradient) / (d * g), d / g)


def inner(a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
    """The inner product of two lists of tensors, each taken as one vector."""
    return torch.stack([torch.sum(x * y.conj()).real for x, y in zip(a, b, strict=True)]).sum()


def norm(a: Sequence[Tensor]) -> Tensor:
    return torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(x) for x in a]))


class TemporalComponents:
    """∇L as Σ_t ∇L|_t, where ∇L|_t is by the copy of *all* parameters that step t uses (Galvan, 3.1).

    A layer's copy at step t is used there and nowhere else, so ∇L|_t follows from ∂L/∂h_t and one step by itself; for a
    plain layer that is ``∂L/∂a_t h_{t-1}ᵀ`` and the like. No T gradients are ever stored.

    Attributes:
        norms: ``(T)``, the norm of each component over all parameters that are trained, together; a recurrent matrix
            counts as itself, whatever its map.
        parameters, gradient: the trained parameters, and the true gradient by each.
        loss: the loss.
    """

    def __init__(self, parameters: list[nn.Parameter], gradient: list[Tensor], loss: Tensor, parts: list[Part]) -> None:
        self.parameters, self.gradient, self.loss, self._parts = parameters, gradient, loss, parts
        squares = [part.squares() for part in parts]
        steps = max(len(square) for square in squares)  # a readout may go on where every sequence has ended
        padded = [nn.functional.pad(square, (0, steps - len(square))) for square in squares]
        self.norms = torch.stack(padded).sum(0).sqrt()

    def combine(self, coefficients: Tensor) -> list[Tensor]:
        """``Σ_t c_t ∇L|_t`` by each of the parameters, for c ``(T)``; through a map once, as it is linear in ∇."""
        with torch.enable_grad():
            total = torch.stack([part.weighed(coefficients) for part in self._parts]).sum()
        found = torch.autograd.grad(total, self.parameters, allow_unused=True, retain_graph=True)
        return [torch.zeros_like(p) if g is None else g for p, g in zip(self.parameters, found, strict=True)]

    def component(self, t: int) -> list[Tensor]:
        """∇L|_t by each of the parameters."""
        one = torch.zeros_like(self.norms)
        one[t] = 1
        return self.combine(one)


def temporal_components(
    model: SequenceModel,
    inputs: Tensor,
    targets: Tensor,
    loss: Callable[[Tensor, Tensor], Tensor],
    lengths: Tensor | None = None,
) -> TemporalComponents:
    """The temporal components of the loss of `model` on one batch.

    Shapes:
        inputs ``(T, B, I)``, or ``(T, B)`` of whole numbers.

    Args:
        model: a `SequenceModel` over a layer of evenflow whose state is one vector (so no LSTM) and which runs one way.
        loss: of outputs and targets.

    >>> components = temporal_components(model, batch.inputs, batch.targets, task.loss)
    >>> components.norms  # they fall towards the first step where the gradient vanishes

    Reference: Galvan, 3.1 and figure 3.1.
    """
    need_sequences("inputs", inputs if inputs.dim() == 3 else inputs.unsqueeze(-1))
    with torch.enable_grad(), hearing(model) as heard:
        value = loss(model(inputs, lengths=lengths)[0], targets)
    return heard.components(value)


@contextmanager
def hearing(model: SequenceModel) -> Iterator[Heard]:
    """Note one call of `model` inside the block, for the components of a loss of its outputs."""
    if not isinstance(model, SequenceModel):
        raise ValueError(f"temporal components need a SequenceModel, got {type(model).__name__}")
    drops = {"output_dropout": model.drop_output, "score_dropout": model.drop_scores}
    if model.embedding is not None:
        drops["input_dropout"] = model.drop_input
    for name, drop in drops.items():
        if drop.training and drop.p:  # the share of readout or embedding would be that of another mask
            raise ValueError(f"temporal components need a model without {name}, or model.eval(), got {drop.p}")
    heard = Heard(model)
    hook = model.register_forward_hook(heard.note, with_kwargs=True)
    try:
        with listen(model, taps=True) as heard.runs:
            yield heard
    finally:
        hook.remove()


class Heard:
    """What one call of a `SequenceModel` did."""

    def __init__(self, model: SequenceModel) -> None:
        self.model = model
        self.runs: list[Run] = []
        self.calls: list[tuple[Tensor, Tensor, Tensor | None]] = []

    def note(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: tuple[Tensor, Any]) -> None:
        inputs = args[0] if args else kwargs["inputs"]
        lengths = args[2] if len(args) > 2 else kwargs.get("lengths")
        self.calls.append((inputs, result[0], lengths))

    def components(self, loss: Tensor) -> TemporalComponents:
        """The components of `loss`: one backward pass through time, and one through all steps side by side."""
        if len(self.calls) != 1:
            raise ValueError(f"temporal components need one call of the model, got {len(self.calls)}")
        need_plain_steps(self.runs, "temporal_components")
        inputs, outputs, lengths = self.calls[0]
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        if not parameters:
            raise ValueError("temporal components need a model with something to train, got one without")
        taps = [cast(Tensor, run.tap) for run in self.runs]
        wanted = [outputs, *taps, *parameters]
        found = torch.autograd.grad(loss, wanted, retain_graph=True, allow_unused=True)
        d_outputs, d_states, gradient = found[0], found[1 : 1 + len(taps)], found[1 + len(taps) :]
        zero = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, gradient, strict=True)]
        parts: list[Part] = [Steps(run, _filled(g, run.states)) for run, g in zip(self.runs, d_states, strict=True)]
        if self.model.embedding is not None and self.model.embedding.weight.requires_grad:
            parts.append(Symbols(cast(Steps, parts[0]), inputs))
        parts.append(Readout(self.model, self.runs[-1], _filled(d_outputs, outputs), lengths))
        return TemporalComponents(parameters, zero, loss.detach(), parts)


def _filled(gradient: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if gradient is None else gradient
