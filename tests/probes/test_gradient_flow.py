"""The gradient-flow probe against autograd's own answer, and that it leaves no trace."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from evenflow import RNN, SequenceModel, create
from evenflow.probes import gradient_flow

STEPS, BATCH = 12, 4


def squared(outputs, targets):
    return (outputs - targets).square().mean()


@pytest.mark.parametrize("name", ["rnn", "sgornn", "lstm"])
def test_equals_autograd_on_a_hand_written_loop(name):
    torch.manual_seed(0)
    model = SequenceModel(create(name, 2, 8, dtype=torch.float64), 1)
    x, y = torch.randn(STEPS, BATCH, 2, dtype=torch.float64), torch.randn(BATCH, 1, dtype=torch.float64)
    cell, layer = model.layer.cell, model.layer
    weights = {n: getattr(layer, f"{n}_l0") for n in layer._names}
    state = tuple(torch.zeros(BATCH, 8, dtype=torch.float64) for _ in range(cell.state_size))
    states = []
    for a in cell.project(x, weights):
        state = cell.step(a, state, weights)
        states.append(state[0])
    grads = torch.autograd.grad(squared(model.output(states[-1]), y), states)
    expected = torch.stack(grads).norm(dim=-1).mean(1) * BATCH
    np.testing.assert_allclose(gradient_flow(model, x, y, squared), expected.numpy(), rtol=1e-10)


def test_an_orthogonal_linear_layer_passes_the_gradient_on():
    model = SequenceModel(RNN(2, 16, map="exponential", activation="identity"), 1)
    flow = gradient_flow(model, torch.randn(500, BATCH, 2), torch.randn(BATCH, 1), squared)
    np.testing.assert_allclose(flow, flow[-1], rtol=1e-3)


def test_leaves_no_trace():
    model = SequenceModel(RNN(2, 8, 2, dropout=0.5), 1).train()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    before = torch.get_rng_state()
    gradient_flow(model, torch.randn(STEPS, BATCH, 2, generator=torch.Generator()), torch.zeros(BATCH, 1), squared)
    assert torch.equal(torch.get_rng_state(), before)
    assert model.training
    assert all((p.grad == 1).all() for p in model.parameters())


def test_ragged_batch():
    model = SequenceModel(RNN(2, 8), 1)
    lengths = torch.tensor([3, STEPS, 5, 7])
    flow = gradient_flow(model, torch.randn(STEPS, BATCH, 2), torch.zeros(BATCH, 1), squared, lengths)
    assert flow.shape == (STEPS,)
    assert (flow > 0).all()


def test_needs_a_layer_of_evenflow():
    with pytest.raises(ValueError, match="needs a layer of evenflow, got GRU"):
        gradient_flow(SequenceModel(nn.GRU(2, 4), 1), torch.randn(3, 2, 2), torch.zeros(2, 1), squared)
