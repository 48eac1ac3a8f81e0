"""SGORNN's Theorems 1 and 2 and Corollary 1 against measured gradients and gaps."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evenflow import RNN, ScalarGatedRNN, SequenceModel, create
from evenflow.bounds import (
    fastrnn_alpha_limit,
    rotation_slope,
    scalar_gate_gap,
    scalar_gate_gap_from,
    scalar_gate_gradients,
    scalar_gate_gradients_from,
)

ROUNDING = 1e-6  # gates are kept as logits


def absolute(outputs, targets):
    """The mean distance: no faster than the outputs."""
    return torch.linalg.vector_norm(outputs - targets, dim=-1).mean()


def build(seed, map, activation, half, alpha, outputs, bias):
    torch.manual_seed(seed)
    layer = ScalarGatedRNN(
        2,
        2 * half,
        map=map,
        activation=activation,
        gates="fixed",
        alpha=alpha,
        beta=1 - alpha,
        bias=bias,
        dtype=torch.float64,
    )
    if bias:
        torch.nn.init.normal_(layer.bias_l0)
    return SequenceModel(layer, outputs)


models = st.builds(
    build,
    st.integers(0, 2**31),
    st.sampled_from(["rotations", "free", "exponential"]),  # free ones start orthogonal
    st.sampled_from(["relu", "leaky(0.5)", "tanh", "abs", "oplu"]),
    st.integers(1, 4),
    st.floats(0.01, 0.9),
    st.integers(1, 3),
    st.booleans(),
)


@settings(max_examples=100)
@given(models, st.integers(1, 20), st.floats(0.1, 5))
def test_measured_gradients_stay_below(model, steps, size):
    x = size * torch.randn(steps, 4, 2, dtype=torch.float64)
    limits = scalar_gate_gradients(model, x)
    layer = model.layer
    outputs, _ = model(x)
    absolute(outputs, torch.randn_like(outputs)).backward()
    entries = [layer.weight_ih_l0.grad.abs().max()] + ([layer.bias_l0.grad.abs().max()] if layer.bias else [])
    assert max(entries) <= limits.weight_ih * (1 + ROUNDING)
    if "weight_hh_l0" in dict(layer.named_parameters()):
        assert layer.weight_hh_l0.grad.norm() <= limits.weight_hh * (1 + ROUNDING)
    if limits.raw is not None:
        angles = layer.parametrizations.weight_hh_l0.original
        assert angles.grad.abs().max() <= limits.raw_sharp * (1 + ROUNDING)
        assert limits.raw_sharp <= limits.raw


def test_the_bound_on_the_recurrent_matrix_is_of_the_right_order():
    """All units on, all inputs alike: within a factor of two, which sum over t of t - 1 < T²/2 leaves over."""
    alpha, steps = 0.01, 400
    layer = ScalarGatedRNN(
        1, 1, map="free", init="identity", gates="fixed", alpha=alpha, beta=1 - alpha, bias=False, dtype=torch.float64
    )
    with torch.no_grad():
        layer.weight_ih_l0.fill_(1)
    model = SequenceModel(layer, 1)
    x = torch.ones(steps, 1, 1, dtype=torch.float64)
    absolute(model(x)[0], torch.full((1, 1), 1e6, dtype=torch.float64)).backward()
    limits = scalar_gate_gradients(model, x)
    assert limits.weight_hh / 2.02 < layer.weight_hh_l0.grad.abs().item() < limits.weight_hh / 2
    assert layer.weight_ih_l0.grad.abs().item() == pytest.approx(limits.weight_ih)


@pytest.mark.parametrize("units", [2, 6, 8])
def test_an_angle_moves_no_entry_by_more_than_one(units):
    """Corollary 1's M_φ = 4 √h log2 h, and the 1 that is enough."""
    map = create("sgornn", 2, units).parametrizations.weight_hh_l0[0]
    (angles,) = map.start()
    slopes = torch.autograd.functional.jacobian(lambda a: map.matrix(a), angles.double())
    assert slopes.abs().max() <= 1 + ROUNDING <= rotation_slope(units)
    norms = slopes.flatten(0, 1).norm(dim=0)
    assert torch.allclose(norms, torch.full_like(norms, math.sqrt(2)))


def test_corollary_1_in_numbers():
    limits = scalar_gate_gradients_from(
        alpha=0.02, beta=0.95, steps=100, units=128, R_x=1, R_W=2, R_v=3, map_slope=rotation_slope(128), rotations=True
    )
    assert limits.raw == pytest.approx(4 * 6 * 128**1.5 * 7 * 4)  # 4 C h^{3/2} log2(h) (αT)²
    assert limits.weight_ih == pytest.approx(6 * 2 * math.sqrt(128) / 2)
    assert limits.raw_sharp == pytest.approx(math.sqrt(2) * 6 * 4)


