"""The layer contract: with a free map and copied weights, evenflow.RNN is torch.nn.RNN in every call form."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

import evenflow
from evenflow import LSTM, RNN, ScalarGatedRNN
from evenflow.maps import residual

SAME = {"atol": 1e-11, "rtol": 1e-10}  # float64, the same sums in another order
BATCH, STEPS, INPUT, HIDDEN = 5, 9, 3, 6
LENGTHS = torch.tensor([4, 9, 1, 9, 6])

LAYERS = {
    "rnn": lambda **o: RNN(INPUT, HIDDEN, **o),
    "rnn-exponential-abs": lambda **o: RNN(INPUT, HIDDEN, map="exponential", activation="abs", **o),
    "rnn-householder-oplu": lambda **o: RNN(INPUT, HIDDEN, map="householder", activation="oplu", **o),
    "scalar-gated": lambda **o: ScalarGatedRNN(INPUT, HIDDEN, map="exponential", gates="bounded", **o),
    "lstm": lambda **o: LSTM(INPUT, HIDDEN, **o),
}


def copied(ours: nn.Module, theirs: nn.Module) -> None:
    """Give `ours` the weights of torch's module; its two bias vectors become one."""
    state = theirs.state_dict()
    with torch.no_grad():
        for name in [name for name in state if not name.startswith("bias_hh")]:
            value = state[name]
            if name.startswith("bias_ih"):
                value = value + state[name.replace("bias_ih", "bias_hh")]
            getattr(ours, name.replace("bias_ih", "bias")).copy_(value)


def flat(result: tuple) -> list[Tensor]:
    output, state = result
    output = output.data if isinstance(output, PackedSequence) else output
    return [output, *([state] if isinstance(state, Tensor) else state)]


def gradients(layer: nn.Module, x: Tensor | PackedSequence, state) -> list[Tensor]:
    results = flat(layer(x, state))
    weights = [torch.linspace(-1, 2, r.numel(), dtype=r.dtype).reshape(r.shape) for r in results]
    sum((r * w).sum() for r, w in zip(results, weights, strict=True)).backward()
    return results


def call_forms(form: str, double: bool, layers: int, directions: int):
    """Input, its leaf and an initial state for one way of calling a layer."""
    torch.manual_seed(3)
    shape = {"unbatched": (STEPS, INPUT), "batch_first": (BATCH, STEPS, INPUT)}.get(form, (STEPS, BATCH, INPUT))
    leaf = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    x = pack_padded_sequence(leaf, LENGTHS, enforce_sorted=False) if form == "packed" else leaf
    members = (layers * directions, HIDDEN) if form == "unbatched" else (layers * directions, BATCH, HIDDEN)
    states = [torch.randn(members, dtype=torch.float64, requires_grad=True) for _ in range(2 if double else 1)]
    return leaf, x, states


@pytest.mark.parametrize("state", ["given", "zero"])
@pytest.mark.parametrize("form", ["time_first", "batch_first", "unbatched", "packed"])
@pytest.mark.parametrize(("layers", "bidirectional"), [(1, False), (2, False), (1, True), (2, True)])
@pytest.mark.parametrize("kind", ["tanh", "relu", "lstm"])
def test_equals_torch(kind, layers, bidirectional, form, state):
    options = {"num_layers": layers, "bidirectional": bidirectional, "batch_first": form == "batch_first"}
    options["dtype"] = torch.float64
    if kind == "lstm":
        theirs, ours = nn.LSTM(INPUT, HIDDEN, **options), LSTM(INPUT, HIDDEN, **options)
    else:
        theirs = nn.RNN(INPUT, HIDDEN, nonlinearity=kind, **options)
        ours = RNN(INPUT, HIDDEN, activation=kind, **options)
    copied(ours, theirs)
    seen = []
    for layer in (theirs, ours):
        leaf, x, states = call_forms(form, kind == "lstm", layers, 2 if bidirectional else 1)
        given = None if state == "zero" else tuple(states) if kind == "lstm" else states[0]
        results = gradients(layer, x, given)
        seen.append([*results, leaf.grad, *([] if given is None else [s.grad for s in states])])
    for expected, got in zip(*seen, strict=True):
        torch.testing.assert_close(got, expected, **SAME)
    for name, parameter in theirs.named_parameters():
        if not name.startswith("bias_hh"):
            torch.testing.assert_close(getattr(ours, name.replace("bias_ih", "bias")).grad, parameter.grad, **SAME)


def test_packed_output_keeps_the_packing():
    layer = RNN(INPUT, HIDDEN)
    packed = pack_padded_sequence(torch.randn(STEPS, BATCH, INPUT), LENGTHS, enforce_sorted=False)
    output, _ = layer(packed)
    for field in ("batch_sizes", "sorted_indices", "unsorted_indices"):
        assert torch.equal(getattr(output, field), getattr(packed, field))


