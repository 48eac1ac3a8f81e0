"""Spectral-RNN's Theorem 5, Corollary 1 and Lemma 2."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evenflow import GRU, RNN, SequenceModel, create
from evenflow.bounds import output_change, spectral_gap, spectral_gap_from

ROUNDING = 1e-9


def build(seed, map, activation, half, outputs):
    torch.manual_seed(seed)
    return SequenceModel(RNN(2, 2 * half, map=map, activation=activation, bias=False, dtype=torch.float64), outputs)


models = st.builds(
    build,
    st.integers(0, 2**31),
    st.sampled_from(["free", "svd", "exponential"]),
    st.sampled_from(["relu", "leaky(0.5)", "tanh", "abs"]),
    st.integers(1, 4),
    st.integers(1, 3),
)


@settings(max_examples=100)
@given(models, st.integers(1, 12), st.floats(0.5, 3), st.floats(0, 1))
def test_answers_move_no_further_than_the_lemma_says(model, steps, scale, share):
    """Any matrices, moved by any share of a t-th of their norms."""
    x = torch.randn(steps, 4, 2, dtype=torch.float64)
    layer = model.layer
    free = SequenceModel(RNN(2, layer.hidden_size, activation=layer.cell.activation, bias=False).double(), 1)
    free.output = model.output
    with torch.no_grad():
        free.output.bias.zero_()
        free.layer.weight_ih_l0.copy_(layer.weight_ih_l0)
        free.layer.weight_hh_l0.copy_(scale * layer.weight_hh_l0)
        before, _ = free(x)
        matrices = (free.layer.weight_hh_l0, free.layer.weight_ih_l0, free.output.weight)
        changes = []
        for W in matrices:
            change = torch.randn_like(W)
            changes.append(
                change * share * torch.linalg.matrix_norm(W, 2) / steps / torch.linalg.matrix_norm(change, 2)
            )
        sizes = [float(torch.linalg.matrix_norm(c, 2)) for c in changes]
        limit = output_change(free, x, *(size * (1 - ROUNDING) for size in sizes))
        for W, change in zip(matrices, changes, strict=True):
            W += change
        after, _ = free(x)
    assert float((after - before).norm(dim=-1).max()) <= limit * (1 + 1e-6)


def test_theorem_5_in_numbers():
    found = spectral_gap_from(
        B=2, steps=3, n=4, W=(1.1, 2.0), M=(1.0, 1.5), Y=(2.0, 2.5), radius=0.1, samples=100, margin=0.5, delta=0.1
    )
    expected = 2**2 * 3**2 * 4 * math.log(4) * 1.1**4 * 1 * 4 * (9 * 4 + 1.5**2 + 1.25**2) / 0.25
    assert found.complexity == pytest.approx(expected)
    assert found.gap == pytest.approx(math.sqrt((expected + math.log(3000)) / 100))
    simple = 2**2 * 3**4 * 4**2 * math.log(4) * 1.1**6 * 1 * 4 / 0.25
    assert found.corollary == pytest.approx(math.sqrt((simple + math.log(3000)) / 100))


@settings(max_examples=50)
@given(models, st.integers(1, 12))
def test_the_corollary_follows_from_the_theorem(model, steps):
    """``‖W‖_F² <= n (1 + r)²`` and two ranks of at most n: three times the simple complexity is enough."""
    x = torch.randn(steps, 4, 2, dtype=torch.float64)
    found = spectral_gap(model, x, 10**9)
    assert found.gap <= math.sqrt(3) * found.corollary


def test_a_margin_keeps_the_gap_from_growing_like_a_power():
    """What the document concludes: a bounded spectrum grows with t as t², a free one exponentially."""
    bounded = SequenceModel(create("spectral", 2, 16, margin=0.001), 4)
    free = SequenceModel(RNN(2, 16, activation="relu"), 4)
    with torch.no_grad():
        free.layer.weight_hh_l0.mul_(1.5)
    x = torch.randn(200, 4, 2)
    assert spectral_gap(bounded, x, 1000).gap < 1e-20 * spectral_gap(free, x, 1000).gap


def test_takes_torchs_rnn():
    model = SequenceModel(torch.nn.RNN(2, 4, nonlinearity="relu"), 3)
    assert spectral_gap(model, torch.randn(5, 2, 2), 100).gap > 0


def test_sizes_beyond_any_float_are_infinite():
    found = spectral_gap_from(B=1, steps=1000, n=4, W=(9, 9), M=(1, 1), Y=(1, 1), radius=8, samples=10)
    assert found.gap == found.corollary == math.inf


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda x: spectral_gap(SequenceModel(GRU(2, 4), 3), x, 10),
            "Theorem 5 of Spectral-RNN needs a plain or scalar-gated layer with one of identity, relu, leaky, tanh, "
            "hardtanh, softsign, sin, abs, oplu, got a GRU cell",
        ),
        (
            lambda x: spectral_gap(SequenceModel(create("sgornn", 2, 4), 3), x, 10),
            "Theorem 5 of Spectral-RNN needs a plain layer, got a ScalarGated cell",
        ),
        (
            lambda x: spectral_gap(SequenceModel(RNN(2, 4), 3), x, 10, margin=0),
            "margin must be a number above 0, got 0",
        ),
        (
            lambda x: spectral_gap(SequenceModel(RNN(2, 4), 3), x, 10, delta=1),
            "delta must be a number above 0 and below 1, got 1",
        ),
        (
            lambda x: output_change(SequenceModel(RNN(2, 4, map="exponential"), 3), x, 1, 0, 0),
            "dW must be from 0 to a 3-th of its matrix's norm, 0.333333, got 1",
        ),
    ],
    ids=["gru", "gated", "margin", "delta", "change"],
)
def test_refuses(call, message):
    with pytest.raises(ValueError) as refused:
        call(torch.ones(3, 2, 2))
    assert str(refused.value) == message
