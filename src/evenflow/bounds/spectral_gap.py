"""Bounds for singular values near one: the change of the output with the weights, and the generalisation gap."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from evenflow.bounds.band import power
from evenflow.bounds.model_sizes import model_sizes
from evenflow.cells import Elman
from evenflow.checks import number, whole_number
from evenflow.models.sequence_model import SequenceModel


@dataclass(frozen=True)
class SpectralGap:
    """Theorem 5's gap for a classifier, up to a factor that is the same for all models.

    Attributes:
        complexity: B(w).
        gap: ``√((B(w) + ln(tm/δ)) / m)``, without the constant of the O: for comparing models.
        corollary: the same with Corollary 1's simpler complexity, which depends on W only through the distance of its
            singular values from 1.

    >>> found = spectral_gap(SequenceModel(RNN(2, 16, activation="relu"), 1), batch.inputs, samples=1000)
    >>> found.corollary > 0
    True
    """

    complexity: float
    gap: float
    corollary: float


def spectral_gap(
    model: SequenceModel, inputs: Tensor, samples: int, *, margin: float = 1.0, delta: float = 0.05
) -> SpectralGap:
    """Theorem 5 and Corollary 1 for a model with a plain layer.

    ``B(w) = B² t² n ln n max(‖W‖^{2t-2}, 1) ‖M‖² ‖Y‖² (t² ‖W‖_F² + ‖M‖_F²/‖M‖² + ‖Y‖_F²/‖Y‖²) / γ²`` with the recurrent
    matrix W, the input matrix M and the readout Y; norms without a letter are spectral.

    Args:
        model: a `SequenceModel` with one plain layer.
        inputs: a batch, for t and for B, the largest ‖x_t‖.
        samples: m, the number of training sequences.
        margin: γ.
        delta: δ.

    Note on n: the document has square matrices; here n is the largest of input, hidden and output size.

    Note on the proof: it draws the perturbations of the three matrices with one variance, which would put t² before
    all three terms of the bracket. The bracket as printed needs one variance for each. Its assumption "without loss of
    generality ‖Y‖, ‖M‖ >= 1" does lose generality, as scaling one of them up scales the other down; with three
    variances the statement does not need it.

    >>> model = SequenceModel(RNN(2, 16, map="svd", margin=0.01, activation="relu"), 1)
    >>> spectral_gap(model, batch.inputs, samples=1000).gap > 0
    True

    Reference: Zhang, Lei and Dhillon, Theorem 5 and Corollary 1.
    """
    sizes = model_sizes(model, inputs, "Theorem 5 of Spectral-RNN", Elman)
    values = torch.linalg.svdvals(sizes.U)
    return spectral_gap_from(
        B=sizes.x,
        steps=sizes.steps,
        n=sizes.width,
        W=(float(values[0]), float(sizes.U.norm())),
        M=(_spectral(sizes.W), float(sizes.W.norm())),
        Y=(_spectral(sizes.V), float(sizes.V.norm())),
        radius=float((values - 1).abs().max()),
        samples=samples,
        margin=margin,
        delta=delta,
    )


def spectral_gap_from(
    *,
    B: float,
    steps: int,
    n: int,
    W: tuple[float, float],
    M: tuple[float, float],
    Y: tuple[float, float],
    radius: float,
    samples: int,
    margin: float = 1.0,
    delta: float = 0.05,
) -> SpectralGap:
    """`spectral_gap` from numbers: W, M and Y as pairs of spectral and Frobenius norm.

    Args:
        radius: r of Corollary 1, the largest |σ - 1| of W.

    >>> spectral_gap_from(B=1.0, steps=20, n=16, W=(1.0, 4.0), M=(1.0, 2.0), Y=(1.0, 1.0), radius=0.0, samples=1000).gap
    337.12...
    """
    whole_number("steps", steps, 1)
    whole_number("n", n, 2)
    whole_number("samples", samples, 1)
    number("margin", margin, above=0)
    number("delta", delta, above=0, below=1)
    common = (B * steps * M[0] * Y[0] / margin) ** 2 * n * math.log(n)
    ranks = sum((pair[1] / pair[0]) ** 2 if pair[0] else 0.0 for pair in (M, Y))
    complexity = common * power(max(W[0], 1.0), 2 * steps - 2) * ((steps * W[1]) ** 2 + ranks)
    simple = common * steps**2 * n * power(1 + radius, 2 * steps)
    chance = math.log(steps * samples / delta)
    return SpectralGap(complexity, math.sqrt((complexity + chance) / samples), math.sqrt((simple + chance) / samples))


def output_change(model: SequenceModel, inputs: Tensor, dW: float, dM: float, dY: float) -> float:
    """Lemma 2: the largest change of the output after the last step for a change of the three matrices.

    ``t B max(‖W‖^{t-1}, 1) (e t ‖Y‖ ‖M‖ ‖δW‖ + e ‖Y‖ ‖δM‖ + ‖M‖ ‖δY‖)``.

    Args:
        model, inputs: see `spectral_gap`.
        dW, dM, dY: the spectral norms ‖δW‖, ‖δM‖, ‖δY‖, each at most 1/t of its matrix's norm.

    Note on the lemma: its first line, on the states, states a smaller bound than its proof gives. This is the second
    line, which agrees with the proof.

    >>> change = output_change(model, batch.inputs, dW=1e-3, dM=1e-3, dY=1e-3)
    >>> change > 0
    True

    Reference: Zhang, Lei and Dhillon, Lemma 2.
    """
    sizes = model_sizes(model, inputs, "Lemma 2 of Spectral-RNN", Elman)
    W, M, Y, t = _spectral(sizes.U), _spectral(sizes.W), _spectral(sizes.V), sizes.steps
    for name, change, norm in (("dW", dW, W), ("dM", dM, M), ("dY", dY, Y)):
        if not 0 <= change <= norm / t:
            raise ValueError(f"{name} must be from 0 to a {t}-th of its matrix's norm, {norm / t:g}, got {change:g}")
    return t * sizes.x * power(max(W, 1.0), t - 1) * (math.e * Y * (t * M * dW + dM) + M * dY)


def _spectral(matrix: Tensor) -> float:
    return float(torch.linalg.matrix_norm(matrix, 2))
