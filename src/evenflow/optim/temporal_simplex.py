"""Descent along a random mixture of the gradients by single time steps, each scaled to length one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from evenflow.checks import number, one_of
from evenflow.maps import parameter_groups
from evenflow.models.sequence_model import SequenceModel
from evenflow.optim.processes import mean_over_processes
from evenflow.probes.temporal_components import Alignment, ModelCall, alignment, capture_call, inner, norm

DRAWS = ("exponential", "uniform")


def simplex_weights(steps: int, draw: str, generator: torch.Generator) -> Tensor:
    """Return T positive float64 numbers whose sum is one.

    Args:
        steps: T.
        draw: ``"exponential"``: ``x = exp(1 - u)`` over its sum, nearly equal weights, as in the code of the document.
            ``"uniform"``: uniform on the simplex.
        generator: source of the random numbers.

    >>> simplex_weights(3, "uniform", torch.Generator().manual_seed(0)).sum()
    tensor(1., dtype=torch.float64)
    """
    one_of("draw", draw, DRAWS)
    u = torch.rand(steps, generator=generator, dtype=torch.float64)
    x = torch.exp(1 - u) if draw == "exponential" else -torch.log1p(-u)
    return x / x.sum()


class TemporalSimplex(torch.optim.Optimizer):
    """Steps along ``d = |∇L| g / |g|`` with ``g = Σ_t β_t ∇L|_t / |∇L|_t|``, β drawn anew from the simplex each time.

    ∇L|_t is the gradient with respect to the copy of all parameters that step t uses; one backward pass gives all of
    them, see `probes.temporal_components`. Distant steps have the same influence as close ones. If d does not descend,
    or |∇L| exceeds ψ, the step is along ∇L. Its length is μ|d| if |d| <= threshold, else μ.

    Args:
        model: a `SequenceModel` with a trained layer of evenflow that has one state and runs one way; an LSTM, a
            bidirectional layer and torch's own layers raise a ValueError.
        lr: μ.
        threshold: c of equation 3.6.
        psi: ψ, or None for no limit; the document has 0.5 for adding.
        draw: distribution of the weights β, see `simplex_weights`.
        seed: of the weights; update k draws from (seed, k), so that a resumed run and every process draw the same.

    >>> optimizer = TemporalSimplex(model)
    >>> with optimizer.listen():
    ...     loss = task.loss(model(batch.inputs)[0], batch.targets)
    >>> optimizer.backward(loss)  # in place of loss.backward(): puts d where the gradient would be
    >>> optimizer.step()
    >>> bool(optimizer.alignment.cosine > 0)  # to the true gradient, for condition 3.33
    True

    With several processes each has its own batch: gradient and direction are averaged, and the norm of a component is
    the root mean square of its norms in the processes. Call the model itself, not its DDP wrapper.

    Note on norms: those of components are taken of the recurrent matrix, those of d and ∇L of the free numbers of a
    map.

    Reference: Galvan, 3.3 and 3.4.
    """

    def __init__(
        self,
        model: SequenceModel,
        lr: float = 1e-3,
        *,
        threshold: float = 1.0,
        psi: float | None = None,
        draw: str = "exponential",
        seed: int = 0,
    ) -> None:
        if not isinstance(model, SequenceModel):
            raise ValueError(f"TemporalSimplex needs a SequenceModel, got {type(model).__name__}")
        one_of("draw", draw, DRAWS)
        for name, value in (("lr", lr), ("threshold", threshold), ("psi", psi)):
            if value is not None:
                number(name, value, above=0)
        if any(group["stiefel"] for group in parameter_groups(model, 1.0)):
            raise ValueError("TemporalSimplex would move the bases of a factorized map off the orthogonal matrices")
        through_time = [model.layer] if model.embedding is None else [model.embedding, model.layer]
        if not any(p.requires_grad for part in through_time for p in part.parameters()):
            kind = type(model.layer).__name__
            raise ValueError(f"TemporalSimplex needs a layer or an embedding that is trained, got {kind} that is not")
        self.model, self.alignment = model, None
        self._call: ModelCall | None = None
        trained = [p for p in model.parameters() if p.requires_grad]
        defaults = {"lr": lr, "threshold": threshold, "psi": psi, "draw": draw, "seed": seed, "updates": 0}
        super().__init__(trained, defaults)

    alignment: Alignment | None

    def __getstate__(self) -> dict[str, Any]:
        # A copy has a copy of the model, and no recorded pass.
        return {**super().__getstate__(), "model": self.model, "alignment": self.alignment, "_call": None}

    @contextmanager
    def listen(self) -> Iterator[None]:
        """Record the pass of the model inside the block, which must call it once."""
        with capture_call(self.model) as self._call:
            yield

    def weights(self, steps: int) -> Tensor:
        """Return β of the next update for a number of steps."""
        group = self.param_groups[0]
        generator = torch.Generator().manual_seed(_mixed(group["seed"], group["updates"]))
        return simplex_weights(steps, group["draw"], generator)

    def backward(self, loss: Tensor, weights: Tensor | None = None) -> None:
        """Set the `grad` of all parameters to the direction d, in place of ``loss.backward()``.

        Args:
            loss: computed inside `listen`.
            weights: β, one for each step. Default: drawn at random.
        """
        if self._call is None:
            raise ValueError("backward needs a loss computed inside `with optimizer.listen():`")
        call, self._call = self._call, None
        group = self.param_groups[0]
        components = call.components(loss)
        norms = mean_over_processes(components.norms.square()).sqrt()
        beta = (self.weights(len(norms)) if weights is None else weights).to(norms)
        # Below the smallest normal number a component has lost its digits: it is left as short as it is.
        shortest = torch.finfo(components.gradient[0].dtype).tiny
        mixed = components.combine(beta / torch.where(norms < shortest, 1.0, norms))
        mixed, gradient = ([mean_over_processes(g) for g in each] for each in (mixed, components.gradient))
        true, length = norm(gradient), norm(mixed)
        scale = true / torch.where(length == 0, torch.ones_like(length), length)
        plain = inner(mixed, gradient) <= 0
        if group["psi"] is not None:
            plain = plain | (true > group["psi"])
        for p, g, m in zip(components.parameters, gradient, mixed, strict=True):
            p.grad = torch.where(plain, g, scale * m)
        self.alignment = alignment([p.grad for p in components.parameters if p.grad is not None], gradient)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        if closure is not None:
            raise ValueError("TemporalSimplex takes no closure: call backward(loss) and then step()")
        group = self.param_groups[0]
        moved = [p for p in group["params"] if p.grad is not None]
        if not moved:
            return None
        length = norm([p.grad for p in moved])
        size = group["lr"] / torch.where(length > group["threshold"], length, torch.ones_like(length))
        for p in moved:
            p.sub_(size * p.grad)
        group["updates"] += 1
        return None


def _mixed(seed: int, update: int) -> int:
    """Return a seed for one update; the odd factor separates the updates of adjacent seeds."""
    return (seed + update * 0x9E3779B97F4A7C15) % 2**63
