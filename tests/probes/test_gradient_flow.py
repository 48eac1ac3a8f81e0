"""The gradient-flow probe against autograd's own answer, and that it leaves no trace."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from evenflow import RNN, SequenceModel, create
from evenflow.probes import gradient_flow
from evenflow.probes.model_layer import as_evenflow_layer

STEPS, BATCH = 12, 4


def squared(outputs, targets):
    return (outputs - targets).square().mean()


@pytest.mark.parametrize("name", ["rnn", "sgornn", "lstm"])
def test_equals_autograd_on_a_hand_written_loop(name):
    torch.manual_seed(0)
    model = SequenceModel(create(name, 2, 8, dtype=torch.float64), 1)
    x, y = torch.randn(STEPS, BATCH, 2, dtype=torch.float64), torch.randn(BATCH, 1, dtype=torch.float64)
    cell, layer = model.layer.cell, model.layer
    weights = layer.step_weights(0)
    state = tuple(torch.zeros(BATCH, 8, dtype=torch.float64) for _ in range(cell.state_size))
    states = []
    for a in cell.project(x, weights):
        state = cell.advance(a, state, weights)
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


def copied(kind, **options):
    """A module of torch and a layer of evenflow with the same weights."""
    module = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}[kind](2, 6, dtype=torch.float64, **options)
    return module, as_evenflow_layer(module)


@pytest.mark.parametrize("options", [{}, {"num_layers": 2}, {"num_layers": 2, "bidirectional": True}], ids=str)
@pytest.mark.parametrize("kind", ["rnn", "gru", "lstm"])
def test_torchs_modules_give_what_evenflows_give(kind, options):
    module, layer = copied(kind, **options)
    x, y = torch.randn(STEPS, BATCH, 2, dtype=torch.float64), torch.randn(STEPS, BATCH, 1, dtype=torch.float64)
    ours, theirs = SequenceModel(layer, 1, readout="every"), SequenceModel(module, 1, readout="every")
    theirs.output.load_state_dict(ours.output.state_dict())
    members = module.num_layers * (1 + module.bidirectional)
    for layers, shape in (("top", (STEPS,)), ("all", (members, STEPS))):
        flow = gradient_flow(theirs, x, y, squared, layers=layers)
        assert flow.shape == shape
        np.testing.assert_allclose(flow, gradient_flow(ours, x, y, squared, layers=layers), rtol=1e-10)
    assert "forward" not in vars(module)


def test_every_layer_of_torchs_gru_by_hand():
    """Two layers stepped with torch's own cells, and autograd between them."""
    module = nn.GRU(2, 6, 2, dtype=torch.float64)
    cells = [nn.GRUCell(2, 6, dtype=torch.float64), nn.GRUCell(6, 6, dtype=torch.float64)]
    for index, cell in enumerate(cells):
        cell.load_state_dict({n: getattr(module, f"{n}_l{index}").data for n in cell.state_dict()})
    model = SequenceModel(module, 1)
    x, y = torch.randn(STEPS, BATCH, 2, dtype=torch.float64), torch.randn(BATCH, 1, dtype=torch.float64)
    h = [torch.zeros(BATCH, 6, dtype=torch.float64)] * 2
    states = []
    for x_t in x:
        h = [cells[0](x_t, h[0]), h[1]]
        h = [h[0], cells[1](h[0], h[1])]
        states.append(h)
    loss = squared(model.output(h[1]), y)
    expected = [torch.stack(torch.autograd.grad(loss, [s[i] for s in states], retain_graph=True)) for i in range(2)]
    expected = torch.stack(expected).norm(dim=-1).mean(-1) * BATCH
    np.testing.assert_allclose(gradient_flow(model, x, y, squared, layers="all"), expected.numpy(), rtol=1e-10)


class Own(nn.Module):
    """A user's model: batch first, something before and behind, the answer alone."""

    def __init__(self, layer):
        super().__init__()
        self.before, self.layer, self.behind = nn.Linear(3, 2), layer, nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 1))

    def forward(self, x):
        return self.behind(self.layer(self.before(x))[0][:, -1])


def test_any_module_that_holds_one_layer():
    model = Own(nn.LSTM(2, 6, batch_first=True)).train()
    x, y = torch.randn(BATCH, STEPS, 3), torch.randn(BATCH, 1)
    flow = gradient_flow(model, x, y, squared)
    assert flow.shape == (STEPS,)
    assert (flow > 0).all()
    assert flow[0] < flow[-1]
    assert model.behind[0].training
    assert all(p.grad is None for p in model.parameters())


class Stepped(nn.Module):
    """A model that calls its layer once for each step."""

    def __init__(self, layer):
        super().__init__()
        self.layer, self.output = layer, nn.Linear(6, 1)

    def forward(self, x):
        state = None
        for x_t in x.split(1):
            h, state = self.layer(x_t, state)
        return self.output(h[-1])


@pytest.mark.parametrize("layer", [nn.GRU(2, 6), RNN(2, 6, 2)], ids=["torch", "evenflow"])
def test_a_layer_called_step_by_step(layer):
    stepped, whole = Stepped(layer), SequenceModel(layer, 1)
    whole.output.load_state_dict(stepped.output.state_dict())
    x, y = torch.randn(STEPS, BATCH, 2), torch.randn(BATCH, 1)
    np.testing.assert_allclose(
        gradient_flow(stepped, x, y, squared, layers="all"),
        gradient_flow(whole, x, y, squared, layers="all"),
        rtol=1e-4,
    )


def test_refuses():
    x, y = torch.randn(3, 2, 2), torch.zeros(2, 1)
    with pytest.raises(ValueError, match="model must hold one recurrent layer"):
        gradient_flow(nn.Linear(2, 1), x, y, squared)
    with pytest.raises(ValueError, match="layers must be one of top, all, got 'first'"):
        gradient_flow(SequenceModel(RNN(2, 4), 1), x, y, squared, layers="first")


def test_refuses_a_batch_of_none():
    model = SequenceModel(RNN(3, 4), 1)
    with pytest.raises(
        ValueError,
        match=r"^inputs must hold at least one sequence of at least one time step, got shape \(10, 0, 4\)$",
    ):
        gradient_flow(model, torch.ones(10, 0, 3), torch.ones(0, 1), nn.functional.mse_loss)
