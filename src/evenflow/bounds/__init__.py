"""Theorems on gradients and generalisation as functions: each computes its numbers from a model or from sizes."""

from evenflow.bounds.band import Band, band, gradient_band, regime
from evenflow.bounds.direction import DirectionCondition, convergence_constant, direction_condition
from evenflow.bounds.hochreiter import (
    UpperBound,
    hochreiter_bound,
    hochreiter_from,
    singular_value_bound,
    singular_value_from,
)
from evenflow.bounds.scalar_gates import (
    ScalarGateGradients,
    fastrnn_alpha_limit,
    rotation_slope,
    scalar_gate_gap,
    scalar_gate_gap_from,
    scalar_gate_gradients,
    scalar_gate_gradients_from,
)
from evenflow.bounds.spectral_gap import SpectralGap, output_change, spectral_gap, spectral_gap_from

__all__ = [
    "Band",
    "DirectionCondition",
    "ScalarGateGradients",
    "SpectralGap",
    "UpperBound",
    "band",
    "convergence_constant",
    "direction_condition",
    "fastrnn_alpha_limit",
    "gradient_band",
    "hochreiter_bound",
    "hochreiter_from",
    "output_change",
    "regime",
    "rotation_slope",
    "scalar_gate_gap",
    "scalar_gate_gap_from",
    "scalar_gate_gradients",
    "scalar_gate_gradients_from",
    "singular_value_bound",
    "singular_value_from",
    "spectral_gap",
    "spectral_gap_from",
]
