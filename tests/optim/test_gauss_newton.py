"""Gauss-Newton products against dense Jacobians and Hessians, in float64."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.func import functional_call, hessian, jacrev

from evenflow import GRU, LSTM, RNN, GatedFeedbackRNN, SequenceModel, create
from evenflow.optim import GaussNewton
from evenflow.scan import backend, reference, torch_operations

# float64, the same sums in another order.
SAME = {"atol": 1e-12, "rtol": 1e-8}
STEPS, BATCH, INPUT = 5, 3, 2


def cross_entropy(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets)


def squared(outputs, targets):
    return (outputs - nn.functional.one_hot(targets, 3)).square().mean()


MODELS = {
    "rnn": lambda: SequenceModel(RNN(INPUT, 4, dtype=torch.float64), 3),
    "stacked": lambda: SequenceModel(RNN(INPUT, 3, 2, dtype=torch.float64, initial_state="learned"), 3),
    "exponential": lambda: SequenceModel(RNN(INPUT, 4, map="exponential", dtype=torch.float64), 3),
    "svd": lambda: SequenceModel(RNN(INPUT, 4, map="svd", dtype=torch.float64), 3),
    "sgornn": lambda: SequenceModel(create("sgornn", INPUT, 4, dtype=torch.float64), 3),
    "gru": lambda: SequenceModel(GRU(INPUT, 3, dtype=torch.float64), 3),
    "lstm": lambda: SequenceModel(LSTM(INPUT, 3, dtype=torch.float64), 3),
    "torch": lambda: SequenceModel(nn.RNN(INPUT, 4, dtype=torch.float64), 3),
    "torch-lstm": lambda: SequenceModel(nn.LSTM(INPUT, 3, dtype=torch.float64), 3),
}


def numeric_jacobian(f, theta, size):
    """Central differences: independent of every hand-written gradient."""
    columns, step = [], 1e-6
    for i in range(len(theta)):
        e = torch.zeros_like(theta)
        e[i] = step
        columns.append((f(theta + e) - f(theta - e)).flatten() / (2 * step))
    return torch.stack(columns, 1)


def with_parameters(model, parameters, theta):
    with torch.no_grad():
        for p, piece in zip(parameters, theta.split([p.numel() for p in parameters]), strict=True):
            p.copy_(piece.view_as(p))


@pytest.mark.parametrize("loss", [cross_entropy, squared])
@pytest.mark.parametrize("kind", MODELS)
def test_equals_the_dense_matrix(kind, loss):
    model = MODELS[kind]()
    parameters = list(model.parameters())
    x, y = torch.randn(STEPS, BATCH, INPUT, dtype=torch.float64), torch.tensor([0, 2, 1])
    theta = GaussNewton.join([p.detach() for p in parameters]).clone()

    @torch.no_grad()
    def outputs(theta):
        with_parameters(model, parameters, theta)
        return model(x)[0]

    J = numeric_jacobian(outputs, theta, BATCH * 3)
    with_parameters(model, parameters, theta)
    H = hessian(lambda o: loss(o, y))(outputs(theta)).reshape(BATCH * 3, BATCH * 3)
    engine = getattr(model.layer, "engine", None)
    found = GaussNewton(model, parameters, lambda: model(x)[0], lambda o: loss(o, y))
    for _ in range(2):  # the graph serves every product
        v = torch.randn_like(theta)
        # Central differences are off by about 1e-9.
        torch.testing.assert_close(found.product(v), J.mT @ (H @ (J @ v)), atol=1e-8, rtol=1e-6)
    assert getattr(model.layer, "engine", None) == engine
    assert all(p.grad is None for p in parameters)


def test_equals_autograd_on_a_plain_network():
    model = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    x, y = torch.randn(6, 2, dtype=torch.float64), torch.randint(3, (6,))
    named = dict(model.named_parameters())
    J = jacrev(lambda ps: functional_call(model, ps, x))({n: p.detach() for n, p in named.items()})
    J = torch.cat([J[name].reshape(18, -1) for name in named], 1)
    H = hessian(lambda o: cross_entropy(o, y))(model(x).detach()).reshape(18, 18)
    found = GaussNewton(model, list(named.values()), lambda: model(x), lambda o: cross_entropy(o, y))
    v = torch.randn(J.shape[1], dtype=torch.float64)
    torch.testing.assert_close(found.product(v), J.mT @ H @ J @ v, **SAME)


@pytest.mark.parametrize("lengths", [None, torch.tensor([5, 2, 4])], ids=["full", "ragged"])
def test_structural_damping_is_the_states_own_matrix(lengths):
    model = MODELS["stacked"]()
    parameters = list(model.parameters())
    x, y = torch.randn(STEPS, BATCH, INPUT, dtype=torch.float64), torch.tensor([0, 2, 1])
    theta = GaussNewton.join([p.detach() for p in parameters]).clone()

    @torch.no_grad()
    def states(theta):
        with_parameters(model, parameters, theta)
        layer, two = model.layer, []
        for b in range(BATCH):  # one sequence at a time, layer after layer
            below = x[: STEPS if lengths is None else int(lengths[b]), b : b + 1]
            for suffix in ("_l0", "_l1"):
                h, every = getattr(layer, f"h0{suffix}").view(1, -1), []
                for x_t in below:
                    weights = [getattr(layer, name + suffix) for name in ("weight_ih", "bias", "weight_hh")]
                    h = torch.tanh(x_t @ weights[0].mT + weights[1] + h @ weights[2].mT)
                    every.append(h)
                below = torch.stack(every)
                two.append(below.flatten())
        return torch.cat(two)

    J = numeric_jacobian(states, theta, 0)
    with_parameters(model, parameters, theta)
    found = GaussNewton(model, parameters, lambda: model(x, lengths=lengths)[0], lambda o: squared(o, y), states=True)
    v = torch.randn_like(theta)
    extra = found.product(v, structural=0.7) - found.product(v)
    torch.testing.assert_close(extra, 0.7 / BATCH * J.mT @ (J @ v), atol=1e-8, rtol=1e-6)


OF_SIX = {
    **{
        name: lambda name=name: RNN(INPUT, 6, 2, activation=name, dtype=torch.float64, initial_state="learned")
        for name in ("identity", "relu", "leaky(0.3)", "tanh", "abs", "oplu", "prelu", "modrelu")
    },
    "sgornn": lambda: create("sgornn", INPUT, 6, num_layers=2, dtype=torch.float64),
    "complex": lambda: create("full-urnn", INPUT, 6, num_layers=2, dtype=torch.float64),
    "scrn": lambda: create("scrn", INPUT, 6, num_layers=2, dtype=torch.float64),
    "gru": lambda: GRU(INPUT, 6, 2, map="cayley", dtype=torch.float64, initial_state="learned"),
    "lstm": lambda: LSTM(INPUT, 6, 2, dtype=torch.float64, initial_state="learned"),
    "lstm-peephole": lambda: LSTM(INPUT, 6, 2, form="peephole", dtype=torch.float64),
    "lstm-1997": lambda: create("lstm-1997", INPUT, 6, num_layers=2, dtype=torch.float64),
    "gated-feedback": lambda: GatedFeedbackRNN(INPUT, 6, 2, unit="gru", dtype=torch.float64),
}


@pytest.mark.parametrize("lengths", [None, torch.tensor([7, 2, 6, 6])], ids=["full", "ragged"])
@pytest.mark.parametrize("kind", OF_SIX)
def test_fused_layers_give_what_the_loop_gives(kind, lengths, monkeypatch):
    layer = OF_SIX[kind]()
    with torch.no_grad():
        for name, p in layer.named_parameters():  # some start at zero, where they do nothing
            if "parametrizations" not in name:
                p.add_(torch.randn_like(p), alpha=0.1)
    model = SequenceModel(layer, 3, readout="every")
    parameters = list(model.parameters())
    x, y = torch.randn(7, 4, INPUT, dtype=torch.float64), torch.randn(7, 4, 3, dtype=torch.float64)
    states = kind != "gated-feedback"

    def products():
        found = GaussNewton(
            model, parameters, lambda: model(x, lengths=lengths)[0], lambda o: (o - y).square().mean(), states=states
        )
        return [found.product(v, structural) for v, structural in zip(directions, (0.0, 0.3 * states), strict=True)]

    directions = [torch.randn(sum(p.numel() for p in parameters), dtype=torch.float64) for _ in range(2)]
    layer.engine = "reference"
    wanted = products()
    layer.engine = "auto"
    monkeypatch.setattr(reference, "scan", lambda *_: pytest.fail("ran as the loop"))
    for one, other in zip(products(), wanted, strict=True):
        torch.testing.assert_close(one, other, **SAME)


def test_padded_sequences_give_what_packed_ones_give():
    model = SequenceModel(RNN(INPUT, 6, 2, dtype=torch.float64), 3)
    parameters = list(model.parameters())
    x, y = torch.randn(7, 4, INPUT, dtype=torch.float64), torch.tensor([0, 2, 1, 1])
    lengths, v = torch.tensor([3, 7, 6, 3]), torch.randn(sum(p.numel() for p in parameters), dtype=torch.float64)
    products = []
    for padded in (False, True):
        found = GaussNewton(
            model,
            parameters,
            lambda padded=padded: model(x, lengths=lengths, padded=padded)[0],
            lambda o: squared(o, y),
            states=True,
            lengths=lengths,
        )
        products.append(found.product(v, 0.3))
    torch.testing.assert_close(*products, **SAME)


def test_what_grows_beyond_a_sequences_end_does_not_count(monkeypatch):
    monkeypatch.setattr(backend, "choose", lambda *_: torch_operations)
    layer = RNN(INPUT, 6)
    with torch.no_grad():
        layer.weight_hh_l0.copy_(2.0 * torch.eye(6).roll(1, 0))  # from the end of a short sequence on: 2 to the 290th
    model = SequenceModel(layer, 3)
    parameters = list(model.parameters())
    x, y, lengths = torch.randn(300, 2, INPUT), torch.tensor([0, 2]), torch.tensor([300, 10])
    v = torch.randn(sum(p.numel() for p in parameters))
    products = []
    for engine in ("reference", "auto"):
        layer.engine = engine
        found = GaussNewton(
            model, parameters, lambda: model(x, lengths=lengths)[0], lambda o: squared(o, y), states=True
        )
        products.append(found.product(v, 0.3))
    torch.testing.assert_close(*products, rtol=1e-3, atol=1e-3)


def test_a_linear_loss_has_no_curvature():
    model = nn.Linear(2, 1).double()
    found = GaussNewton(model, list(model.parameters()), lambda: model(torch.ones(3, 2).double()), lambda o: o.mean())
    assert torch.equal(found.product(torch.ones(3).double()), torch.zeros(3).double())


def test_structural_damping_needs_states():
    model = nn.Linear(2, 1)
    with pytest.raises(ValueError) as error:
        GaussNewton(model, list(model.parameters()), lambda: model(torch.ones(3, 2)), torch.mean, states=True)
    assert str(error.value) == (
        "structural damping needs a recurrent layer of evenflow whose states are trained, got none"
    )


def test_states_that_are_not_trained_are_not_damped():
    """A layer in front that stays as it is changes nothing about the curvature of the one that learns."""
    first, second = create("esn", 2, 4).double(), create("rnn", 4, 3).double()
    model = nn.ModuleList([first, second])
    x, parameters = torch.randn(5, 2, 2).double(), [p for p in second.parameters() if p.requires_grad]
    fixed = first(x)[0].detach()

    def products(answer):
        found = GaussNewton(model, parameters, answer, lambda o: o.square().mean(), states=True)
        return found.product(torch.ones(sum(p.numel() for p in parameters)).double(), 0.3)

    torch.testing.assert_close(products(lambda: second(first(x)[0])[0]), products(lambda: second(fixed)[0]))