@pytest.mark.parametrize("name", LAYERS)
def test_packed_equals_each_sequence_alone(name):
    layer = LAYERS[name](num_layers=2, bidirectional=True, dtype=torch.float64, initial_state="learned")
    x = torch.randn(STEPS, BATCH, INPUT, dtype=torch.float64)
    output, state = layer(pack_padded_sequence(x, LENGTHS, enforce_sorted=False))
    padded, _ = nn.utils.rnn.pad_packed_sequence(output)
    for b, length in enumerate(LENGTHS.tolist()):
        alone, alone_state = layer(x[:length, b])
        torch.testing.assert_close(padded[:length, b], alone, **SAME)
        for whole, one in zip(flat((alone, state))[1:], flat((alone, alone_state))[1:], strict=True):
            torch.testing.assert_close(whole[:, b], one, **SAME)


@pytest.mark.parametrize("name", LAYERS)
def test_pieces_with_carried_state_equal_the_whole(name):
    layer = LAYERS[name](num_layers=2, dtype=torch.float64)
    x = torch.randn(STEPS, BATCH, INPUT, dtype=torch.float64)
    whole, _ = layer(x)
    state, pieces = None, []
    for piece in x.split(4):
        output, state = layer(piece, state)
        pieces.append(output)
    torch.testing.assert_close(torch.cat(pieces), whole, **SAME)


@pytest.mark.parametrize("name", LAYERS)
def test_state_dict_round_trip(name):
    first, second = LAYERS[name](num_layers=2), LAYERS[name](num_layers=2)
    x = torch.randn(STEPS, BATCH, INPUT)
    assert not torch.equal(first(x)[0], second(x)[0])
    second.load_state_dict(first.state_dict())
    assert torch.equal(first(x)[0], second(x)[0])
    assert torch.equal(copy.deepcopy(first)(x)[0], first(x)[0])


@pytest.mark.parametrize("name", LAYERS)
def test_learned_initial_state_is_used_and_trained(name):
    layer = LAYERS[name](initial_state="learned")
    assert tuple(layer.h0_l0.shape) == (HIDDEN,)
    with torch.no_grad():
        layer.h0_l0.copy_(torch.linspace(-1, 1, HIDDEN))
    x = torch.randn(STEPS, BATCH, INPUT)
    output, _ = layer(x)
    given = layer.h0_l0.detach().expand(1, BATCH, HIDDEN)
    state = given if layer.cell.state_size == 1 else (given, torch.zeros(1, BATCH, HIDDEN))
    torch.testing.assert_close(output, layer(x, state)[0])
    output.sum().backward()
    assert layer.h0_l0.grad.abs().sum() > 0


@pytest.mark.parametrize("name", LAYERS)
def test_taps_are_the_gradients_by_every_state(name):
    """What the fused backward pass says of ∂L/∂h_t, the reference loop says too, in time order both ways."""
    layer = LAYERS[name](num_layers=2, bidirectional=True, dtype=torch.float64)
    packed = pack_padded_sequence(torch.randn(STEPS, BATCH, INPUT, dtype=torch.float64), LENGTHS, enforce_sorted=False)
    seen = []
    for engine in ("auto", "reference"):
        layer.engine = engine
        with layer.taps() as taps:
            output, _ = layer(packed)
        output.data.sin().sum().backward()
        seen.append([tap.grad for tap in taps])
    assert len(seen[0]) == 4
    for fused, loop in zip(*seen, strict=True):
        torch.testing.assert_close(fused, loop, **SAME)
    with layer.taps() as taps:
        pass
    assert taps == []


def test_dropout_between_layers_only():
    x = torch.randn(STEPS, BATCH, INPUT)
    torch.manual_seed(0)
    single = RNN(INPUT, HIDDEN, dropout=0.5)
    assert torch.equal(single(x)[0], single(x)[0])
    double = RNN(INPUT, HIDDEN, 2, dropout=0.5)
    assert not torch.equal(double(x)[0], double(x)[0])
    double.eval()
    assert torch.equal(double(x)[0], double(x)[0])


def test_assigning_a_matrix_sets_it():
    layer = RNN(INPUT, HIDDEN, map="exponential", dtype=torch.float64)
    rotation = torch.linalg.qr(torch.randn(HIDDEN, HIDDEN, dtype=torch.float64))[0]
    rotation[0] *= torch.linalg.det(rotation).sign()
    layer.weight_hh_l0 = rotation
    torch.testing.assert_close(layer.weight_hh_l0, rotation, atol=1e-10, rtol=0)


def test_the_matrix_is_built_once_per_call():
    layer = RNN(INPUT, HIDDEN, map="exponential")
    calls = []
    layer.parametrizations.weight_hh_l0[0].register_forward_hook(lambda *_: calls.append(1))
    layer(torch.randn(STEPS, BATCH, INPUT))
    assert len(calls) == 1


def test_same_generator_same_layer():
    layers = [RNN(2, 4, map="exponential", generator=torch.Generator().manual_seed(5)) for _ in range(2)]
    for a, b in zip(layers[0].parameters(), layers[1].parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", LAYERS)
def test_autocast_compile_and_hidden_size_one(name):
    layer = LAYERS[name]()
    x = torch.randn(STEPS, BATCH, INPUT)
    expected, _ = layer(x)
    with torch.autocast("cpu", torch.bfloat16):
        output, _ = layer(x)
    torch.testing.assert_close(output.float(), expected, atol=0.1, rtol=0.1)
    output.float().sum().backward()
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x)[0], expected)


