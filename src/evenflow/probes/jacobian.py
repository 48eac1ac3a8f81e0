"""How much of a change of an early state is left in a later one: the norms of ∂h_t/∂h_k."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from evenflow.checks import one_of
from evenflow.probes.entering import entered, joined
from evenflow.probes.jacobian_products import largest_singular_value, part, pulled
from evenflow.probes.recurrence import Layer, Recurrence, find_layer, record

METHODS = ("auto", "exact", "estimate")
PARTS = ("output", "state")
EXACT_UP_TO = 256  # numbers in a state; above, "auto" estimates
PROBES = (
    32  # random vectors: the estimated Frobenius norm is off by about 1 part in 8, less where many directions share it
)

Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class JacobianNorms:
    """Norms of ∂h_t/∂h_k of each sequence of a batch.

    Attributes:
        t: the later step. k: the earlier ones, ``(K,)``.
        frobenius, spectral: ``(K, B)``.
        exact: whether they were computed from the whole matrices; if not, they are randomised estimates.
    """

    t: int
    k: np.ndarray[Any, np.dtype[np.int64]]
    frobenius: Array
    spectral: Array
    exact: bool


def jacobian(
    layer: nn.Module,
    x: Tensor,
    t: int,
    k: int,
    *,
    of: str = "output",
    member: int | None = None,
    method: str = "auto",
    generator: torch.Generator | None = None,
) -> JacobianNorms:
    """``‖∂h_t/∂h_k‖``, Frobenius and spectral, for one pair of steps; `jacobian_norms` with a single k.

    >>> layer = RNN(2, 64, map="exponential", activation="abs")
    >>> jacobian(layer, torch.randn(100, 1, 2), t=99, k=0).frobenius  # |x| and an orthogonal matrix: the root of 64
    array([[8.]])
    """
    return jacobian_norms(layer, x, t, [k], of=of, member=member, method=method, generator=generator)


def jacobian_norms(
    layer: nn.Module,
    x: Tensor,
    t: int | None = None,
    k: Iterable[int] | None = None,
    *,
    of: str = "output",
    member: int | None = None,
    method: str = "auto",
    generator: torch.Generator | None = None,
) -> JacobianNorms:
    """``‖∂h_t/∂h_k‖``, Frobenius and spectral, for many k at once.

    Shapes:
        x as the layer takes it, or the module around it, all sequences of one length T.

    Args:
        layer: of evenflow, or torch's RNN, GRU or LSTM; or any module that holds one, which is run on x, and its layer
            looked at on what enters it, from where the layer itself starts.
        t: the later step, counted from 0; the last one by default. Negative steps count from the end.
        k: the earlier steps, none after t. By default 0..t, and where norms are estimated t, t-1, t-2, t-4, t-8, ... 0.
        of: ``"output"``, h alone: an LSTM's c_k is held fixed; or ``"state"``, all that is carried on, (h, c).
        member: which layer and direction, counted as in the final states; the top layer's forward one by default. A
            reverse direction counts its own steps, from the end of the input.
        method: ``"exact"``, from the whole matrix; ``"estimate"``; or ``"auto"``, exact up to 256 numbers in the state.
        generator: for the random vectors of an estimate; one of its own, seeded with 0, by default.

    The exact way runs a copy of the batch for every row of the matrix, and one backward pass gives that row for all k.
    The estimate has ``‖J‖²_F = n E ‖Jᵀv‖²`` over 32 random orthonormal v (Hutchinson), and 16 steps of Golub, Kahan and
    Lanczos for the spectral norm, which is reached from below. All is computed in float64 and nothing is changed.

    >>> norms = jacobian_norms(nn.LSTM(2, 64), torch.randn(100, 4, 2), of="state")
    >>> norms.spectral.shape
    (100, 4)

    References: Hutchinson 1990; Golub and Kahan 1965.
    """
    one_of("of", of, PARTS)
    one_of("method", method, METHODS)
    found = find_layer(layer)
    recurrences = record(found, x if found is layer else _entering(layer, found, x))
    top = len(recurrences) - (2 if found.bidirectional else 1)
    index = top if member is None else member
    if not -len(recurrences) <= index < len(recurrences):
        raise ValueError(f"member must be below {len(recurrences)} for this layer, got {member}")
    path = recurrences[index]
    return norms_of(path, t, k, of=of, method=method, generator=generator)


@torch.enable_grad()
def norms_of(
    path: Recurrence,
    t: int | None = None,
    k: Iterable[int] | None = None,
    *,
    of: str = "output",
    method: str = "auto",
    generator: torch.Generator | None = None,
) -> JacobianNorms:
    """`jacobian_norms` of a recurrence that is laid open already."""
    steps = len(path.inputs)
    last = _step("t", steps - 1 if t is None else t, steps, steps - 1)
    size = sum(s.shape[-1] for s in part(path.states[0], of))
    exact = method == "exact" or (method == "auto" and size <= EXACT_UP_TO)
    if k is not None:
        ks = sorted({_step("k", int(value), steps, last) for value in k})
        if not ks:
            raise ValueError("k must name at least one step, got none")
    else:
        ks = list(range(last + 1)) if exact else sorted({last, *(last - 2**j for j in range(last.bit_length())), 0})
    if exact:
        frobenius, spectral = _exact(path, last, ks, of, size)
    else:
        generator = generator or torch.Generator().manual_seed(0)
        frobenius = hutchinson(path, last, ks, of, generator=generator)
        spectral = np.stack([largest_singular_value(path, last, step, of, size, generator) for step in ks])
    return JacobianNorms(last, np.array(ks), frobenius, spectral, exact)


@torch.enable_grad()
def hutchinson(
    path: Recurrence,
    t: int,
    ks: list[int],
    of: str = "output",
    probes: int = PROBES,
    generator: torch.Generator | None = None,
) -> Array:
    """The Frobenius norms alone, estimated for all k by one backward pass, ``(K, B)``."""
    generator = generator or torch.Generator().manual_seed(0)
    width = sum(s.shape[-1] for s in part(path.states[0], of))
    # Orthonormal ones: fewer than signs would do, and as many as the state has numbers leave no error at all.
    vectors = torch.linalg.qr(torch.randn(width, min(probes, width), generator=generator, dtype=torch.float64)).Q.mT
    squares = sum(rows.square().sum(-1).sum(1) for rows in pulled(path, t, ks, of, vectors))
    return (squares * width / len(vectors)).sqrt().cpu().numpy()  # type: ignore[union-attr]


def _exact(path: Recurrence, t: int, ks: list[int], of: str, size: int) -> tuple[Array, Array]:
    rows = list(pulled(path, t, ks, of, torch.eye(size, dtype=torch.float64)))
    J = torch.cat(rows, 1).movedim(2, 1)  # (K, B, rows, columns)
    finite = torch.isfinite(J).all(-1).all(-1)
    largest = torch.linalg.matrix_norm(J.nan_to_num(0, 0, 0), 2)
    frobenius = torch.linalg.matrix_norm(J)
    infinite = torch.full_like(largest, torch.inf)
    spectral = torch.where(finite, torch.minimum(largest, frobenius), infinite)
    return torch.where(finite, frobenius, infinite).cpu().numpy(), spectral.cpu().numpy()


def _entering(model: nn.Module, layer: Layer, x: Any) -> Tensor:
    """What enters a layer inside a model, in the layer's own form."""
    leaves = entered(model, layer, x)
    if any(packed is not None for _, packed in leaves):
        raise ValueError("sequences of one length must reach the layer, got packed ones")
    whole = joined(layer, leaves)
    return whole.transpose(0, 1) if layer.batch_first else whole


def _step(name: str, value: int, steps: int, last: int) -> int:
    found = value + steps if value < 0 else value
    if not 0 <= found <= last:
        raise ValueError(f"{name} must be a step from 0 to {last}, got {value}")
    return found
