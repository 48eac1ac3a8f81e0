"""`SequenceModel(block="residual")`: the equation, every system in every call form, and what cannot be combined."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from torch import nn

import evenflow
from evenflow import RNN, SequenceModel, create, generate
from evenflow.bounds import scalar_gate_gradients
from evenflow.models.population import Population
from evenflow.models.residual_stack import ResidualStack
from evenflow.probes import gradient_flow, memory_length, temporal_components
from evenflow.systems import SYSTEMS

SAME = {"atol": 1e-10, "rtol": 1e-9}  # float64, the same sums in another order
T, B, I, H, O = 9, 4, 2, 6, 3
LENGTHS = torch.tensor([4, 9, 1, 6])


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def residual(layer, readout="every", num_layers=2, **options):
    return SequenceModel(layer, O, readout=readout, block="residual", num_layers=num_layers, **options)


def random(*shape):
    return torch.randn(shape, dtype=torch.float64)


def flat(state):
    return [state] if isinstance(state, torch.Tensor) else list(state)


def by_hand(model, x):
    """The equation of the blocks, with the layers called one by one."""
    stack = model.layer
    x = x @ stack.encoder.weight.T + stack.encoder.bias
    for block in stack.blocks:
        u = (x - x.mean(-1, keepdim=True)) / (x.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()
        y = block.layer(u * block.norm.weight + block.norm.bias)[0]
        value, gate = (y @ block.gated.weight.T + block.gated.bias).chunk(2, -1)
        x = x + value * gate.sigmoid()
    return x @ model.output.weight.T + model.output.bias


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_system_in_every_call_form(name):
    model, x = residual(create(name, H, H), input_size=I).double(), random(T, B, I)
    outputs, state = model(x)
    torch.testing.assert_close(outputs, by_hand(model, x), **SAME)
    outputs.square().mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters() if p.requires_grad)

    first, carried = model(x[:4])
    rest, end = model(x[4:], carried)
    torch.testing.assert_close(torch.cat([first, rest]), outputs, **SAME)
    for part, whole in zip(flat(end), flat(state), strict=True):
        torch.testing.assert_close(part, whole, **SAME)

    with torch.no_grad():
        stepped, carried = [], None
        for x_t in x:
            y, carried = model.step(x_t, carried)
            stepped.append(y)
        torch.testing.assert_close(torch.stack(stepped), outputs, **SAME)

        ragged, ends = model(x, lengths=LENGTHS)
        padded = model(x, lengths=LENGTHS, padded=True)[0]
        for row, length in enumerate(LENGTHS.tolist()):
            alone, end = model(x[:length, row : row + 1])
            torch.testing.assert_close(ragged[:length, row], alone[:, 0], **SAME)
            torch.testing.assert_close(padded[:length, row], alone[:, 0], **SAME)
            for part, whole in zip(flat(end), flat(ends), strict=True):
                torch.testing.assert_close(whole[:, row], part[:, 0], **SAME)

        resets = torch.zeros(T, B, dtype=torch.bool)
        resets[4] = True
        torch.testing.assert_close(
            model(x, resets=resets)[0], torch.cat([outputs[:4], model(x[4:])[0]]).detach(), **SAME
        )


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_population_answers_as_its_members_do(name):
    models = [residual(create(name, H, H), input_size=I).double() for _ in range(2)]
    x = random(2, T, B, I)
    together = Population(models)(x)[0]
    for place, model in enumerate(models):
        torch.testing.assert_close(together[place], model(x[place])[0], **SAME)


@pytest.mark.parametrize("make", [nn.RNN, nn.GRU, nn.LSTM])
def test_layers_of_torch(make):
    model, x = residual(make(H, H), input_size=I).double(), random(T, B, I)
    outputs, state = model(x)
    torch.testing.assert_close(outputs, by_hand(model, x), **SAME)
    last, carried = None, None
    for x_t in x:
        last, carried = model.step(x_t, carried)
    torch.testing.assert_close(last, outputs[-1], **SAME)
    for part, whole in zip(flat(carried), flat(state), strict=True):
        torch.testing.assert_close(part, whole, **SAME)
    flow = gradient_flow(model, x, random(T, B, O), nn.functional.mse_loss, layers="all")
    assert flow.shape == (2, T)


def test_both_directions_and_a_readout_at_the_last_step():
    layer = create("gru", 5, H, bidirectional=True)
    model, x = residual(layer, "last", num_layers=3).double(), random(T, B, 5)
    outputs, state = model(x, lengths=LENGTHS)
    assert state.shape == (6, B, H)
    for row, length in enumerate(LENGTHS.tolist()):
        torch.testing.assert_close(outputs[row], model(x[:length, row : row + 1])[0][0], **SAME)
    with pytest.raises(ValueError, match="runs one way"):
        model.step(x[0])


def test_the_first_block_holds_the_layer_and_the_others_new_weights():
    layer = create("sgornn", H, H)
    model = residual(layer, num_layers=3)
    first, second, third = model.layer.layers
    assert first is layer
    assert not torch.equal(first.weight_ih_l0, second.weight_ih_l0)
    assert not torch.equal(second.weight_ih_l0, third.weight_ih_l0)
    assert model.layer.encoder is None
    assert model.parameter_counts()["layer"] == sum(p.numel() for p in model.layer.parameters())


def test_dropout_is_of_what_a_block_adds():
    model, x = residual(RNN(400, 7), dropout=0.25, num_layers=1), torch.randn(1, 1, 400)
    stack = model.layer.train()
    added = (stack(x)[0] - x).flatten()
    plain = (stack.eval()(x)[0] - x).flatten()
    kept = added != 0
    assert abs((~kept).float().mean() - 0.25) < 0.1
    torch.testing.assert_close(added[kept], plain[kept] / 0.75, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("storage", [None, "bfloat16"])
def test_half_precision(storage):
    model, x = residual(create("lstm", H, H, storage=storage), input_size=I), torch.randn(T, B, I)
    plain = residual(create("lstm", H, H), input_size=I)
    plain.load_state_dict(model.state_dict())
    with torch.autocast("cpu", torch.bfloat16, enabled=storage is None):
        outputs = model(x)[0]
    torch.testing.assert_close(outputs.float(), plain(x)[0], atol=0.05, rtol=0.05)  # bfloat16: three digits


def test_bundle_pickle_and_new_weights(tmp_path):
    model, x = residual(create("scrn", H, H), input_size=I, dropout=0.1).eval(), torch.randn(T, B, I)
    evenflow.save(model, tmp_path / "bundle")
    loaded = evenflow.load(tmp_path / "bundle").model
    assert isinstance(loaded.layer, ResidualStack)
    for other in (loaded, pickle.loads(pickle.dumps(model))):
        assert torch.equal(other(x)[0], model(x)[0])


def test_a_model_is_drawn_anew_as_a_new_one_is():
    def made(seed):
        draw = torch.Generator().manual_seed(seed)
        layer = create("sgornn", H, H, generator=draw)
        return residual(layer, vocabulary=5, input_size=4, readout_units=7, generator=draw)

    model = made(0)
    model.reset_parameters(torch.Generator().manual_seed(1))
    for key, value in made(1).state_dict().items():
        assert torch.equal(model.state_dict()[key], value), key


def test_words_are_embedded_and_continued():
    model = SequenceModel(
        create("gru", H, H), 5, readout="every", vocabulary=5, input_size=4, block="residual", num_layers=2
    )
    assert model.embedding.weight.shape == (5, 4)
    prompt = torch.tensor([1, 2, 3])
    words = generate(model, prompt, 6, greedy=True)
    for step in range(6):
        seen = torch.cat([prompt, words[:step]]).unsqueeze(1)
        assert model(seen)[0][-1, 0].argmax() == words[step]


def test_probes():
    model, x = residual(RNN(H, H), "last", input_size=I).double(), random(T, B, I)
    flow = gradient_flow(model, x, random(B, O), nn.functional.mse_loss, layers="all")
    assert flow.shape == (2, T)
    assert (flow > 0).all()
    top = gradient_flow(model, x, random(B, O), nn.functional.mse_loss)
    assert top.shape == (T,)
    assert np.count_nonzero(flow[1][:-1]) == T - 1  # the gradient of the top block comes through its own recurrence
    memory = memory_length(model, x)
    gradient = torch.autograd.functional.jacobian(lambda x: model(x)[0].sum(0), x)  # (O, T, B, I)
    expected = gradient.square().sum((0, 3)).mean(1).sqrt().flip(0).numpy()
    np.testing.assert_allclose(memory.sensitivity, expected, rtol=1e-9)
    with pytest.raises(ValueError, match="without residual blocks"):
        temporal_components(model, x, random(B, O), nn.functional.mse_loss)
    with pytest.raises(ValueError, match="without residual blocks"):
        scalar_gate_gradients(residual(create("sgornn", H, H), "last", num_layers=1), torch.randn(T, B, H))


def test_tools_that_rewrite_models():
    model, x = residual(create("sgornn", H, H), input_size=I).eval(), torch.randn(T, B, I)
    traced = torch.fx.symbolic_trace(model, {"lengths": None})
    assert torch.equal(traced(x)[0], model(x)[0])
    program = torch.export.export(model, (x,)).run_decompositions(evenflow.export.decompositions())
    torch.testing.assert_close(program.module()(x)[0], model(x)[0])


@pytest.mark.parametrize("form", ["to_onnx", "to_c"])
def test_files_for_other_runtimes_are_refused(form, tmp_path):
    if form == "to_onnx":
        pytest.importorskip("onnx")
    path = tmp_path / ("model.onnx" if form == "to_onnx" else "model.c")
    with pytest.raises(ValueError, match="model must have no residual blocks"):
        getattr(evenflow.export, form)(residual(create("sgornn", H, H), input_size=I), path)
    assert not path.exists()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: SequenceModel(RNN(2, 4), 1, block="dense"), "block must be one of residual, got 'dense'"),
        (lambda: SequenceModel(RNN(2, 4), 1, num_layers=2), "must be left out without a block"),
        (lambda: residual(RNN(2, 4, num_layers=3)), "give num_layers=3 to the SequenceModel"),
        (lambda: residual(RNN(2, 4), num_layers=0), "num_layers must be a whole number of at least 1, got 0"),
        (lambda: residual(RNN(2, 4), input_size=0), "input_size must be a whole number of at least 1, got 0"),
        (lambda: residual(RNN(2, 4), dropout=1), "dropout must be"),
        (lambda: residual(RNN(2, 4), input_size=3)(torch.randn(5, 2, 2)), "3 numbers at each step, got (5, 2, 2)"),
        (lambda: residual(RNN(2, 4))(torch.randn(5, 2, 2), torch.zeros(1, 2, 4)), "state must have 2 as first"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(ValueError) as error:
        call()
    assert words in str(error.value)
