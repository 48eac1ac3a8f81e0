"""Measure how gradients flow through a model; the model is left unchanged."""

from evenflow.probes.gradient_flow import gradient_flow
from evenflow.probes.jacobian import JacobianNorms, jacobian, jacobian_norms
from evenflow.probes.matrix_spectra import Spectrum, spectrum
from evenflow.probes.memory_length import MemoryLength, memory_length
from evenflow.probes.temporal_components import TemporalComponents, temporal_components

__all__ = [
    "JacobianNorms",
    "MemoryLength",
    "Spectrum",
    "TemporalComponents",
    "gradient_flow",
    "jacobian",
    "jacobian_norms",
    "memory_length",
    "spectrum",
    "temporal_components",
]
