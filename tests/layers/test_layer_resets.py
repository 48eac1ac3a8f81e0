"""Resets inside a batch: outputs, final states and all gradients are those of the pieces, run one by one."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from evenflow import GRU, LSTM, RNN, SCRN, GatedFeedbackRNN, SequenceModel, create, systems
from evenflow.layers import layer_graphs
from evenflow.layers.recurrent import Recurrent
from evenflow.models.population import Population

SAME = {"atol": 1e-10, "rtol": 1e-10}  # float64, the same sums in another order
SINGLE = {"atol": 1e-5, "rtol": 1e-5}
STEPS, BATCH = 9, 4
LENGTHS = torch.tensor([4, 9, 1, 6])

LAYERS: dict[str, Any] = {
    "rnn": lambda **o: RNN(3, 6, map="exponential", activation="modrelu", **o),
    "gru": lambda **o: GRU(3, 6, map="cayley", **o),
    "lstm": lambda **o: LSTM(3, 6, form="1997", **o),
    "projected lstm": lambda **o: LSTM(3, 6, proj_size=4, **o),
    "gated feedback": lambda **o: GatedFeedbackRNN(3, 6, 2, unit="lstm", **o),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "two layers, both ways": {"num_layers": 2, "bidirectional": True},
    "learned start": {"initial_state": "learned"},
    "learned start, both ways": {"initial_state": "learned", "bidirectional": True},
    "torch": {"engine": "torch"},
    "torch, learned start": {"engine": "torch", "initial_state": "learned"},
    "reference": {"engine": "reference"},
    "pieces saved": {"checkpoint_every": 4},
    "pieces saved, learned start": {"checkpoint_every": 4, "initial_state": "learned"},
    "states saved": {"checkpoint_every": 1},
    "states saved, learned start": {"checkpoint_every": 1, "initial_state": "learned"},
}


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def mask(*shape: int) -> Tensor:
    """A third of all steps; the first row begins with a reset and the last row has none."""
    resets = torch.rand(*shape, generator=torch.Generator().manual_seed(5)) < 0.3
    resets[0, 0], resets[:, -1] = True, False
    return resets


def moved(layer: Recurrent) -> Recurrent:
    """The layer in float64 with no weight at zero, where it would do nothing."""
    layer = layer.double()
    with torch.no_grad():
        for n, p in enumerate(layer.parameters()):
            p.add_(0.1 * normal(*p.shape, seed=n))
    return layer


def start(layer: Recurrent) -> tuple[Tensor, ...]:
    return tuple(normal(len(layer.suffixes), BATCH, size, seed=20 + i) for i, size in enumerate(layer.state_sizes))


def by_pieces(layer: Recurrent, x: Tensor, hx: tuple[Tensor, ...], resets: Tensor, lengths: Tensor) -> list[Tensor]:
    """Every piece of every row by a call of its own: outputs ``(T, B, ·)`` with zeros after the end, final states."""
    reverse = torch.tensor([name.endswith("_reverse") for name in layer.suffixes]).view(-1, 1, 1)
    fresh = [torch.zeros_like(s[:, :1]) for s in hx]
    if layer.initial_state == "learned":
        names = layer.cell.states
        fresh = [torch.stack([getattr(layer, f"{n}0{s}") for s in layer.suffixes]).unsqueeze(1) for n in names]
    outputs, finals = [], []
    for b, length in enumerate(lengths.tolist()):
        bounds = [0, *(t for t in range(1, length) if resets[t, b]), length]
        pieces, ends = [], []
        for low, high in pairwise(bounds):
            goes_on = torch.where(reverse, high == length, low == 0 and not bool(resets[0, b]))
            first = tuple(torch.where(goes_on, s[:, b : b + 1], f) for s, f in zip(hx, fresh, strict=True))
            output, final = layer(x[low:high, b : b + 1], first if len(first) > 1 else first[0])
            pieces.append(output)
            ends.append(final if isinstance(final, tuple) else (final,))
        row = torch.cat(pieces)
        outputs.append(torch.nn.functional.pad(row, (0, 0, 0, 0, 0, len(x) - length)))
        finals.append([torch.where(reverse, s[0], s[-1]) for s in zip(*ends, strict=True)])
    return [torch.cat(outputs, 1), *(torch.cat(member, 1) for member in zip(*finals, strict=True))]


def whole(layer: Recurrent, x: Tensor, hx: tuple[Tensor, ...], resets: Tensor, lengths: Tensor | None) -> list[Tensor]:
    """One call with resets, in the form of `by_pieces`."""
    start = hx if len(hx) > 1 else hx[0]
    if lengths is None:
        output, final = layer(x, start, resets)
    else:
        packed = pack_padded_sequence(x, lengths, enforce_sorted=False)
        found, final = layer(packed, start, pack_padded_sequence(resets, lengths, enforce_sorted=False))
        output, _ = torch.nn.utils.rnn.pad_packed_sequence(found, total_length=len(x))
    return [output, *(final if isinstance(final, tuple) else (final,))]


def check(layer: Recurrent, lengths: Tensor | None = None) -> None:
    x, resets, hx = normal(STEPS, BATCH, 3, seed=1), mask(STEPS, BATCH), start(layer)
    results = []
    for run in (whole, by_pieces):
        leaves = [x, *hx, *layer.parameters()]
        for leaf in leaves[: 1 + len(hx)]:
            leaf.requires_grad_()
        ends = torch.full((BATCH,), STEPS) if lengths is None and run is by_pieces else lengths
        values = run(layer, x, hx, resets, ends)
        loss = torch.stack([(v * normal(*v.shape, seed=9 + i)).sum() for i, v in enumerate(values)]).sum()
        found = torch.autograd.grad(loss, [v for v in leaves if v.requires_grad], materialize_grads=True)
        results.append([*(v.detach() for v in values), *found])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, **SAME)


@pytest.mark.parametrize("name", systems())
def test_every_system(name: str) -> None:
    check(moved(create(name, 3, 6)))


@pytest.mark.parametrize("option", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("name", LAYERS)
def test_options(name: str, option: dict[str, Any]) -> None:
    if name == "gated feedback" and "bidirectional" in option:
        pytest.skip("gated feedback runs one way")
    check(moved(LAYERS[name](**option)))


@pytest.mark.parametrize("kind", [RNN, GRU, LSTM])
def test_regularised_layers(kind: Any) -> None:
    check(moved(kind(3, 6, layer_norm=True, zoneout=0.2).eval()))
    layer = moved(kind(3, 6, recurrent_dropout=0.5, zoneout=0.2))
    x, resets = normal(STEPS, BATCH, 3), mask(STEPS, BATCH)
    found = []
    for layer.engine in ("auto", "torch", "reference"):
        torch.manual_seed(1)
        found.append(layer(x, None, resets)[0])
    torch.testing.assert_close(found[0], found[2], **SAME)
    torch.testing.assert_close(found[1], found[2], **SAME)


@pytest.mark.parametrize("option", ["two layers, both ways", "pieces saved", "states saved", "torch"])
@pytest.mark.parametrize("name", LAYERS)
def test_rows_of_several_lengths(name: str, option: str) -> None:
    if name == "gated feedback" and "both ways" in option:
        pytest.skip("gated feedback runs one way")
    check(moved(LAYERS[name](**OPTIONS[option])), LENGTHS)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_forms_of_the_input(bidirectional: bool) -> None:
    layer = moved(GRU(3, 6, bidirectional=bidirectional))
    x, resets = normal(STEPS, BATCH, 3), mask(STEPS, BATCH)
    expected, h_n = layer(x, None, resets)
    one, last = layer(x[:, 0], None, resets[:, 0])
    torch.testing.assert_close(one, expected[:, 0], **SAME)
    torch.testing.assert_close(last, h_n[:, 0], **SAME)
    layer.batch_first = True
    first, last = layer(x.transpose(0, 1), None, resets.T)
    torch.testing.assert_close(first.transpose(0, 1), expected, **SAME)
    torch.testing.assert_close(last, h_n, **SAME)


@pytest.mark.parametrize("kind", [RNN, SCRN])
def test_no_reset_changes_nothing(kind: Any) -> None:
    layer = kind(3, 6)
    x = torch.randn(STEPS, BATCH, 3)
    assert torch.equal(layer(x, None, torch.zeros(STEPS, BATCH, dtype=torch.bool))[0], layer(x)[0])


@pytest.mark.parametrize("engine", ["auto", "torch", "reference"])
def test_no_gradient_passes_a_reset(engine: str) -> None:
    layer = LSTM(3, 6, engine=engine)
    x = torch.randn(STEPS, BATCH, 3, requires_grad=True)
    hx = tuple(torch.randn(1, BATCH, 6, requires_grad=True) for _ in range(2))
    resets = torch.zeros(STEPS, BATCH, dtype=torch.bool)
    resets[5, 1], resets[0, 2] = True, True
    with layer.taps() as taps:
        output, _ = layer(x, hx, resets)
    output[-1].sum().backward()
    reached = taps[0].grad.abs().sum(-1) > 0
    expected = torch.ones(STEPS, BATCH, dtype=torch.bool)
    expected[:5, 1] = False
    assert torch.equal(reached, expected)
    for leaf in (*hx, x):
        assert ((leaf.grad[0].abs().sum(-1) > 0) == torch.tensor([True, False, leaf is x, True])).all()


def test_half_precision_storage() -> None:
    layer = GRU(3, 16, storage="bfloat16")
    x, resets = torch.randn(STEPS, BATCH, 3), mask(STEPS, BATCH)
    found, final = layer(x, None, resets)
    layer.storage = None
    expected, h_n = layer(x, None, resets)
    torch.testing.assert_close(found.float(), expected, atol=0.02, rtol=0.02)
    torch.testing.assert_close(final, h_n, atol=0.02, rtol=0.02)


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_second_derivatives(name: str, learned: bool) -> None:
    layer = moved(LAYERS[name](initial_state="learned" if learned else "zero"))
    x, resets = normal(4, 2, 3).requires_grad_(), mask(4, 2)
    results = []
    for engine in ("auto", "reference"):
        layer.engine = engine
        leaves = [x, *layer.parameters()]
        grads = torch.autograd.grad(
            layer(x, None, resets)[0].sin().sum(), leaves, create_graph=True, materialize_grads=True
        )
        squares = torch.stack([g.square().sum() for g in grads]).sum()
        results.append(torch.autograd.grad(squares, leaves, materialize_grads=True))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, **SAME)


def test_a_compiled_layer() -> None:
    layer = moved(GRU(3, 6, initial_state="learned", bidirectional=True))
    x, resets = normal(STEPS, BATCH, 3).requires_grad_(), mask(STEPS, BATCH)
    compiled = torch.compile(lambda x, resets: layer(x, None, resets)[0], backend="aot_eager", fullgraph=True)
    (found, one), (expected, other) = (
        (y, torch.autograd.grad(y.sin().sum(), [x, *layer.parameters()]))
        for y in (compiled(x, resets), layer(x, None, resets)[0])
    )
    for a, b in zip((found, *one), (expected, *other), strict=True):
        torch.testing.assert_close(a, b, **SAME)


def test_an_exported_layer() -> None:
    layer = moved(LSTM(3, 6))
    x, resets = normal(STEPS, BATCH, 3), mask(STEPS, BATCH)
    exported = torch.export.export(layer, (x, None, resets)).module()
    torch.testing.assert_close(exported(x, None, resets)[0], layer(x, None, resets)[0], **SAME)


@pytest.mark.filterwarnings("ignore:evenflow runs a recurrence in its plain loop")
@pytest.mark.parametrize("learned", [False, True])
def test_vmap_and_functional_gradients(learned: bool) -> None:
    """Under `torch.vmap` the fused scan runs, under other transforms the loop."""
    layer = moved(GRU(3, 6, initial_state="learned" if learned else "zero"))
    x, resets = normal(5, STEPS, BATCH, 3), mask(STEPS * 5, BATCH).view(5, STEPS, BATCH)
    for each, dims in ((resets, (0, 0)), (resets[1], (0, None))):
        found = torch.vmap(lambda x, r: layer(x, None, r)[0], in_dims=dims)(x, each)
        expected = [layer(x[i], None, resets[i if each is resets else 1])[0] for i in range(5)]
        torch.testing.assert_close(found, torch.stack(expected), **SAME)
    one = torch.func.grad(lambda x: layer(x, None, resets[0])[0].sin().sum())(x[0])
    leaf = x[0].clone().requires_grad_()
    layer(leaf, None, resets[0])[0].sin().sum().backward()
    torch.testing.assert_close(one, leaf.grad, **SAME)


def test_a_population() -> None:
    models = [SequenceModel(GRU(3, 6), 2, readout="every") for _ in range(3)]
    x, resets = torch.randn(3, STEPS, BATCH, 3), mask(STEPS * 3, BATCH).view(3, STEPS, BATCH)
    outputs, _ = Population(models)(x, resets=resets)
    for model, each, own, found in zip(models, x, resets, outputs, strict=True):
        torch.testing.assert_close(found, model(each, resets=own)[0], **SINGLE)


def test_a_sequence_model() -> None:
    model = SequenceModel(RNN(3, 64, activation="identity", map="rotations"), 2)  # its last state has a way of its own
    x, resets = torch.randn(100, BATCH, 3), mask(100, BATCH)
    outputs, state = model(x, resets=resets)
    h, h_n = model.layer(x, None, resets)
    torch.testing.assert_close(outputs, model.read(h[-1]), **SINGLE)
    torch.testing.assert_close(state, h_n, **SINGLE)
    lengths = torch.tensor([100, 7, 50, 99])
    ragged, _ = model(x, lengths=lengths, resets=resets)
    padded, _ = model(x, lengths=lengths, resets=resets, padded=True)
    torch.testing.assert_close(ragged, padded, **SINGLE)
    for options in ({}, {"lengths": lengths}):
        with pytest.raises(ValueError, match=r"resets must have shape \(100, 4\) for this input, got \(99, 4\)"):
            model(x, resets=resets[1:], **options)


@pytest.mark.parametrize("initial_state", ["zero", "learned"])
def test_a_recorded_run_knows_the_state_before_each_step(initial_state: str) -> None:
    layer = moved(RNN(3, 6, activation="tanh", initial_state=initial_state, bidirectional=True))
    x, resets = normal(STEPS, BATCH, 3), mask(STEPS, BATCH)
    with layer.record_runs() as runs:
        layer(x, None, resets)
    for run in runs:
        torch.testing.assert_close(run.step(run.weights(), run.x, run.previous()), run.states, **SAME)


def test_a_captured_pass_copies_the_resets(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mask is one of the inputs that a replay copies, and not a setting of the capture."""
    layer, seen = moved(GRU(3, 6)), []
    monkeypatch.setattr(
        layer_graphs, "replay", lambda layer, size, inputs, settings, *rest: seen.append((inputs, settings))
    )
    x, hx, resets = normal(STEPS, BATCH, 3), normal(1, BATCH, 6), mask(STEPS, BATCH)
    for given in (resets, ~resets, None):
        assert layer_graphs.replay_layer(layer, x, hx, given) is None
    (one, settings), (other, same), (_, without) = seen
    assert one[-1] is resets
    assert torch.equal(other[-1], ~resets)
    assert settings == same != without
    found = layer_graphs.run_with_weights(layer, 3, 0, *one, *layer.parameters())
    torch.testing.assert_close(found, layer(x, hx, resets), **SAME)