def test_a_measured_gap_stays_below():
    """A readout fitted to random labels on few sequences: as much overfitting as there can be."""
    steps, samples = 10, 12
    torch.manual_seed(0)
    model = SequenceModel(create("sgornn", 2, 16, dtype=torch.float64, activation="tanh"), 1)
    x = 3 * torch.randn(steps, 2000, 2, dtype=torch.float64)
    y = torch.randint(0, 2, (2000, 1)).double()
    with torch.no_grad():
        h = model.layer(x)[0][-1]
        fit = torch.linalg.lstsq(h[:samples], y[:samples]).solution
        model.output.weight.copy_(fit.T)
        model.output.bias.zero_()
        loss = (model(x)[0] - y).abs().clamp(max=1)[:, 0]
    gap = float(loss[samples:].mean() - loss[:samples].mean())
    assert gap > 0.2
    assert gap <= scalar_gate_gap(model, x, samples)


def test_the_proofs_last_term_is_the_smaller_one():
    found = scalar_gate_gap_from(alpha=0.1, beta=0.8, steps=10, C=0, samples=50, delta=0.1)
    assert found == pytest.approx(3 * math.sqrt(math.log(20) / 100))
    assert found < 3 * math.sqrt(math.log(20) / 50)  # the statement's


def test_more_data_and_smaller_gates_close_the_gap():
    model = SequenceModel(create("sgornn", 2, 8), 1)
    x = torch.randn(20, 4, 2)
    assert scalar_gate_gap(model, x, 400) == pytest.approx(scalar_gate_gap(model, x, 100) / 2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda x: scalar_gate_gradients(SequenceModel(RNN(2, 4, activation="relu"), 1), x),
            "Theorem 2 of SGORNN needs a scalar-gated layer, got a Elman cell",
        ),
        (
            lambda x: scalar_gate_gradients(SequenceModel(create("sgornn", 2, 4, num_layers=2), 1), x),
            "Theorem 2 of SGORNN needs a SequenceModel with one layer in one direction",
        ),
        (
            lambda x: scalar_gate_gradients(SequenceModel(create("sgornn", 2, 4, initial_state="learned"), 1), x),
            "Theorem 2 of SGORNN needs a layer that starts at zero, got a learned initial state",
        ),
        (
            lambda x: scalar_gate_gradients(SequenceModel(create("sgornn", 2, 4, activation="modrelu"), 1), x),
            "Theorem 2 of SGORNN needs a plain or scalar-gated layer with one of identity, relu, leaky, tanh, "
            "hardtanh, softsign, sin, abs, oplu, got 'modrelu'",
        ),
        (
            lambda x: scalar_gate_gradients(SequenceModel(create("sgornn", 2, 4), 1, readout="every"), x),
            "Theorem 2 of SGORNN needs readout 'last', got 'every'",
        ),
        (
            lambda x: scalar_gate_gradients(SequenceModel(create("sgornn", 2, 4), 1, readout_units=3), x),
            "Theorem 2 of SGORNN needs a linear readout, got one with 3 hidden units",
        ),
        (
            lambda x: scalar_gate_gradients(SequenceModel(create("sgornn", 2, 4, gain=1.5), 1), x),
            "Theorem 2 of SGORNN needs an orthogonal recurrent matrix, got one with singular value 1.5",
        ),
        (
            lambda x: scalar_gate_gap(SequenceModel(create("fastrnn", 2, 4), 1), x, 100),
            "Theorem 1 of SGORNN needs beta at most 1 - 2 alpha = 0.9052, got 0.9526",
        ),
        (
            lambda x: scalar_gate_gap(SequenceModel(create("sgornn", 2, 4), 1), x, 0),
            "samples must be a whole number of at least 1, got 0",
        ),
    ],
    ids=["plain", "stack", "learned", "modrelu", "readout", "hidden", "gain", "gates", "samples"],
)
def test_refuses(call, message):
    with pytest.raises(ValueError) as refused:
        call(torch.ones(3, 2, 2))
    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("spectral", "frobenius", "activation", "largest"),
    [
        (1.0, 10.0, "relu", 40.0),  # 4 R_U, the others are zero
        (31.0, 31.0, "relu", 124.0),  # 4 R_U again: it exceeds 4 (31 - 1)
        (8.0, 9.0, "relu", 36.0),
        (8.0, 8.0, "sigmoid", 32.0),  # D = 1/4, so that D |U| - 1 = 1
        (0.0, 0.5, "relu", 4.0),  # 4 |D |U| - 1| where U is zero
    ],
)
def test_the_alpha_of_fastrnns_bound(spectral, frobenius, activation, largest):
    """Equation 4 by hand: one over T times the largest of the three denominators."""
    found = fastrnn_alpha_limit(steps=50, spectral_norm=spectral, frobenius_bound=frobenius, activation=activation)
    assert found == pytest.approx(1 / (50 * largest))


def test_the_alpha_of_fastrnns_bound_falls_with_the_length_and_that_of_sgornn_does_not():
    limits = [
        fastrnn_alpha_limit(steps=steps, spectral_norm=1.0, frobenius_bound=math.sqrt(128)) for steps in (500, 5000)
    ]
    assert limits[0] == pytest.approx(10 * limits[1])
    assert limits[0] < 0.023, "where the document's networks start, which its own condition, β <= 1 - 2α, allows"


def test_a_frobenius_bound_below_the_spectral_norm_is_refused():
    with pytest.raises(ValueError, match=r"^frobenius_bound must be at least spectral_norm = 2, got 1$"):
        fastrnn_alpha_limit(steps=5, spectral_norm=2.0, frobenius_bound=1.0)
