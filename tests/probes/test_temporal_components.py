"""Temporal components from one backward pass, against parameters that are really replicated for each step."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from evenflow import GRU, LSTM, RNN, ComplexRNN, EchoState, GatedFeedbackRNN, ScalarGatedRNN, SequenceModel
from evenflow.probes import temporal_parts
from evenflow.probes.model_layer import record_runs
from evenflow.probes.temporal_components import alignment, capture_call, norm, temporal_components

# float64, the same sums in another order.
SAME = {"atol": 1e-11, "rtol": 1e-9}
STEPS, BATCH, INPUT, HIDDEN, OUTPUT = 7, 4, 3, 6, 2

LAYERS = {
    "plain": lambda **o: RNN(INPUT, HIDDEN, **o),
    "map": lambda **o: RNN(INPUT, HIDDEN, map="exponential", activation="abs", **o),
    "svd": lambda **o: RNN(INPUT, HIDDEN, map="svd", activation="leaky(0.5)", **o),
    "stacked": lambda **o: RNN(INPUT, HIDDEN, 2, map="cayley", **o),
    "trained-activation": lambda **o: RNN(INPUT, HIDDEN, activation="modrelu", **o),
    "gain": lambda **o: RNN(INPUT, HIDDEN, gain=1.05, **o),
    "first-state": lambda **o: RNN(INPUT, HIDDEN, 2, initial_state="learned", **o),
    "scalar-gated": lambda **o: ScalarGatedRNN(INPUT, HIDDEN, map="rotations", gates="bounded", **o),
    "gru": lambda **o: GRU(INPUT, HIDDEN, map="exponential", **o),
    "complex": lambda **o: ComplexRNN(INPUT, HIDDEN, **o),
}


def squared(outputs, targets):
    return (outputs - targets).square().mean()


def model_of(kind, **options):
    layer = LAYERS[kind](dtype=torch.float64)
    model = SequenceModel(layer, OUTPUT, **options)
    with torch.no_grad():  # every weight matters
        for name, p in model.named_parameters():
            if p.dim() == 1 and "parametrizations" not in name:
                p.add_(0.3 * torch.randn_like(p))
    return model


def batch_for(model, lengths=None):
    generator = torch.Generator().manual_seed(1)
    if model.embedding is not None:
        inputs = torch.randint(model.embedding.num_embeddings, (STEPS, BATCH), generator=generator)
    else:
        inputs = torch.randn(STEPS, BATCH, INPUT, dtype=torch.float64, generator=generator)
    shape = (BATCH, OUTPUT) if model.readout == "last" else (STEPS, BATCH, OUTPUT)
    return inputs, torch.randn(shape, dtype=torch.float64, generator=generator), squared, lengths


def replicated(model, inputs, targets, loss, lengths):
    """For each step the gradient by its own copies, a recurrent matrix as itself: a dictionary by name."""
    layer = model.layer
    own_names = list(layer.direction_weights(0))
    names = [name + suffix for suffix in layer.suffixes for name in own_names]
    whole = {name: getattr(layer, name).detach() for name in names}
    linears = {"hidden": model.hidden, "output": model.output}
    for name, linear in linears.items():
        if linear is not None:
            whole |= {f"{name}.weight": linear.weight.detach(), f"{name}.bias": linear.bias.detach()}
    if model.embedding is not None:
        whole["embedding.weight"] = model.embedding.weight.detach()
    copies = [{name: w.clone().requires_grad_() for name, w in whole.items()} for _ in range(STEPS)]
    ends = torch.full((BATCH,), STEPS) if lengths is None else lengths
    states = [torch.zeros(BATCH, HIDDEN, dtype=torch.float64) for _ in layer.suffixes]
    outputs = []
    for t, own in enumerate(copies):
        x = inputs[t] if model.embedding is None else nn.functional.embedding(inputs[t], own["embedding.weight"])
        running = (t < ends).unsqueeze(1)
        for index, suffix in enumerate(layer.suffixes):
            ready = layer.cell.prepare({name: own[name + suffix] for name in own_names})
            before = states[index]
            if t == 0 and layer.initial_state == "learned":
                before = own[f"h0{suffix}"].expand(BATCH, -1)
            (h,) = layer.cell.advance(layer.cell.project(x, ready), (before,), ready)
            states[index] = torch.where(running, h, before)
            x = torch.where(running, h, torch.zeros_like(h))
        if model.hidden is not None:
            x = nn.functional.linear(x, own["hidden.weight"], own["hidden.bias"]).clamp(min=0)
        outputs.append(nn.functional.linear(x, own["output.weight"], own["output.bias"]))
    answers = torch.stack(outputs)
    if model.readout == "last":
        answers = answers[ends - 1, torch.arange(BATCH)]
    value = loss(answers, targets)
    gradients = [torch.autograd.grad(value, list(own.values()), allow_unused=True, retain_graph=True) for own in copies]
    return [
        {name: torch.zeros_like(w) if g is None else g for (name, w), g in zip(whole.items(), each, strict=True)}
        for each in gradients
    ]


def by_parameters(model, gradients):
    """Gradients by the matrices, handed on through the maps to the parameters themselves."""
    total = torch.zeros((), dtype=torch.float64)
    for name, g in gradients.items():
        owner, _, leaf = name.rpartition(".")
        tensor = getattr(model.get_submodule(owner), leaf) if owner else getattr(model.layer, leaf)
        total = total + (tensor * g.conj()).real.sum()
    return torch.autograd.grad(total, list(model.parameters()), allow_unused=True, materialize_grads=True)


RAGGED = torch.tensor([5, 7, 2, 7])
ENDS_EARLY = torch.tensor([5, 4, 2, 3])  # no sequence reaches the last step
CASES = {kind: (kind, {}, None) for kind in LAYERS} | {
    "every": ("stacked", {"readout": "every"}, None),
    "symbols": ("plain", {"readout": "every", "vocabulary": 3}, None),
    "ragged": ("plain", {}, RAGGED),
    "ragged-symbols-first-state": ("first-state", {"readout": "every", "vocabulary": 3}, RAGGED),
    "ends-early": ("stacked", {"readout": "every"}, ENDS_EARLY),
    "hidden-units": ("plain", {"readout_units": 6}, RAGGED),
    "hidden-units-every": ("stacked", {"readout": "every", "readout_units": 6}, ENDS_EARLY),
}


@pytest.mark.parametrize(("kind", "options", "lengths"), CASES.values(), ids=CASES)
def test_equals_replicated_parameters(kind, options, lengths):
    model = model_of(kind, **options)
    batch = batch_for(model, lengths)
    expected = replicated(model, *batch)
    found = temporal_components(model, *batch)
    norms = [torch.stack([g.abs().square().sum() for g in each.values()]).sum().sqrt() for each in expected]
    torch.testing.assert_close(found.norms, torch.stack(norms), **SAME)
    coefficients = torch.randn(STEPS, dtype=torch.float64)
    mixed = {name: sum(c * each[name] for c, each in zip(coefficients, expected, strict=True)) for name in expected[0]}
    for g, e in zip(found.combine(coefficients), by_parameters(model, mixed), strict=True):
        torch.testing.assert_close(g, e, **SAME)
    for g, e in zip(found.component(2), by_parameters(model, expected[2]), strict=True):
        torch.testing.assert_close(g, e, **SAME)


@pytest.mark.parametrize("kind", LAYERS)
def test_components_add_up_to_the_gradient(kind):
    model = model_of(kind)
    inputs, targets, loss, _ = batch_for(model)
    found = temporal_components(model, inputs, targets, loss)
    value = loss(model(inputs)[0], targets)
    value.backward()
    assert torch.equal(found.loss, value.detach())
    for p, g, e in zip(model.parameters(), found.gradient, found.combine(torch.ones_like(found.norms)), strict=True):
        torch.testing.assert_close(g, p.grad, **SAME)
        torch.testing.assert_close(e, p.grad, **SAME)


@pytest.mark.parametrize("kind", ["plain", "stacked", "gru"])
def test_padded_sequences_have_the_shares_of_packed_ones(kind):
    """With readouts at the end of each: past it nothing has a share."""
    model, lengths = model_of(kind), torch.tensor([5, 2, 4, 3])
    inputs, targets, loss, _ = batch_for(model, lengths)
    packed = temporal_components(model, inputs, targets, loss, lengths)
    with capture_call(model) as call:
        value = loss(model(inputs, lengths=lengths, padded=True)[0], targets)
    padded = call.components(value)
    assert len(packed.norms) == 5
    torch.testing.assert_close(padded.norms[:5], packed.norms, **SAME)
    assert not padded.norms[5:].any()
    for t in range(5):
        for one, other in zip(padded.component(t), packed.component(t), strict=True):
            torch.testing.assert_close(one, other, **SAME)


def first_state_alone(model):
    for name, p in model.layer.named_parameters():
        p.requires_grad_(name.startswith("h0"))


FROZEN = {
    "reservoir": (lambda **o: EchoState(INPUT, HIDDEN, **o), lambda model: None),
    "leaky reservoir": (lambda **o: EchoState(INPUT, HIDDEN, leak=0.5, **o), lambda model: None),
    "embedding": (LAYERS["stacked"], lambda model: model.embedding.requires_grad_(False)),
    "layer": (LAYERS["gru"], lambda model: model.layer.requires_grad_(False)),
    "inputs": (LAYERS["first-state"], lambda model: model.layer.weight_ih_l0.requires_grad_(False)),
    "all but the first state": (LAYERS["first-state"], first_state_alone),
    "first state": (LAYERS["first-state"], lambda model: model.layer.h0_l1.requires_grad_(False)),
    "matrix": (LAYERS["plain"], lambda model: model.layer.weight_hh_l0.requires_grad_(False)),
    "readout": (LAYERS["complex"], lambda model: model.output.requires_grad_(False)),
    "bias": (LAYERS["plain"], lambda model: model.output.bias.requires_grad_(False)),
}


@pytest.mark.parametrize("grad", [True, False], ids=["", "no_grad"])
@pytest.mark.parametrize("name", FROZEN)
def test_what_is_not_trained_has_no_share(name, grad):
    make, freeze = FROZEN[name]
    model = SequenceModel(make(dtype=torch.float64), OUTPUT, readout="every", vocabulary=3)
    inputs, targets, loss, _ = batch_for(model)
    whole = temporal_components(model, inputs, targets, loss)
    every = [whole.component(t) for t in range(STEPS)]
    freeze(model)
    with torch.set_grad_enabled(grad):
        found = temporal_components(model, inputs, targets, loss)
        assert all(p.requires_grad for p in found.parameters)
        kept = [any(p is q for q in found.parameters) for p in whole.parameters]
        for t in range(STEPS):
            component = found.component(t)
            expected = [g for g, keep in zip(every[t], kept, strict=True) if keep]
            torch.testing.assert_close(component, expected, **SAME)
            if name not in ("embedding", "readout"):  # those have a map, and components are measured by its matrix
                torch.testing.assert_close(found.norms[t], norm(component), **SAME)
    assert (found.norms <= whole.norms * (1 + 1e-12)).all()
    assert name.endswith("reservoir") or (found.norms < whole.norms).any()


def test_refuses_a_model_with_nothing_to_train():
    model = model_of("plain").requires_grad_(False)
    with pytest.raises(
        ValueError, match=r"^temporal components need a model with something to train, got one without$"
    ):
        temporal_components(model, *batch_for(model))


@pytest.mark.parametrize("readout", ["last", "every"])
def test_refuses_a_batch_of_none(readout):
    model = SequenceModel(RNN(3, 4), 1, readout=readout)
    with pytest.raises(ValueError, match=r"^inputs must hold at least one sequence"):
        temporal_components(model, torch.ones(10, 0, 3), torch.ones(0, 1), squared)


def test_gradients_may_be_off():
    model = model_of("plain")
    batch = batch_for(model)
    expected = temporal_components(model, *batch)
    with torch.no_grad():
        found = temporal_components(model, *batch)
        torch.testing.assert_close(found.component(3), expected.component(3), **SAME)
    torch.testing.assert_close(found.norms, expected.norms, **SAME)


def test_many_steps_are_measured_in_pieces(monkeypatch):
    model = model_of("plain")
    batch = batch_for(model)
    whole = temporal_components(model, *batch).norms
    monkeypatch.setattr(temporal_parts, "HELD", 1)
    torch.testing.assert_close(temporal_components(model, *batch).norms, whole, **SAME)


def test_small_spectral_radius_vanishes():
    """Figure 3.1 of Galvan: with radius 0.8 the early components are far smaller, with 1.2 they are not."""
    shares = []
    for radius in (0.8, 1.2):
        source = torch.Generator().manual_seed(0)
        layer = RNN(INPUT, 50, init="spectral_radius", radius=radius, generator=source)
        model = SequenceModel(layer, OUTPUT, generator=source)
        x = 0.1 * torch.randn(60, BATCH, INPUT, generator=source)
        norms = temporal_components(model, x, torch.zeros(BATCH, OUTPUT), squared).norms
        shares.append(float(norms[0] / norms[-2]))
    assert shares[0] < 1e-3 < 1e-2 < shares[1]


def test_alignment_is_the_condition():
    d, g = [torch.tensor([3.0, 1.0])], [torch.tensor([1.0, 2.0])]
    found = alignment(d, g)
    assert found.gap == pytest.approx(float((d[0] - g[0]).norm() / g[0].norm()))
    assert found.ratio == pytest.approx((10 / 5) ** 0.5)
    assert found.cosine == pytest.approx(5 / 50**0.5)


def test_leaves_no_trace():
    model = model_of("stacked")
    temporal_components(model, *batch_for(model))
    assert all(p.grad is None for p in model.parameters())
    assert not model.layer.observed
    assert not model._forward_hooks


def test_listening_may_be_nested():
    layer = RNN(INPUT, HIDDEN, 2)
    with record_runs(layer) as outer:
        with record_runs(layer, taps=True) as inner:
            layer(torch.randn(STEPS, BATCH, INPUT))
        layer(torch.randn(STEPS, BATCH, INPUT))
    assert (len(outer), len(inner)) == (4, 2)
    assert inner[0].tap is not None
    assert outer[-1].tap is None
    assert not layer.observed


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (nn.Linear(2, 2), "temporal components need a SequenceModel, got Linear"),
        (
            SequenceModel(LSTM(INPUT, HIDDEN), OUTPUT),
            "temporal_components needs a cell whose state is one vector, got LSTM with two",
        ),
        (
            SequenceModel(RNN(INPUT, HIDDEN, bidirectional=True), OUTPUT),
            "temporal_components needs layers that run one way, got a bidirectional one",
        ),
        (
            SequenceModel(nn.RNN(INPUT, HIDDEN), OUTPUT),
            "temporal_components needs a recurrent layer of evenflow other than gated feedback, got none that ran",
        ),
        (
            SequenceModel(GatedFeedbackRNN(INPUT, HIDDEN), OUTPUT),
            "temporal_components needs a recurrent layer of evenflow other than gated feedback, got none that ran",
        ),
        (
            SequenceModel(RNN(INPUT, HIDDEN), OUTPUT, output_dropout=0.5),
            "temporal components need a model without output_dropout, or model.eval(), got 0.5",
        ),
        (
            SequenceModel(RNN(INPUT, HIDDEN), OUTPUT, score_dropout=0.2),
            "temporal components need a model without score_dropout, or model.eval(), got 0.2",
        ),
    ],
    ids=["no-sequence-model", "lstm", "bidirectional", "torch", "gated-feedback", "states dropped", "scores dropped"],
)
def test_refused(model, sentence):
    with pytest.raises(ValueError) as error:
        temporal_components(model, torch.randn(STEPS, BATCH, INPUT), torch.zeros(BATCH, OUTPUT), squared)
    assert str(error.value) == sentence


@pytest.mark.parametrize("units", [None, 6])
def test_dropout_that_is_switched_on_later_does_not_change_them(units):
    model = SequenceModel(RNN(INPUT, HIDDEN), OUTPUT, output_dropout=0.5, score_dropout=0.5, readout_units=units).eval()
    found = temporal_components(model, torch.randn(STEPS, BATCH, INPUT), torch.zeros(BATCH, OUTPUT), squared)
    model.train()
    for g, e in zip(found.combine(torch.ones(STEPS)), found.gradient, strict=True):
        torch.testing.assert_close(g, e)


@pytest.mark.parametrize("units", [None, 6])
def test_states_in_half_precision(units):
    model = SequenceModel(RNN(INPUT, HIDDEN, storage="bfloat16"), OUTPUT, readout_units=units)
    found = temporal_components(model, torch.randn(STEPS, BATCH, INPUT), torch.zeros(BATCH, OUTPUT), squared)
    for g, e in zip(found.combine(torch.ones(STEPS)), found.gradient, strict=True):
        torch.testing.assert_close(g, e, atol=1e-2, rtol=1e-2)  # states with eight bits


def test_an_embedding_that_drops_is_refused():
    model = SequenceModel(RNN(INPUT, HIDDEN), OUTPUT, vocabulary=4, input_dropout=0.5)
    symbols = torch.randint(4, (STEPS, BATCH))
    with pytest.raises(ValueError, match=r"^temporal components need a model without input_dropout, or model.eval\(\)"):
        temporal_components(model, symbols, torch.zeros(BATCH, OUTPUT), squared)
    temporal_components(model.eval(), symbols, torch.zeros(BATCH, OUTPUT), squared)