@pytest.mark.parametrize(
    ("resets", "message"),
    [
        (torch.zeros(BATCH, STEPS, dtype=torch.bool), r"resets must have shape \(9, 4\) for this input, got \(4, 9\)"),
        (torch.zeros(STEPS, BATCH), r"resets must be a tensor of Booleans \(torch.bool\), got torch.float32"),
        ([True], "resets must be a tensor of Booleans .* got list"),
        (torch.zeros(STEPS, BATCH, dtype=torch.bool, device="meta"), "resets must be on cpu as the input is, got meta"),
        (
            pack_padded_sequence(torch.zeros(STEPS, BATCH, dtype=torch.bool), LENGTHS, enforce_sorted=False),
            "resets must have shape .* got a PackedSequence",
        ),
    ],
)
def test_refuses_other_masks(resets: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GRU(3, 6)(torch.randn(STEPS, BATCH, 3), None, resets)


def test_refuses_a_mask_that_is_packed_otherwise() -> None:
    packed = pack_padded_sequence(torch.randn(STEPS, BATCH, 3), LENGTHS, enforce_sorted=False)
    resets = torch.zeros(STEPS, BATCH, dtype=torch.bool)
    masks: list[Tensor | PackedSequence] = [resets, pack_padded_sequence(resets, LENGTHS.flip(0), enforce_sorted=False)]
    masks.append(pack_padded_sequence(resets, LENGTHS - LENGTHS // 4, enforce_sorted=False))
    for each in masks:
        with pytest.raises(
            ValueError, match="resets must be a PackedSequence of a Boolean a step, packed as the input"
        ):
            GRU(3, 6)(packed, None, each)
