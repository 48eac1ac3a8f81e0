"""Descent on square orthogonal or unitary matrices by gradients of low rank (projUNN)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from evenflow.checks import one_of, whole_number
from evenflow.optim.geodesic import Geodesic, Step

FORMS = ("tangent", "direct")
ITERATIONS = 2  # products with the gradient and its transpose that turn its largest columns to its largest directions


class ProjUNN(Geodesic):
    """Descent along an approximation G_k of rank k of the gradient, in O(k n²) instead of O(n³) operations.

    - ``"tangent"`` (projUNN-T): ``M ← M exp(-η/2 (Mᴴ G_k - G_kᴴ M))``, along the projection of G_k on the tangents.
    - ``"direct"`` (projUNN-D): M becomes the orthogonal or unitary matrix nearest to ``M - η G_k``.

    Both change M in 2k directions alone, those of ``Mᴴ G_k`` and of its transpose, so that the exponential and the
    nearest matrix are computed for 2k x 2k numbers.

    Shapes:
        each parameter ``(..., n, n)``; leading dimensions are independent models.

    Args:
        params: orthogonal or unitary matrices, or groups of them, such as a free recurrent matrix, which starts
            orthogonal.
        lr: η.
        rank: k, at most n. Default: 1.
        form: ``"tangent"`` (default) or ``"direct"``.

    >>> M = nn.Parameter(init.orthogonal(8))
    >>> optimizer = ProjUNN([M], lr=0.1, rank=2)
    >>> (M - torch.eye(8)).square().sum().backward()
    >>> optimizer.step()
    >>> bool(residual(M) < 1e-6)
    True

    Note on the approximation: the paper draws columns or directions at random. Here subspace iteration from the k
    largest columns finds G_k, so that no random number is drawn; with k = n it is the gradient itself.

    Reference: Kiani, Balestriero, LeCun and Lloyd 2022.
    """

    captures = False  # QR and singular values of small matrices wait for the GPU

    def __init__(self, params: Any, lr: float, rank: int = 1, form: str = "tangent") -> None:
        whole_number("rank", rank, 1)
        one_of("form", form, FORMS)
        super().__init__(params, {"lr": lr, "rank": rank, "form": form})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        for p in group["params"]:
            if p.shape[-2] != p.shape[-1]:
                raise ValueError(f"ProjUNN moves square matrices, got a parameter of shape {tuple(p.shape)}")
            if group["rank"] > p.shape[-1]:
                raise ValueError(f"rank must be at most {p.shape[-1]}, the size of the matrix, got {group['rank']}")

    def _moved(self, M: Tensor, G: Tensor, step: Step) -> Tensor:
        lr, n = 2 * step.numbers[0], M.shape[-1]
        left = directions(G, step.group["rank"])
        a, S = M.mH @ left, left.mH @ G  # Mᴴ G_k = a S
        V = torch.linalg.qr(torch.cat([a, S.mH], -1)).Q if 2 * left.shape[-1] < n else None
        small = a @ S if V is None else (V.mH @ a) @ (S @ V)
        I = torch.eye(small.shape[-1], dtype=M.dtype, device=M.device)
        if step.group["form"] == "tangent":
            turn = torch.linalg.matrix_exp(-lr / 2 * (small - small.mH))
        else:
            P, _, Qh = torch.linalg.svd(I - lr * small)
            turn = P @ Qh
        return M @ turn if V is None else M + (M @ V) @ (turn - I) @ V.mH


def directions(G: Tensor, rank: int) -> Tensor:
    """Orthonormal columns ``(..., n, rank)`` near the left singular vectors of the largest singular values of G."""
    largest = torch.linalg.vector_norm(G, dim=-2).topk(rank, -1).indices
    Q = torch.linalg.qr(G.gather(-1, largest.unsqueeze(-2).expand(*G.shape[:-1], rank))).Q
    for _ in range(ITERATIONS):
        Q = torch.linalg.qr(G @ (G.mH @ Q)).Q
    return Q
