"""Adam along the matrices with orthonormal columns."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from evenflow.optim.geodesic import Carry, Geodesic, Step, keep, kept


class GeodesicAdam(Geodesic):
    """Adam with a tangent for its first moment and one number a matrix for its second.

    With T = A M the gradient's tangent at M, ``V ← β1 V + (1 - β1) T``, ``s ← β2 s + (1 - β2) mean(T²)``, and a Cayley
    step along ``V̂ / (√ŝ + ε)``, hats being the usual corrections for the start at zero. V is carried from step to step
    as in `GeodesicSGD`.

    A scale of its own for every entry would turn the tangent out of the tangents; one for each matrix does not. It is
    the root of the *mean* square, so that `lr` means what it means in Adam: the size of a typical entry's change.

    Shapes:
        as in `GeodesicSGD`.

    Args:
        params, lr: see `GeodesicSGD`.
        betas: β1 and β2.
        eps: ε.

    >>> optimizer = GeodesicAdam([nn.Parameter(init.orthogonal(8))], lr=1e-3)

    References: Bécigneul and Ganea 2019 (one number for each manifold); Li et al. 2020 (with Cayley's step).
    """

    def __init__(
        self, params: Any, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8
    ) -> None:
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"betas must be at least 0 and below 1, got {betas!r}")
        if not eps > 0:
            raise ValueError(f"eps must be above 0, got {eps!r}")
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps})

    def _numbers(self, states: list[dict[str, Any]], group: dict[str, Any], like: Tensor) -> tuple[Any, ...]:
        root, first = (_correction(beta, states, like) for beta in reversed(group["betas"]))
        root = root**0.5
        return group["lr"] / 2 * root / first, group["eps"] * root

    def _half_step(self, gradient: Tensor, carry: Carry, step: Step) -> Tensor:
        beta1, beta2 = step.group["betas"]
        # The same for a tangent T = M S and for S itself at a square M, which only turns it.
        norm = torch.linalg.vector_norm(gradient, dim=(-2, -1), keepdim=True)
        first = kept(step.states, "first", gradient, step.shape)
        second = kept(step.states, "second", norm, (*step.shape[:-2], 1, 1))
        carry(first, beta1).add_(gradient, alpha=1 - beta1)
        second.mul_(beta2).addcmul_(norm, norm, value=(1 - beta2) / step.shape[-2:].numel())
        keep(step.states, "first", first)
        keep(step.states, "second", second)
        rate, floor = step.numbers
        return first / second.sqrt().add_(floor).div_(rate)


def _correction(beta: float, states: list[dict[str, Any]], like: Tensor) -> Any:
    """``1 - βᵏ`` after k steps: a number where all parameters have made as many, else ``(B, 1, 1)`` of them."""
    found = [1 - beta ** state["step"] for state in states]
    if len(set(found)) == 1:
        return found[0]
    models = like.shape[:-2].numel()
    return torch.tensor(found, dtype=like.real.dtype, device=like.device).repeat_interleave(models).view(-1, 1, 1)
