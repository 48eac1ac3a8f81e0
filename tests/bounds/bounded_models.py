"""Small models of many kinds for hypothesis to choose from, and the matrix ∂h_t/∂h_k itself."""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from evenflow import RNN, ComplexRNN, ScalarGatedRNN
from evenflow.activations import ACTIVATIONS
from evenflow.probes.unrolled import unroll

MAPS = ("free", "exponential", "cayley", "householder", "rotations", "svd", "factorized")
CHOICES = (*ACTIVATIONS, "leaky(0.5)", "leaky(0.95)")
STEPS = 9


def plain(map: str, activation: str, units: int, scale: float) -> nn.Module:
    layer = RNN(2, units, map=map, activation=activation, dtype=torch.float64)
    if map == "free":
        with torch.no_grad():
            layer.weight_hh_l0.copy_(scale * torch.randn(units, units, dtype=torch.float64))
    return layer


def gated(map: str, activation: str, units: int, scale: float) -> nn.Module:
    alpha = min(0.49, 0.5 * scale)
    return ScalarGatedRNN(
        2,
        units,
        map=map,
        activation=activation,
        gates="fixed",
        alpha=alpha,
        beta=1 - alpha * (1 + (units % 4 > 1)),
        dtype=torch.float64,
    )


def torchs(map: str, activation: str, units: int, scale: float) -> nn.Module:
    layer = nn.RNN(2, units, nonlinearity="relu" if activation == "relu" else "tanh", dtype=torch.float64)
    with torch.no_grad():
        layer.weight_hh_l0.mul_(scale * units)
    return layer


def complex_units(map: str, activation: str, units: int, scale: float) -> nn.Module:
    layer = ComplexRNN(2, units, dtype=torch.float64)
    with torch.no_grad():
        layer.activation_l0.copy_(-layer.activation_l0.abs())
    return layer


def layers(*kinds) -> st.SearchStrategy[nn.Module]:
    """Layers of these kinds with any map, activation, even size, scale and seed."""

    def build(kind, map, activation, half, scale, seed):
        torch.manual_seed(seed)
        return kind(map, activation, 2 * half, scale)

    return st.builds(
        build,
        st.sampled_from(kinds),
        st.sampled_from(MAPS),
        st.sampled_from(CHOICES),
        st.integers(1, 4),
        st.floats(0.05, 1.5),
        st.integers(0, 2**31),
    )


def matrix(layer: nn.Module, x: Tensor, t: int, k: int) -> Tensor:
    """∂h_t/∂h_k of the first sequence, from autograd."""
    path = unroll(layer, x)[-1]

    def later(h: Tensor) -> Tensor:
        state = (h.unsqueeze(0),)
        for step in range(k + 1, t + 1):
            state = path.cell.advance(path.inputs[step][:1], state, path.weights)
        return state[0][0]

    return torch.autograd.functional.jacobian(later, path.states[k + 1][0][0])
