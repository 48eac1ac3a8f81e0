"""Adam on the Stiefel manifold, the matrices with orthonormal columns."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from evenflow.checks import number
from evenflow.optim.geodesic import Carry, Geodesic, Step, stacked_state, store_state


class GeodesicAdam(Geodesic):
    """Adam whose first moment is a tangent and whose second moment is one number per matrix.

    With T = A M the gradient's tangent at M, ``V ← β1 V + (1 - β1) T``, ``s ← β2 s + (1 - β2) mean(T²)``, and a Cayley
    step along ``V̂ / (√ŝ + ε)``, with the usual bias corrections for V̂ and ŝ. V moves from step to step as in
    `GeodesicSGD`.

    With a scale for every entry the step would not be a tangent; a scale for each matrix keeps it one. The scale is the
    root of the *mean* square, so that `lr` means the same as in Adam: the size of a typical entry's change.

    Shapes:
        as in `GeodesicSGD`.

    Args:
        params: parameters with orthonormal columns, or groups of them.
        lr: learning rate.
        betas: β1 and β2.
        eps: ε.

    >>> optimizer = GeodesicAdam([nn.Parameter(init.orthogonal(8))], lr=1e-3)

    References: Bécigneul and Ganea 2019 (one number for each manifold); Li et al. 2020 (with Cayley's step).
    """

    def __init__(
        self, params: Any, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8
    ) -> None:
        for beta in betas:
            number("each of betas", beta, least=0, below=1)
        number("eps", eps, above=0)
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps})

    def _numbers(self, states: list[dict[str, Any]], group: dict[str, Any], like: Tensor) -> tuple[Any, ...]:
        root, first = (_correction(beta, states, like) for beta in reversed(group["betas"]))
        root = root**0.5
        return group["lr"] / 2 * root / first, group["eps"] * root

    def _half_step(self, gradient: Tensor, carry: Carry, step: Step) -> Tensor:
        beta1, beta2 = step.group["betas"]
        # T = M S and S have the same norm at a square M.
        norm = torch.linalg.vector_norm(gradient, dim=(-2, -1), keepdim=True)
        first = stacked_state(step.states, "first", gradient, step.shape)
        second = stacked_state(step.states, "second", norm, (*step.shape[:-2], 1, 1))
        carry(first, beta1).add_(gradient, alpha=1 - beta1)
        second.mul_(beta2).addcmul_(norm, norm, value=(1 - beta2) / step.shape[-2:].numel())
        store_state(step.states, "first", first)
        store_state(step.states, "second", second)
        lr, floor = step.numbers
        return first / second.sqrt().add_(floor).div_(lr)


def _correction(beta: float, states: list[dict[str, Any]], like: Tensor) -> Any:
    """Return ``1 - βᵏ`` after k steps: a number if k is the same for all parameters, else ``(B, 1, 1)``."""
    corrections = [1 - beta ** state["step"] for state in states]
    if len(set(corrections)) == 1:
        return corrections[0]
    models = like.shape[:-2].numel()
    return torch.tensor(corrections, dtype=like.real.dtype, device=like.device).repeat_interleave(models).view(-1, 1, 1)