@pytest.mark.parametrize("map", ["free", "exponential", "householder"])
def test_one_unit(map):
    output, _ = RNN(1, 1, map=map)(torch.randn(4, 2, 1))
    assert output.isfinite().all()


def test_empty_batch():
    output, h = RNN(INPUT, HIDDEN)(torch.randn(STEPS, 0, INPUT))
    assert output.shape == (STEPS, 0, HIDDEN)
    assert h.shape == (1, 0, HIDDEN)


@pytest.mark.parametrize("map", ["exponential", "householder"])
def test_orthogonal_layers_keep_the_norm(map):
    """With |x|, no input and an orthogonal matrix nothing grows or shrinks."""
    layer = RNN(1, 32, map=map, activation="abs", bias=False)
    h0 = torch.randn(1, 4, 32)
    output, _ = layer(torch.zeros(2000, 4, 1), h0)
    torch.testing.assert_close(output[-1].norm(dim=-1), h0[0].norm(dim=-1), rtol=1e-4, atol=0)
    assert residual(layer.weight_hh_l0) < 1e-5


BAD = [
    (lambda: RNN(0, 4), "input_size must be a whole number of at least 1, got 0"),
    (lambda: RNN(2, -1), "hidden_size"),
    (lambda: RNN(2, 2.5), "hidden_size"),
    (lambda: RNN(2, 4, num_layers=0), "num_layers"),
    (lambda: RNN(2, 4, dropout=1.0), "dropout must be at least 0 and below 1, got 1.0"),
    (lambda: RNN(2, 4, initial_state="random"), "initial_state must be one of zero, learned, got 'random'"),
    (lambda: RNN(2, 4, engine="warp"), "engine"),
    (lambda: RNN(2, 4, activation="rellu"), "did you mean 'relu'"),
    (lambda: RNN(2, 4, activation="relu(2)"), "takes no number"),
    (lambda: RNN(2, 4, map="exponentail"), "exponential"),
    (lambda: RNN(2, 4, map="householder", reflectors=9), "reflectors"),
    (lambda: RNN(2, 4, map="exponential", reflectors=2), "no option 'reflectors'"),
    (lambda: RNN(2, 5, activation="oplu"), "hidden_size must be even, got 5"),
    (lambda: RNN(2, 5, map="rotations"), "even"),
    (lambda: LSTM(2, 4, map="exponential"), "map must be 'free'"),
    (lambda: ScalarGatedRNN(2, 4, gates="open"), "gates must be one of free, bounded, got 'open'"),
    (lambda: ScalarGatedRNN(2, 4, gates="bounded", alpha=0.6), "alpha must lie between 0 and 0.5"),
    (lambda: ScalarGatedRNN(2, 4, gates="bounded", alpha=0.3, beta=0.9), "beta must be at most 1 - 2 alpha = 0.4"),
    (lambda: RNN(2, 4)(torch.randn(5, 3, 3)), "I = 2, got (5, 3, 3)"),
    (lambda: RNN(2, 4)(torch.randn(2)), "input must be"),
    (lambda: RNN(2, 4)(torch.randn(0, 3, 2)), "at least one time step"),
    (lambda: RNN(2, 4)(torch.ones(5, 3, 2, dtype=torch.long)), "floating point"),
    (lambda: RNN(2, 4)(torch.randn(5, 3, 2), torch.randn(1, 2, 4)), "h0 must have shape (1, 3, 4)"),
    (lambda: RNN(2, 4)(torch.randn(5, 2), torch.randn(1, 1, 4)), "h0 must have shape (1, 4)"),
    (lambda: LSTM(2, 4)(torch.randn(5, 3, 2), torch.randn(1, 3, 4)), "a pair (h0, c0)"),
    (
        lambda: RNN(2, 4)(pack_padded_sequence(torch.randn(5, 3, 7), torch.tensor([5, 4, 1]))),
        "packed input must hold 2 numbers a step",
    ),
]


@pytest.mark.parametrize(("call", "words"), BAD, ids=[words[:40] for _, words in BAD])
def test_bad_input_is_refused_in_one_sentence(call, words):
    with pytest.raises(ValueError) as error:
        call()
    message = str(error.value)
    assert words in message
    assert "\n" not in message


def test_public_names():
    for name in evenflow.__all__:
        if name != "fit":
            assert getattr(evenflow, name) is not None
    with pytest.raises(AttributeError):
        _ = evenflow.nonsense


def test_every_registered_map_makes_a_layer():
    for (name, kind), activation in itertools.product(evenflow.maps.MAPS.items(), ["relu", "oplu"]):
        try:
            sample = kind(8)
            real = not sample(*sample.start()).is_complex()
        except TypeError:
            continue
        if real:
            output, _ = RNN(2, 8, map=name, activation=activation)(torch.randn(5, 3, 2))
            assert output.isfinite().all(), name
