"""Each penalty against its equation computed another way, its gradient against central differences."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from evenflow import GRU, LSTM, RNN, GatedFeedbackRNN, ScalarGatedRNN, SequenceModel, create, penalties
from evenflow.maps import MAPS, SVD, Exponential, attach
from evenflow.penalties import PENALTIES, SoftOrthogonality, Sum, make

# float64, the same sums in another order.
SAME = {"atol": 1e-12, "rtol": 1e-9}
# Central differences with steps of 1e-6.
DIFFERENCES = {"atol": 1e-7, "rtol": 1e-5}
STEPS, BATCH, INPUT, HIDDEN = 6, 3, 2, 4

LAYERS = {
    "rnn": lambda **o: RNN(INPUT, HIDDEN, **o),
    "stacked": lambda **o: RNN(INPUT, HIDDEN, 2, **o),
    "map": lambda **o: RNN(INPUT, HIDDEN, map="svd", margin=0.3, **o),
    "gated": lambda **o: ScalarGatedRNN(INPUT, HIDDEN, activation="tanh", alpha=0.4, beta=0.5, **o),
    "gru": lambda **o: GRU(INPUT, HIDDEN, **o),
    "lstm": lambda **o: LSTM(INPUT, HIDDEN, **o),
}


def squared(outputs, targets):
    return (outputs - targets).square().mean()


def a_model(kind):
    source = torch.Generator().manual_seed(0)
    model = SequenceModel(LAYERS[kind](dtype=torch.float64, generator=source), 1, generator=source)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.2 * torch.randn(p.shape, dtype=p.dtype, generator=source))
    return model


def a_batch():
    source = torch.Generator().manual_seed(1)
    return [torch.randn(shape, dtype=torch.float64, generator=source) for shape in ((STEPS, BATCH, INPUT), (BATCH, 1))]


def penalty_of(model, penalty, lengths=None):
    x, y = a_batch()
    with make(penalty).watch(model) as extra:
        return extra(squared(model(x, lengths=lengths)[0], y))


def value_of(model, penalty):
    """A penalty of the weights alone."""
    with make(penalty).watch(model) as extra:
        return extra(torch.zeros(()))


def differences(model, value):
    """The gradient of `value` by every parameter, by central differences."""
    found = []
    for p in model.parameters():
        g, flat = torch.zeros_like(p), p.data.view(-1)
        for i in range(p.numel()):
            kept, step = flat[i].item(), 1e-6
            flat[i] = kept + step
            above = value().item()
            flat[i] = kept - step
            g.view(-1)[i] = (above - value().item()) / (2 * step)
            flat[i] = kept
        found.append(g)
    return found


def gradient(model, value):
    return torch.autograd.grad(value, list(model.parameters()), allow_unused=True, materialize_grads=True)


def blocks(model):
    """The recurrent matrices, gate by gate, by hand."""
    layer, found = model.layer, []
    for suffix in layer.suffixes:
        for name in ("weight_hh", "weight_hh_n"):
            if hasattr(layer, name + suffix):
                found += getattr(layer, name + suffix).detach().split(HIDDEN)
    return found


@pytest.mark.parametrize("kind", LAYERS)
def test_soft_orthogonality(kind):
    model = a_model(kind)
    expected = sum(((W.mT @ W - torch.eye(HIDDEN)) ** 2).sum() for W in blocks(model))
    torch.testing.assert_close(penalty_of(model, "soft_orthogonality(0.3)"), 0.3 * expected, **SAME)


@pytest.mark.parametrize("kind", LAYERS)
def test_weight_decay(kind):
    model = a_model(kind)
    expected = 0.5 * 0.3 * sum((W**2).sum() for W in blocks(model))
    torch.testing.assert_close(penalty_of(model, "weight_decay(0.3)"), expected, **SAME)
    if kind == "rnn":
        W = model.layer.weight_hh_l0
        torch.testing.assert_close(torch.autograd.grad(penalty_of(model, "weight_decay(0.3)"), W)[0], 0.3 * W, **SAME)


@pytest.mark.parametrize("name", ["svd", "factorized"])
@pytest.mark.parametrize("layer", [RNN, nn.RNN])
def test_weight_decay_makes_no_matrix_where_the_singular_values_are_known(layer, name, monkeypatch):
    model = layer(INPUT, HIDDEN, dtype=torch.float64)
    attach(model, "weight_hh_l0", MAPS[name](HIDDEN, margin=0.4))
    with torch.no_grad():
        model.parametrizations["weight_hh_l0"].original2.normal_()
    expected = 0.15 * model.weight_hh_l0.detach().square().sum()
    monkeypatch.setattr(MAPS[name], "matrix", None)
    penalty = value_of(model, "weight_decay(0.3)")
    torch.testing.assert_close(penalty.detach(), expected, rtol=1e-6, atol=0)  # bases begin as float32 numbers
    by = torch.autograd.grad(penalty, list(model.parametrizations["weight_hh_l0"].parameters()), allow_unused=True)
    assert [g is None for g in by] == [True, True, False]


@pytest.mark.parametrize("kind", LAYERS)
def test_matrix_decay(kind):
    """Recurrent matrices, inputs and readout; no bias."""
    model = a_model(kind)
    inputs = [p.detach() for name, p in model.layer.named_parameters() if name.startswith("weight_ih")]
    readout = [p.detach() for name, p in model.named_parameters() if not name.startswith("layer") and p.ndim == 2]
    assert inputs
    assert len(readout) == 1
    expected = 0.15 * sum((W**2).sum() for W in [*blocks(model), *inputs, *readout])
    torch.testing.assert_close(penalty_of(model, "matrix_decay(0.3)"), expected, **SAME)


def test_matrix_decay_leaves_embeddings_and_initial_states_alone():
    layer = RNN(INPUT, HIDDEN, initial_state="learned")
    model = SequenceModel(layer, 4, readout="every", vocabulary=5)
    with make("matrix_decay(1)").watch(model) as extra:
        extra(torch.zeros(())).backward()
    assert {name for name, p in model.named_parameters() if p.grad is not None} == {
        "layer.weight_ih_l0",
        "layer.weight_hh_l0",
        "output.weight",
    }


def test_matrix_decay_without_recurrence_counts_each_matrix_once():
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2))
    expected = sum(part.weight.detach().square().sum() for part in (model[0], model[2]))
    torch.testing.assert_close(value_of(model, "matrix_decay(2)").detach(), expected)


@pytest.mark.parametrize("kind", LAYERS)
def test_singular_value_prior(kind):
    model = a_model(kind)
    expected = sum(((torch.linalg.svd(W)[1] - 1) ** 2).sum() for W in blocks(model))
    torch.testing.assert_close(penalty_of(model, "singular_value_prior(2)"), 2 * expected, **SAME)


def states_of(model, x):
    """The states of each layer, by the cell itself, one step after the other."""
    layer, found = model.layer, []
    for index in range(layer.num_layers):
        weights = layer.step_weights(index)
        state = (torch.zeros(x.shape[1], HIDDEN, dtype=torch.float64),) * layer.cell.state_size
        every = []
        for a in layer.cell.project(x, weights):
            state = layer.cell.advance(a, state, weights)
            every.append(state[0])
        x = torch.stack(every)
        found.append(x)
    return found


@pytest.mark.parametrize("kind", LAYERS)
def test_stabilizer(kind):
    model = a_model(kind)
    values = [
        (h[t, b].norm() - h[t - 1, b].norm()) ** 2
        for h in states_of(model, a_batch()[0])
        for t in range(1, STEPS)
        for b in range(BATCH)
    ]
    torch.testing.assert_close(penalty_of(model, "stabilizer(7)"), 7 * sum(values) / len(values), **SAME)


def test_stabilizer_of_a_ragged_batch():
    model, lengths = a_model("rnn"), torch.tensor([4, 6, 1])
    (h,) = states_of(model, a_batch()[0])
    values = [(h[t, b].norm() - h[t - 1, b].norm()) ** 2 for b in range(BATCH) for t in range(1, int(lengths[b]))]
    torch.testing.assert_close(penalty_of(model, "stabilizer(1)", lengths), sum(values) / len(values), **SAME)


@pytest.mark.parametrize("batch_first", [False, True])
def test_stabilizer_of_torchs_layers(batch_first):
    layer = nn.GRU(INPUT, HIDDEN, batch_first=batch_first)
    x = torch.randn(STEPS, BATCH, INPUT)
    with make("stabilizer(1)").watch(layer) as extra:
        h = layer(x.transpose(0, 1) if batch_first else x)[0]
        found = extra(h.sum())
    h = h.transpose(0, 1) if batch_first else h
    torch.testing.assert_close(found, h.norm(dim=-1).diff(dim=0).square().mean())
    assert not layer._forward_hooks


def test_stabilizer_of_gated_feedback_and_packed_torch_layers():
    x, lengths = torch.randn(STEPS, BATCH, INPUT), torch.tensor([4, 6, 2])
    for layer in (GatedFeedbackRNN(INPUT, HIDDEN), nn.LSTM(INPUT, HIDDEN)):
        model = SequenceModel(layer, 1)
        with make("stabilizer(1)").watch(model) as extra:
            found = extra(model(x, lengths=lengths)[0].sum())
        values = []
        for b, n in enumerate(lengths.tolist()):
            size = layer(x[:n, b : b + 1])[0][:, 0].norm(dim=-1)
            values += size.diff().square().tolist()
        assert found.item() == pytest.approx(sum(values) / len(values), rel=1e-4)


def test_states_of_zero_have_a_gradient():
    """A relu layer that is off: the norm has no slope at zero, and the penalty must not give nan."""
    model = SequenceModel(RNN(INPUT, HIDDEN, activation="relu"), 1)
    with torch.no_grad():
        model.layer.bias_l0.fill_(-100)
    for penalty in ("stabilizer(1)", "norm_preserving(1)"):
        with make(penalty).watch(model) as extra:
            found = extra(model(torch.randn(STEPS, BATCH, INPUT))[0].square().sum())
        assert all(torch.isfinite(g).all() for g in gradient(model, found))


def omega_by_hand(model, at, x, y):
    """Ω with dense Jacobians: g, h_t and the inputs from the model `at`, the Jacobian from `model`."""
    hs = states_of(at, x)
    loss = squared(at.output(hs[-1][-1]), y)
    layer, total = model.layer, torch.zeros((), dtype=torch.float64)
    for index in range(layer.num_layers):
        weights = layer.step_weights(index)
        below = x if index == 0 else hs[index - 1].detach()
        gs = tapped(at, x, y)[index]
        for t in range(1, STEPS):
            for b in range(BATCH):

                def step(h, t=t, b=b, below=below, weights=weights):
                    a = layer.cell.project(below[t, b : b + 1], weights)
                    return layer.cell.advance(a, (h[None],), weights)[0][0]

                J = torch.autograd.functional.jacobian(step, hs[index][t - 1, b].detach())
                g = gs[t, b]
                total = total + ((g @ J).norm() / g.norm() - 1) ** 2 / BATCH
    assert torch.isfinite(loss)
    return total.detach()


def tapped(model, x, y):
    """∂L/∂h_t of each layer, by a loop in which every state is kept."""
    layer, kept, below = model.layer, [], list(x)
    for index in range(layer.num_layers):
        weights = layer.step_weights(index)
        h, every = torch.zeros(BATCH, HIDDEN, dtype=torch.float64), []
        for x_t in below:
            (h,) = layer.cell.advance(layer.cell.project(x_t, weights), (h,), weights)
            every.append(h)
        kept.append(every)
        below = every
    loss = squared(model.output(below[-1]), y)
    return [torch.stack(torch.autograd.grad(loss, every, retain_graph=True)) for every in kept]


@pytest.mark.parametrize("kind", ["rnn", "stacked", "map", "gated", "gru"])
def test_norm_preserving(kind):
    model, at = a_model(kind), a_model(kind)
    x, y = a_batch()
    found = penalty_of(model, "norm_preserving(3)")
    torch.testing.assert_close(found, 3 * omega_by_hand(model, at, x, y), **SAME)
    if kind in ("rnn", "map"):
        expected = differences(model, lambda: 3 * omega_by_hand(model, at, x, y))
        for g, e in zip(gradient(model, found), expected, strict=True):
            torch.testing.assert_close(g, e, **DIFFERENCES)


@pytest.mark.parametrize("kind", ["rnn", "stacked"])
def test_norm_preserving_goes_back_through_time_once(kind, monkeypatch):
    model, (x, y) = a_model(kind), a_batch()
    differentiated, grad = [], torch.autograd.grad
    with make("norm_preserving").watch(model) as extra:
        loss = squared(model(x)[0], y)
        monkeypatch.setattr(
            torch.autograd,
            "grad",
            lambda outputs, *rest, **options: (differentiated.append(outputs), grad(outputs, *rest, **options))[1],
        )
        extra(loss)
    assert sum(outputs is loss for outputs in differentiated) == 1
    layers = len([1 for name, _ in model.named_parameters() if "weight_hh" in name])
    assert len(differentiated) == 1 + layers, "and through all steps of each layer side by side"


def test_norm_preserving_is_zero_where_the_norm_is_kept():
    model = SequenceModel(RNN(INPUT, HIDDEN, map="exponential", activation="abs"), 1)
    with make("norm_preserving(1)").watch(model) as extra:
        found = extra(model(torch.randn(STEPS, BATCH, INPUT))[0].square().sum())
    assert found.item() == pytest.approx(0, abs=1e-10)


def test_norm_preserving_sees_a_vanished_gradient():
    """Gradients whose squares are below the smallest float32 still have a direction."""
    model = SequenceModel(RNN(INPUT, HIDDEN, init="identity", activation="identity"), 1)
    with torch.no_grad():
        model.layer.weight_hh_l0.mul_(0.01)
    with make("norm_preserving(1)").watch(model) as extra:
        found = extra(model(torch.randn(14, BATCH, INPUT))[0].square().sum())
    assert found.item() == pytest.approx(13 * 0.99**2, rel=1e-4)


@pytest.mark.parametrize("name", [name for name in PENALTIES if name != "norm_preserving"])
@pytest.mark.parametrize("kind", ["stacked", "map", "gru"])
def test_gradients(name, kind):
    model = a_model(kind)
    expected = differences(model, lambda: penalty_of(model, f"{name}(1)"))
    for g, e in zip(gradient(model, penalty_of(model, f"{name}(1)")), expected, strict=True):
        torch.testing.assert_close(g, e, **DIFFERENCES)


@pytest.mark.parametrize("name", PENALTIES)
def test_one_step_lowers_it(name):
    model = a_model("rnn")
    penalty = f"{name}(1)"
    before = penalty_of(model, penalty)
    before.backward()
    with torch.no_grad():
        for p in model.parameters():
            if p.grad is not None:
                p.sub_(1e-3 * p.grad)
    after = penalty_of(model, penalty)
    assert after < before


def test_a_sum_is_a_sum():
    model = a_model("stacked")
    parts = ["soft_orthogonality(0.1)", "stabilizer(2.0)", "norm_preserving(0.5)"]
    whole = make(" + ".join(parts))
    assert isinstance(whole, Sum)
    assert whole.key == " + ".join(parts)
    torch.testing.assert_close(penalty_of(model, whole), sum(penalty_of(model, part) for part in parts), **SAME)


def test_watching_leaves_no_trace():
    model = a_model("stacked")
    penalty_of(model, "norm_preserving(1) + stabilizer(1)")
    assert not model.layer.observed
    assert not model.layer._forward_hooks
    assert all(p.grad is None for p in model.parameters())


def test_the_map_is_computed_once(monkeypatch):
    calls = []
    original = Exponential.forward
    monkeypatch.setattr(Exponential, "forward", lambda self, *raw: calls.append(1) or original(self, *raw))
    model = SequenceModel(RNN(INPUT, HIDDEN, map="exponential"), 1)
    calls.clear()
    with make("soft_orthogonality(1) + weight_decay(1)").watch(model) as extra:
        extra(model(torch.randn(STEPS, BATCH, INPUT))[0].sum())
    assert len(calls) == 1


def test_models_without_recurrence():
    model = nn.Sequential(attach(nn.Linear(3, 3), "weight", Exponential(3)), nn.Linear(3, 2)).double()
    square, wide = (part.weight for part in model)
    # Of the wide one only the rows can be orthonormal.
    expected = ((square.mT @ square - torch.eye(3)) ** 2).sum() + ((wide @ wide.mT - torch.eye(2)) ** 2).sum()
    with SoftOrthogonality(1.0).watch(model) as extra:
        torch.testing.assert_close(extra(model(torch.ones(1, 3).double()).sum()), expected, **SAME)


@pytest.mark.parametrize("name", ["soft_orthogonality", "singular_value_prior"])
@pytest.mark.parametrize(("rows", "columns"), [(128, 2), (2, 128), (6, 6), (5, 3)], ids=str)
def test_a_linear_layer_is_one_matrix(name, rows, columns):
    """Its rows are no gates, although they may be a multiple of its columns."""
    layer = nn.Linear(columns, rows, bias=False, dtype=torch.float64)
    nn.init.orthogonal_(layer.weight)
    assert value_of(layer, f"{name}(1)").item() == pytest.approx(0, abs=1e-20)
    with torch.no_grad():
        layer.weight.mul_(2)
    per_value = {"soft_orthogonality": 9, "singular_value_prior": 1}[name]
    assert value_of(layer, f"{name}(1)").item() == pytest.approx(per_value * min(rows, columns))


def hidden_weights(layer):
    names = [name.removeprefix("parametrizations.").split(".")[0] for name, _ in layer.named_parameters()]
    return [name for name in names if name.startswith("weight_hh")]


@pytest.mark.parametrize(
    ("layer", "count"),
    [
        (nn.LSTM(2, 8, proj_size=4), 4),
        (nn.LSTM(2, 8, proj_size=3), 4),
        (nn.GRU(2, 8), 3),
        (nn.RNN(2, 8, 2, bidirectional=True), 4),
        (nn.LSTMCell(2, 8), 4),
        (nn.GRUCell(2, 8), 3),
        (GRU(2, 8), 3),
        (LSTM(2, 8, 2), 8),
        (attach(nn.LSTM(2, 8), "weight_hh_l0", SVD(32, 8, margin=None)), 4),
    ],
    ids=["projected", "projected-3", "gru", "both-ways", "lstm-cell", "gru-cell", "own-gru", "own-lstm", "one-map"],
)
def test_gate_by_gate(layer, count):
    layer = layer.double()
    weights = [getattr(layer, name) for name in dict.fromkeys(hidden_weights(layer))]
    pieces = [W for weight in weights for W in weight.detach().split(8)]
    assert len(pieces) == count
    expected = sum(((W.mT @ W - torch.eye(W.shape[1])) ** 2).sum() for W in pieces)
    torch.testing.assert_close(value_of(layer, "soft_orthogonality(1)").detach(), expected, **SAME)
    expected = sum(((torch.linalg.svdvals(W) - 1) ** 2).sum() for W in pieces)
    torch.testing.assert_close(value_of(layer, "singular_value_prior(1)").detach(), expected, **SAME)


def test_gated_feedback_is_cut_by_the_layer_that_feeds():
    layer = GatedFeedbackRNN(INPUT, HIDDEN, num_layers=3, unit="gru", dtype=torch.float64)
    own = dict(layer.named_parameters())
    pieces = [W for j in range(3) for name in ("weight_hh", "weight_hh_own") for W in own[f"{name}_l{j}"].split(HIDDEN)]
    assert len(pieces) == 3 * (3 + 2)
    pieces += [own[f"weight_hh_gate_l{j}"].mT for j in range(3)]  # rows, whole
    expected = sum(((W.mT @ W - torch.eye(W.shape[1])) ** 2).sum() for W in pieces)
    torch.testing.assert_close(value_of(layer, "soft_orthogonality(1)"), expected, **SAME)


@pytest.mark.parametrize("name", PENALTIES)
def test_names(name):
    assert make(name).name == name
    assert make(make(f" {name} ( 1e-3 ) ").key).strength == 1e-3
    assert make(PENALTIES[name](2)).strength == 2
    assert make(f"{name}(1e+3)").strength == 1000
    assert PENALTIES[name].equation
    assert penalties.make is make


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: make("soft_ortogonality(1)"), "unknown penalty 'soft_ortogonality', did you mean soft_orthogonality?"),
        (lambda: make("stabilizer(a)"), "the strength of stabilizer must be a number of at least 0, got 'a'"),
        (lambda: make("stabilizer(-1)"), "the strength of stabilizer must be a number of at least 0, got -1.0"),
        (lambda: make("stabilizer(nan)"), "the strength of stabilizer must be a number of at least 0, got nan"),
        (lambda: Sum([]), "penalties must be at least one penalty, got none"),
        (
            lambda: penalty_of(a_model("lstm"), "norm_preserving(1)"),
            "norm_preserving needs a cell whose state is one vector, got LSTM with two",
        ),
    ],
    ids=["unknown", "word", "negative", "not-a-number", "empty", "lstm"],
)
def test_refused(call, sentence):
    with pytest.raises(ValueError) as error:
        call()
    assert str(error.value) == sentence


def test_needs_something_to_penalise():
    model = nn.ReLU()
    for name, sentence in (
        ("stabilizer", "stabilizer needs a model with a recurrent layer, got none that ran"),
        ("weight_decay", "weight_decay needs a model with recurrent matrices or linear layers, got ReLU"),
    ):
        with make(name).watch(model) as extra, pytest.raises(ValueError) as error:
            extra(model(torch.ones(1)).sum())
        assert str(error.value) == sentence


@pytest.mark.parametrize("name", ["soft_orthogonality", "singular_value_prior", "weight_decay"])
def test_a_recurrence_that_is_not_trained_is_refused(name):
    """It must not fall on the readout instead, nor on nothing."""
    frozen = SequenceModel(RNN(INPUT, HIDDEN, map="svd"), 1)
    for p in frozen.layer.parameters():
        p.requires_grad_(False)
    cell = nn.GRUCell(INPUT, HIDDEN).requires_grad_(False)
    for model, kind in (
        (SequenceModel(create("esn", INPUT, 16), 1), "EchoState"),
        (frozen, "RNN"),
        (nn.Sequential(cell, nn.Linear(HIDDEN, 1)), "GRUCell"),
    ):
        with make(name).watch(model) as extra, pytest.raises(ValueError) as error:
            extra(torch.zeros(()))
        sentence = f"{name} needs a layer whose recurrent matrices are trained, got {kind}, whose are not"
        assert str(error.value) == sentence


def test_a_trained_layer_over_a_reservoir_counts_alone():
    upper = RNN(16, HIDDEN)
    model = nn.ModuleList([create("esn", INPUT, 16), upper, nn.Linear(HIDDEN, 1)])
    torch.testing.assert_close(value_of(model, "weight_decay(2)"), upper.weight_hh_l0.square().sum())
