"""How much a change of an early state changes a later one: the norms of ∂h_t/∂h_k."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from evenflow.checks import one_of
from evenflow.probes.jacobian_products import largest_singular_value, state_part, vjps
from evenflow.probes.layer_inputs import concatenate, run_for_inputs
from evenflow.probes.model_layer import Layer, find_layer
from evenflow.probes.plotted import Plotted, draw_profile
from evenflow.probes.unrolled import Unrolled, member_index, unroll

if TYPE_CHECKING:
    from matplotlib.axes import Axes

METHODS = ("auto", "exact", "estimate")
PARTS = ("output", "state")
EXACT_UP_TO = 256  # numbers in a state up to which "auto" is exact
PROBES = 32  # random vectors; the relative error of an estimated Frobenius norm is about 1/8 or less


@dataclass(frozen=True)
class JacobianNorms(Plotted):
    """Norms of ∂h_t/∂h_k for each sequence of a batch.

    Attributes:
        t: the later step.
        k: the earlier steps, ``(K,)``.
        frobenius, spectral: the norms, ``(K, B)``.
        exact: True if the norms were computed from the whole matrices, False if they are randomised estimates.

    >>> norms = jacobian_norms(layer, x)  # all k from 0 to 19, for each of 8 sequences
    >>> norms.t, norms.spectral.shape, norms.exact
    (19, (20, 8), True)
    """

    t: int
    k: NDArray[np.int64]
    frobenius: NDArray[np.float64]
    spectral: NDArray[np.float64]
    exact: bool

    def draw(self, axes: Axes) -> None:
        """Both norms against the lag, root mean squares over the batch."""
        for name, norms in (("Frobenius", self.frobenius), ("spectral", self.spectral)):
            rms = np.sqrt(np.square(norms).mean(1))
            draw_profile(axes, self.t - self.k, rms, name, "lag", "norm of ∂h_t/∂h_k")


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
    >>> jacobian(layer, torch.randn(100, 1, 2), t=99, k=0).frobenius.round(3)  # √64, as for every orthogonal matrix
    array([[8.]])
    """
    return jacobian_norms(layer, x, t, [k], of=of, member=member, method=method, generator=generator)


@torch.enable_grad()
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
        x as the module `layer` takes it; all sequences have the same length T.

    Args:
        layer: a layer of evenflow, or torch's RNN, GRU or LSTM; or any module that contains one. Such a module is run
            on x, and its layer is measured on the input it receives, from its own initial state.
        x: the input.
        t: the later step, counted from 0; the last one by default. Negative steps count from the end.
        k: the earlier steps, none after t. The default is 0..t, and for estimated norms t, t-1, t-2, t-4, t-8, ... 0.
        of: ``"output"``, h alone, with an LSTM's c_k held fixed; or ``"state"``, the whole state, (h, c).
        member: which layer and direction, counted as in the final states; the top layer's forward one by default. A
            reverse direction counts its own steps, from the end of the input.
        method: ``"exact"``, from the whole matrix; ``"estimate"``; or ``"auto"``, exact up to 256 numbers in the state.
        generator: draws the random vectors of an estimate; a generator with seed 0 by default.

    The exact method runs a copy of the batch for every row of the matrix; one backward pass gives that row for all k.
    The estimate uses ``‖J‖²_F = n E ‖Jᵀv‖²`` over 32 random orthonormal v (Hutchinson), and 16 steps of Golub-Kahan-
    Lanczos for the spectral norm, which it approaches from below. All is computed in float64; the module is unchanged.

    >>> norms = jacobian_norms(nn.LSTM(2, 64), torch.randn(100, 4, 2), of="state")
    >>> norms.spectral.shape
    (100, 4)

    References: Hutchinson 1990; Golub and Kahan 1965.
    """
    one_of("of", of, PARTS)
    one_of("method", method, METHODS)
    inner = find_layer(layer)
    members = unroll(inner, x if inner is layer else _layer_input(layer, inner, x))
    unrolled = members[member_index(inner, member, len(members))]
    steps = len(unrolled.inputs)
    last = _step("t", steps - 1 if t is None else t, steps, steps - 1)
    size = sum(s.shape[-1] for s in state_part(unrolled.states[0], of))
    exact = method == "exact" or (method == "auto" and size <= EXACT_UP_TO)
    if k is not None:
        ks = sorted({_step("k", int(value), steps, last) for value in k})
        if not ks:
            raise ValueError("k must name at least one step, got none")
    else:
        ks = list(range(last + 1)) if exact else sorted({last, *(last - 2**j for j in range(last.bit_length())), 0})
    if exact:
        frobenius, spectral = _exact(unrolled, last, ks, of, size)
    else:
        generator = generator or torch.Generator().manual_seed(0)
        frobenius = hutchinson(unrolled, last, ks, of, generator=generator)
        spectral = np.stack([largest_singular_value(unrolled, last, step, of, size, generator) for step in ks])
    return JacobianNorms(last, np.array(ks), frobenius, spectral, exact)


@torch.enable_grad()
def hutchinson(
    unrolled: Unrolled,
    t: int,
    ks: list[int],
    of: str = "output",
    probes: int = PROBES,
    generator: torch.Generator | None = None,
) -> NDArray[np.float64]:
    """The Frobenius norms for all k, estimated by one backward pass, ``(K, B)``."""
    generator = generator or torch.Generator().manual_seed(0)
    width = sum(s.shape[-1] for s in state_part(unrolled.states[0], of))
    # Orthonormal vectors need fewer draws than random signs; as many as the state has numbers give the exact norm.
    vectors = torch.linalg.qr(torch.randn(width, min(probes, width), generator=generator, dtype=torch.float64)).Q.mT
    squares = sum(rows.square().sum(-1).sum(1) for rows in vjps(unrolled, t, ks, of, vectors))
    return (squares * width / len(vectors)).sqrt().cpu().numpy()  # type: ignore[union-attr]


def _exact(
    unrolled: Unrolled, t: int, ks: list[int], of: str, size: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    rows = list(vjps(unrolled, t, ks, of, torch.eye(size, dtype=torch.float64)))
    J = torch.cat(rows, 1).movedim(2, 1)  # (K, B, rows, columns)
    finite = torch.isfinite(J).all(-1).all(-1)
    largest = torch.linalg.matrix_norm(J.nan_to_num(0, 0, 0), 2)
    frobenius = torch.linalg.matrix_norm(J)
    infinite = torch.full_like(largest, torch.inf)
    spectral = torch.where(finite, torch.minimum(largest, frobenius), infinite)
    return torch.where(finite, frobenius, infinite).cpu().numpy(), spectral.cpu().numpy()


def _layer_input(model: nn.Module, layer: Layer, x: Any) -> Tensor:
    """The input of the layer inside a model, with the dimensions in the layer's own order."""
    calls = run_for_inputs(model, layer, x)
    if any(packed is not None for _, packed in calls):
        raise ValueError("sequences of one length must reach the layer, got packed ones")
    whole = concatenate(layer, calls)
    return whole.transpose(0, 1) if layer.batch_first else whole


def _step(name: str, value: int, steps: int, last: int) -> int:
    step = value + steps if value < 0 else value
    if not 0 <= step <= last:
        raise ValueError(f"{name} must be a step from 0 to {last}, got {value}")
    return step
