"""∂h_t/∂h_k against autograd's own matrix, its randomised estimate, and what theory says it is."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from evenflow import LSTM, RNN, SequenceModel, create
from evenflow.probes import jacobian, jacobian_norms
from evenflow.probes.unrolled import unroll

EXACT = 1e-10  # float64 over a dozen steps
ROUNDED = 1e-5  # an orthogonal matrix in float32 is one to 1e-7, and 100 steps multiply that
FROBENIUS = 0.3  # 32 random vectors: two to three deviations of 1/8
SPECTRAL = 0.02  # 16 steps of Lanczos, from below
STEPS, BATCH = 12, 2

LAYERS = {
    "tanh": lambda: RNN(2, 6),
    "sgornn": lambda: create("sgornn", 2, 6),
    "gru": lambda: create("gru", 2, 6),
    "lstm": lambda: LSTM(2, 6),
    "complex": lambda: create("full-urnn", 2, 6),
    "scrn": lambda: create("scrn", 2, 8),
    "gated feedback": lambda: create("gated-feedback", 2, 4),
    "torch rnn": lambda: nn.RNN(2, 6),
    "torch gru": lambda: nn.GRU(2, 6),
    "torch lstm": lambda: nn.LSTM(2, 6),
}


def by_hand(layer, x, t, k, b, whole):
    """The matrix of one sequence, from autograd on the steps between."""
    (path,) = unroll(layer, x)
    start = path.states[k + 1]
    sizes = [s.shape[-1] for s in (start if whole else start[:1])]

    def later(vector):
        state = tuple(s.clone() for s in start)
        parts = vector.split(sizes)
        state = tuple(torch.cat([s[:b], part[None], s[b + 1 :]]) for s, part in zip(state, parts, strict=False))
        state = state + tuple(s.clone() for s in start[len(state) :])
        for step in range(k + 1, t + 1):
            state = path.step(step, state)
        return torch.cat([s[b] for s in (state if whole else state[:1])])

    point = torch.cat([s[b] for s in (start if whole else start[:1])])
    return torch.autograd.functional.jacobian(later, point)


@pytest.mark.parametrize("of", ["output", "state"])
@pytest.mark.parametrize("name", LAYERS)
def test_equals_autograds_own_matrix(name, of):
    layer, x = LAYERS[name](), torch.randn(STEPS, BATCH, 2)
    found = jacobian_norms(layer, x, of=of)
    assert found.exact
    assert found.frobenius.shape == found.spectral.shape == (STEPS, BATCH)
    for k in (0, 7, STEPS - 1):
        for b in range(BATCH):
            J = by_hand(layer, x, STEPS - 1, k, b, of == "state")
            np.testing.assert_allclose(found.frobenius[k, b], J.norm(), rtol=EXACT)
            np.testing.assert_allclose(found.spectral[k, b], torch.linalg.matrix_norm(J, 2), rtol=EXACT)


@pytest.mark.parametrize("units", [16, 64])
@pytest.mark.parametrize("activation", ["abs", "identity", "oplu"])
def test_slopes_of_one_and_an_orthogonal_matrix_give_the_root_of_h(activation, units):
    layer = RNN(2, units, map="exponential", activation=activation)
    found = jacobian(layer, torch.randn(100, BATCH, 2), t=99, k=0)
    np.testing.assert_allclose(found.frobenius, math.sqrt(units), rtol=ROUNDED)
    np.testing.assert_allclose(found.spectral, 1, rtol=ROUNDED)


@pytest.mark.parametrize("make", [RNN, LSTM, nn.GRU], ids=["tanh", "lstm", "torch gru"])
def test_estimates_come_near(make):
    layer, x = make(2, 48), torch.randn(STEPS, 4, 2)
    exact = jacobian_norms(layer, x, of="state", method="exact")
    rough = jacobian_norms(layer, x, of="state", method="estimate")
    assert not rough.exact
    assert rough.k.tolist() == [0, 3, 7, 9, 10, 11]
    np.testing.assert_allclose(rough.frobenius, exact.frobenius[rough.k], rtol=FROBENIUS)
    np.testing.assert_allclose(rough.spectral, exact.spectral[rough.k], rtol=SPECTRAL)
    assert (rough.spectral <= exact.spectral[rough.k] * (1 + EXACT)).all()


def test_large_states_are_estimated():
    layer = RNN(2, 300, map="householder", reflectors=4, activation="abs")
    found = jacobian(layer, torch.randn(6, 1, 2), t=5, k=0)
    assert not found.exact
    np.testing.assert_allclose(found.frobenius, math.sqrt(300), rtol=ROUNDED)  # of an orthogonal matrix without error
    np.testing.assert_allclose(found.spectral, 1, rtol=ROUNDED)


class Own(nn.Module):
    """Symbols, batch first, and one call of the layer for each half."""

    def __init__(self):
        super().__init__()
        self.embedding, self.rnn = nn.Embedding(7, 2), nn.GRU(2, 6, batch_first=True)

    def forward(self, symbols):
        first, last = self.embedding(symbols).chunk(2, 1)
        state = self.rnn(first)[1]
        return self.rnn(last, state)[0]


def test_the_layer_inside_a_model_is_looked_at_on_what_enters_it():
    model, x = SequenceModel(create("lstm", 2, 6), 3), torch.randn(STEPS, BATCH, 2)
    np.testing.assert_array_equal(jacobian_norms(model, x).spectral, jacobian_norms(model.layer, x).spectral)
    own, symbols = Own(), torch.randint(7, (BATCH, STEPS))
    expected = jacobian_norms(own.rnn, own.embedding(symbols))
    found = jacobian_norms(own, symbols)
    assert found.k.tolist() == list(range(STEPS))
    np.testing.assert_allclose(found.spectral, expected.spectral, rtol=ROUNDED)
    assert found.frobenius[3, 1] == jacobian(own, symbols, t=-1, k=3).frobenius[0, 1]


def test_refuses_a_module_without_a_layer():
    with pytest.raises(ValueError, match=r"model must hold one recurrent layer, .* got Linear with none"):
        jacobian_norms(nn.Linear(2, 3), torch.ones(STEPS, 1, 2))
    with pytest.raises(ValueError, match=r"layer must be a recurrent one, of evenflow or torch's .*, got Linear"):
        unroll(nn.Linear(2, 3), torch.ones(STEPS, 1, 2))


@pytest.mark.parametrize("method", ["exact", "estimate"])
def test_gradients_may_be_off(method):
    layer, x = nn.LSTM(2, 6), torch.randn(STEPS, BATCH, 2)
    expected = jacobian_norms(layer, x, of="state", method=method)
    with torch.no_grad():
        found = jacobian_norms(layer, x, of="state", method=method)
        assert not torch.is_grad_enabled()
    np.testing.assert_array_equal(found.frobenius, expected.frobenius)
    np.testing.assert_array_equal(found.spectral, expected.spectral)


def test_estimates_follow_their_generator():
    layer, x = RNN(2, 20), torch.randn(5, 1, 2)
    first, same, other = (
        jacobian(layer, x, 4, 1, method="estimate", generator=torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
    )
    assert first.frobenius == same.frobenius != other.frobenius


def test_members_of_a_stack():
    layer, x = nn.GRU(2, 5, 2, bidirectional=True), torch.randn(STEPS, BATCH, 2)
    every = [jacobian_norms(layer, x, member=m).frobenius for m in range(4)]
    assert len({round(float(e[0, 0]), 12) for e in every}) == 4
    np.testing.assert_array_equal(jacobian_norms(layer, x).frobenius, every[2])


def test_an_exploding_layer_gives_large_numbers():
    layer = RNN(2, 4, activation="identity", init="identity")
    with torch.no_grad():
        layer.weight_hh_l0.mul_(1e3)
    found = jacobian_norms(layer, torch.ones(200, 1, 2) * 1e-3)
    assert found.spectral[-100, 0] == pytest.approx(1e297)
    assert np.isinf(found.spectral[0, 0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"t": 12, "k": 0}, "t must be a step from 0 to 11, got 12"),
        ({"t": 4, "k": 5}, "k must be a step from 0 to 4, got 5"),
        ({"t": 4, "k": 0, "member": 1}, "member must be below 1 for this layer, got 1"),
        ({"t": 4, "k": 0, "of": "cell"}, "of must be one of output, state, got 'cell'"),
        ({"t": 4, "k": 0, "method": "fast"}, "method must be one of auto, exact, estimate, got 'fast'"),
    ],
    ids=["t", "k", "member", "of", "method"],
)
def test_refuses(arguments, message):
    with pytest.raises(ValueError) as refused:
        jacobian(RNN(2, 4), torch.ones(STEPS, 1, 2), **arguments)
    assert str(refused.value) == message


@pytest.mark.parametrize("shape", [(10, 0, 3), (0, 2, 3)], ids=["no sequence", "no step"])
@pytest.mark.parametrize("make", [RNN, nn.LSTM])
def test_refuses_a_batch_of_nothing(make, shape):
    with pytest.raises(ValueError) as refused:
        jacobian_norms(make(3, 4), torch.ones(shape))
    assert str(refused.value) == f"x must hold at least one sequence of at least one time step, got shape {shape}"


def test_refuses_calls_with_several_batches():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = RNN(3, 4)

        def forward(self, x):
            self.layer(x[:, :1])
            return self.layer(x)[0]

    with pytest.raises(ValueError, match=r"with one batch, piece by piece, got batches of \[1, 2\]$"):
        jacobian_norms(Twice(), torch.ones(5, 2, 3))
