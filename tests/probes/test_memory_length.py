"""How far back an input counts, in layers where that is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from evenflow import RNN, SequenceModel
from evenflow.probes import memory_length

STEPS = 60


def fading(rate, **options):
    """``h_t = x_t + rate h_{t-1}``: an input's effect falls by `rate` each step."""
    layer = RNN(1, 1, activation="identity", init="identity", bias=False, dtype=torch.float64, **options)
    with torch.no_grad():
        layer.weight_ih_l0.fill_(1)
        layer.weight_hh_l0.fill_(rate)
    return layer


@pytest.mark.parametrize("rate", [0.5, 0.8])
@pytest.mark.parametrize("fraction", [1e-3, 0.1])
def test_a_fading_memory_has_the_length_of_its_logarithm(rate, fraction):
    found = memory_length(fading(rate), torch.randn(STEPS, 2, 1).double(), fraction=fraction)
    assert found.steps == math.floor(math.log(fraction) / math.log(rate))
    assert not found.complete
    np.testing.assert_allclose(found.sensitivity, rate ** np.arange(STEPS))


def test_a_memory_that_lasts():
    found = memory_length(fading(1.0), torch.randn(STEPS, 2, 1).double())
    assert (found.steps, found.complete) == (STEPS - 1, True)


def test_only_the_last_input_counts():
    assert memory_length(fading(0.0), torch.randn(STEPS, 2, 1).double()).steps == 0


def test_growing_effects_are_measured_from_the_largest():
    found = memory_length(fading(2.0), torch.randn(5, 1, 1).double(), fraction=0.2)
    assert found.steps == 4  # the largest effect is the first input's
    np.testing.assert_allclose(found.sensitivity, [1, 2, 4, 8, 16])


@pytest.mark.parametrize("layer", [nn.LSTM(3, 20, 2), nn.GRU(3, 4, batch_first=True), RNN(3, 4)], ids=type)
def test_sensitivity_is_the_gradient_by_the_input(layer):
    layer = layer.double()
    x = torch.randn(5, 5, 3, dtype=torch.float64)
    found = memory_length(layer, x)
    leaf = x.clone().requires_grad_()
    end = layer(leaf)[0][:, -1] if layer.batch_first else layer(leaf)[0][-1]
    J = torch.stack([torch.autograd.grad(end[:, i].sum(), leaf, retain_graph=True)[0] for i in range(end.shape[1])])
    J = J if layer.batch_first else J.transpose(1, 2)
    expected = J.square().sum((0, 3)).mean(0).sqrt().flip(0)
    close = 1e-9 if end.shape[1] <= 16 else 0.5  # 16 random sums
    np.testing.assert_allclose(found.sensitivity, expected.numpy(), rtol=close)


def test_lags_count_from_each_sequences_own_end():
    layer = fading(0.5)
    x, lengths = torch.randn(STEPS, 3, 1).double(), torch.tensor([4, STEPS, 20])
    packed = memory_length(layer, pack_padded_sequence(x, lengths, enforce_sorted=False))
    model = memory_length(SequenceModel(layer, 1), x, lengths)
    np.testing.assert_allclose(packed.sensitivity, 0.5 ** np.arange(STEPS))
    assert packed.steps == model.steps == 9


class Stepwise(nn.Module):
    """Calls its layer once for each step of one sequence."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        outputs, state = [], None
        for row in x.split(1):
            h, state = self.layer(row, state)
            outputs.append(h)
        return torch.cat(outputs)


ALONE = {
    "torch": lambda: nn.RNN(2, 20),
    "batch first": lambda: RNN(2, 5, batch_first=True),
    "last": lambda: SequenceModel(nn.GRU(2, 6), 3),
    "every": lambda: SequenceModel(RNN(2, 6), 3, readout="every"),
    "stepwise": lambda: Stepwise(RNN(2, 5)),
}


@pytest.mark.parametrize("kind", ALONE)
def test_one_sequence_has_the_memory_of_a_batch_of_one(kind):
    model, x = ALONE[kind](), torch.randn(STEPS, 2)
    found = memory_length(model, x)
    whole = memory_length(model.layer if kind == "stepwise" else model, x.unsqueeze(0 if kind == "batch first" else 1))
    assert found.steps == whole.steps < STEPS - 1
    np.testing.assert_allclose(found.sensitivity, whole.sensitivity, rtol=1e-4, atol=1e-9)


def test_symbols_are_looked_at_behind_their_embedding():
    model = SequenceModel(nn.GRU(3, 8), 5, vocabulary=7)
    found = memory_length(model, torch.randint(0, 7, (STEPS, 2)))
    assert 0 < found.steps < STEPS


def test_a_readout_at_every_step_is_judged_at_the_last():
    layer = fading(0.5)
    x = torch.randn(STEPS, 2, 1).double()
    assert memory_length(SequenceModel(layer, 1, readout="every"), x).steps == memory_length(layer, x).steps


def test_leaves_no_trace():
    model = SequenceModel(nn.LSTM(2, 8), 1).train()
    before = torch.get_rng_state()
    memory_length(model, torch.ones(STEPS, 2, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert model.layer.training
    assert not model.layer._forward_pre_hooks
    assert all(p.grad is None for p in model.parameters())


class Halves(nn.Module):
    def forward(self, answer):
        return answer[0][::2]


def test_refuses():
    with pytest.raises(ValueError, match="fraction must be a number above 0 and below 1, got 2"):
        memory_length(RNN(2, 4), torch.ones(3, 1, 2), fraction=2)
    layer = fading(1e200)
    halved = nn.Sequential(fading(0.5), Halves())
    with pytest.raises(ValueError, match=r"must give \(O\) or \(60, O\) for one sequence, got \(30, 1\)"):
        memory_length(halved, torch.ones(STEPS, 1).double())
    with pytest.raises(ValueError, match="answer must be finite"):
        memory_length(layer, torch.ones(STEPS, 1, 1).double())


@pytest.mark.parametrize(
    "model", [RNN(3, 4), nn.LSTM(3, 4), SequenceModel(nn.GRU(3, 4), 1)], ids=["ours", "torch", "model"]
)
def test_refuses_a_batch_of_none(model):
    with pytest.raises(
        ValueError, match=r"^inputs must hold at least one sequence of at least one time step, got shape \(10, 0, 3\)$"
    ):
        memory_length(model, torch.ones(10, 0, 3))
