"""Bounds for scalar gates over an orthogonal matrix: the generalisation gap, and the size of the gradients."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from evenflow import activations
from evenflow.bounds.model_sizes import ModelSizes, model_sizes
from evenflow.cells import ScalarGated
from evenflow.checks import number, whole_number
from evenflow.maps import Rotations
from evenflow.models.sequence_model import SequenceModel
from evenflow.probes.model_layer import find_layer

ROUNDING = 1e-4  # α + β and ‖U‖ may exceed their limits by this float32 error


@dataclass(frozen=True)
class ScalarGateGradients:
    """Upper bounds on the gradient of a loss that is 1-Lipschitz in the outputs.

    Attributes:
        weight_ih: on each entry of ∂L/∂W, bias included: ``C α T √h / R_W`` (8).
        weight_hh: on ‖∂L/∂U‖, spectral and Frobenius: ``C (αT)²``, from the proof.
        raw: on each entry of ∂L/∂Θ, for the parameters Θ of the map: ``C M_φ h (αT)²`` (7); for rotations
            ``M_φ = 4 √h log2 h`` (9).
        raw_sharp: on the same entries for rotations, by our own argument: ``√2 C (αT)²``. None for other maps.

    >>> model = SequenceModel(create("sgornn", 2, 16), 1)
    >>> bounds = scalar_gate_gradients(model, batch.inputs)
    >>> task.loss(model(batch.inputs)[0], batch.targets).backward()
    >>> bool(model.layer.weight_ih_l0.grad.abs().max() <= bounds.weight_ih)
    True
    """

    weight_ih: float
    weight_hh: float
    raw: float | None
    raw_sharp: float | None


def scalar_gate_gradients(model: SequenceModel, inputs: Tensor) -> ScalarGateGradients:
    """Theorem 2 and Corollary 1 for a model with a scalar-gated layer and readout after the last step.

    Args:
        model: a `SequenceModel` with one scalar-gated layer and readout ``"last"``.
        inputs: a batch, for T and the largest ‖x_t‖.

    Note on the proof: it bounds the sum of all |∂L/∂U| by ``√h ‖·‖_F`` and that by ``√h √h ‖·‖₂``; the first factor
    must be h. But ∂L/∂U is a sum of outer products, whose Frobenius and spectral norms are equal, so the second factor
    is not needed and (7) holds as printed.

    Note on Corollary 1: an angle rotates one plane and occurs once in the product, so ∂φ/∂θ is an orthogonal matrix
    times the derivative of a plane rotation, with Frobenius norm √2. This gives `raw_sharp`, smaller than (9) by
    ``√8 h^{3/2} log2 h``.

    >>> limits = scalar_gate_gradients(SequenceModel(create("sgornn", 2, 128), 1), torch.randn(100, 8, 2))

    Reference: the SGORNN document, Theorem 2 and Corollary 1.
    """
    sizes, gates = _sizes_and_gates(model, inputs, "Theorem 2 of SGORNN")
    rotations = any(isinstance(module, Rotations) for module in find_layer(model).modules())
    return scalar_gate_gradients_from(
        **gates,
        steps=sizes.steps,
        units=sizes.units,
        R_x=sizes.x,
        R_W=float(sizes.W.norm()),
        R_v=float(torch.linalg.matrix_norm(sizes.V, 2)),
        map_slope=rotation_slope(sizes.units) if rotations else None,
        rotations=rotations,
    )


def scalar_gate_gradients_from(
    *,
    alpha: float,
    beta: float,
    steps: int,
    units: int,
    R_x: float,
    R_W: float,
    R_v: float,
    map_slope: float | None = None,
    rotations: bool = False,
) -> ScalarGateGradients:
    """`scalar_gate_gradients` from numbers.

    Args:
        alpha, beta: α and β.
        steps, units: T and h.
        R_x, R_W, R_v: the largest ‖x_t‖, ‖W‖_F, and the norm of the readout (spectral, with several outputs).
        map_slope: M_φ, the largest entry of ∂U/∂Θ_ij over all i, j.
        rotations: whether the map is a product of plane rotations, for `raw_sharp`.

    >>> found = scalar_gate_gradients_from(alpha=0.01, beta=0.98, steps=20, units=16, R_x=1.0, R_W=4.0, R_v=1.0)
    >>> round(found.weight_hh, 6)  # C (αT)²
    0.16
    """
    whole_number("steps", steps, 1)
    whole_number("units", units, 1)
    if alpha + beta > 1 + ROUNDING:
        raise ValueError(f"Theorem 2 of SGORNN needs beta at most 1 - alpha = {1 - alpha:g}, got {beta:g}")
    recurrent = R_x * R_W * R_v * (alpha * steps) ** 2
    return ScalarGateGradients(
        weight_ih=R_x * R_v * alpha * steps * math.sqrt(units),
        weight_hh=recurrent,
        raw=None if map_slope is None else recurrent * map_slope * units,
        raw_sharp=math.sqrt(2) * recurrent if rotations else None,
    )


def rotation_slope(units: int) -> float:
    """M_φ of the rotations, ``4 √h log2 h`` (Corollary 1). With our own argument it is 1.

    >>> rotation_slope(128)
    316.78...
    """
    return 4 * math.sqrt(units) * math.log2(units)


def scalar_gate_gap(
    model: SequenceModel, inputs: Tensor, samples: int, *, loss_bound: float = 1.0, delta: float = 0.05
) -> float:
    """Theorem 1: with probability 1 - δ the expected loss exceeds the training loss by at most this.

    ``4 C α T / √m + 3 B_L √(ln(2/δ) / 2m)``, ``C = R_x R_W R_v``.

    Args:
        model: a `SequenceModel` with one scalar-gated layer and readout ``"last"``.
        inputs: a batch, for T and the largest ‖x_t‖; the theorem requires that no input is larger.
        samples: m, the number of training sequences.
        loss_bound: B_L; the loss is 1-Lipschitz with values in [0, B_L].
        delta: δ.

    Note on the last term: the statement divides by m under the root, the proof by 2m. The proof is right, and tighter.
    Note on R_W, R_v: the theorem fixes them before training; here they are those of the trained model.

    >>> model = SequenceModel(create("sgornn", 2, 16), 1)
    >>> scalar_gate_gap(model, batch.inputs, samples=1000) > scalar_gate_gap(model, batch.inputs, samples=4000)
    True

    Reference: the SGORNN document, Theorem 1.
    """
    sizes, gates = _sizes_and_gates(model, inputs, "Theorem 1 of SGORNN")
    C = sizes.x * float(sizes.W.norm()) * float(torch.linalg.matrix_norm(sizes.V, 2))
    return scalar_gate_gap_from(**gates, steps=sizes.steps, C=C, samples=samples, loss_bound=loss_bound, delta=delta)


def scalar_gate_gap_from(
    *, alpha: float, beta: float, steps: int, C: float, samples: int, loss_bound: float = 1.0, delta: float = 0.05
) -> float:
    """`scalar_gate_gap` from numbers.

    >>> scalar_gate_gap_from(alpha=0.01, beta=0.98, steps=20, C=10.0, samples=1000)
    0.3818...
    """
    whole_number("steps", steps, 1)
    whole_number("samples", samples, 1)
    number("delta", delta, above=0, below=1)
    if beta > 1 - 2 * alpha + ROUNDING:
        raise ValueError(f"Theorem 1 of SGORNN needs beta at most 1 - 2 alpha = {1 - 2 * alpha:g}, got {beta:g}")
    chance = 3 * loss_bound * math.sqrt(math.log(2 / delta) / (2 * samples))
    return 4 * C * alpha * steps / math.sqrt(samples) + chance


def fastrnn_alpha_limit(
    *, steps: int, spectral_norm: float, frobenius_bound: float, activation: activations.ActivationChoice = "relu"
) -> float:
    """The largest α for which FastRNN's generalisation bound holds (4).

    ``α <= min(1 / (4 T |D ‖U‖₂ - 1|), 1 / (4 T R_U), 1 / (T |‖U‖₂ - 1|))``, infinite terms left out. It falls as 1/T,
    where SGORNN's condition β <= 1 - 2α does not depend on T or U.

    Args:
        steps: T.
        spectral_norm: ‖U‖₂.
        frobenius_bound: R_U, at least ‖U‖_F.
        activation: σ; D is its steepest slope.

    >>> fastrnn_alpha_limit(steps=500, spectral_norm=1.0, frobenius_bound=128**0.5)
    4.419417382415922e-05

    Note: the document calls the condition undefined for an orthogonal U, for which the first (where D = 1) and the last
    term divide by zero. As limits they are infinite and the second one remains.

    References: the SGORNN document, equation 4; Kusupati et al. 2018.
    """
    whole_number("steps", steps, 1)
    number("spectral_norm", spectral_norm, least=0)
    number("frobenius_bound", frobenius_bound, above=0)
    if frobenius_bound < spectral_norm * (1 - ROUNDING):
        raise ValueError(f"frobenius_bound must be at least spectral_norm = {spectral_norm:g}, got {frobenius_bound:g}")
    slope = activations.make(activation).slope_bounds[1]
    parts = (4 * abs(slope * spectral_norm - 1), 4 * frobenius_bound, abs(spectral_norm - 1))
    return 1 / (steps * max(parts))


def _sizes_and_gates(model: SequenceModel, inputs: Tensor, theorem: str) -> tuple[ModelSizes, dict[str, float]]:
    sizes = model_sizes(model, inputs, theorem, ScalarGated)
    assert isinstance(sizes.cell, ScalarGated)
    if model.readout != "last":
        raise ValueError(f"{theorem} needs readout 'last', got {model.readout!r}")
    largest = float(torch.linalg.matrix_norm(sizes.U, 2))
    if largest > 1 + ROUNDING:
        raise ValueError(f"{theorem} needs an orthogonal recurrent matrix, got one with singular value {largest:g}")
    alpha, beta = sizes.cell.scalars(sizes.weights)
    return sizes, {"alpha": float(alpha), "beta": float(beta)}
