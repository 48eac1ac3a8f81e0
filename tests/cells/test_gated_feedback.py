"""Gated feedback: the equations written out, the stacks it contains, and every way torch.nn.RNN is called."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from evenflow import GRU, LSTM, GatedFeedbackRNN
from evenflow.cells import GatedFeedback

SAME = {"atol": 1e-11, "rtol": 1e-10}  # float64, the same sums in another order
HALF = {"atol": 0.1, "rtol": 0.1}  # bfloat16 inputs: three digits, and a recurrence on them
STEPS, BATCH, INPUT, HIDDEN, LAYERS = 7, 4, 3, 5, 3
LENGTHS = torch.tensor([3, 7, 1, 6])

units = pytest.mark.parametrize("unit", ["tanh", "gru", "lstm"])


def make(unit: str, **options: object) -> GatedFeedbackRNN:
    """A layer whose every weight matters."""
    layer = GatedFeedbackRNN(INPUT, HIDDEN, unit=unit, **{"dtype": torch.float64} | options)  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(std=0.5)
    return layer


def inputs(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def members(state: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (state,) if isinstance(state, Tensor) else state


def by_hand(layer: GatedFeedbackRNN, x: Tensor, state: tuple[Tensor, ...], unit: str) -> tuple[Tensor, list[Tensor]]:
    """The paper's equations, one layer, one gate and one matrix at a time."""

    def w(name: str, j: int) -> Tensor:
        return getattr(layer, f"{name}_l{j}")

    L = layer.num_layers
    h = list(state[0])
    c = list(state[1]) if unit == "lstm" else []
    outputs = []
    for x_t in x:
        before, below = list(h), x_t
        everything = torch.cat(before, -1)
        for j in range(L):
            feedback = torch.zeros_like(before[j])
            for i in range(L):
                U = w("weight_hh", j)[i * HIDDEN : (i + 1) * HIDDEN]
                gate = torch.sigmoid(below @ w("weight_ih_gate", j)[i] + everything @ w("weight_hh_gate", j)[i])
                feedback = feedback + gate[:, None] * (before[i] @ U.T)
            W, b = (w(name, j).chunk(layer.cell.blocks) for name in ("weight_ih", "bias"))
            into = [below @ W_k.T + b_k for W_k, b_k in zip(W, b, strict=True)]
            own = w("weight_hh_own", j).chunk(layer.cell.own) if unit != "tanh" else ()
            if unit == "tanh":
                h[j] = torch.tanh(into[0] + feedback)
            elif unit == "gru":
                r, z = (torch.sigmoid(a + before[j] @ U.T) for a, U in zip(into[:2], own, strict=True))
                n = torch.tanh(into[2] + r * (feedback + w("bias_hh_n", j)))
                h[j] = (1 - z) * n + z * before[j]
            else:
                i, f, o = (
                    torch.sigmoid(a + before[j] @ U.T) for a, U in zip((into[0], into[1], into[3]), own, strict=True)
                )
                c[j] = f * c[j] + i * torch.tanh(into[2] + feedback)
                h[j] = o * torch.tanh(c[j])
            below = h[j]
        outputs.append(h[-1])
    return torch.stack(outputs), [torch.stack(h), *([torch.stack(c)] if c else [])]


@units
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_is_the_equation(unit, layers):
    layer = make(unit, num_layers=layers)
    x = inputs(STEPS, BATCH, INPUT).requires_grad_()
    state = tuple(inputs(layers, BATCH, HIDDEN, seed=s).requires_grad_() for s in range(layer.cell.state_size))
    wanted = [x, *state, *layer.parameters()]
    seen = []
    for output, final in (layer(x, state), by_hand(layer, x, state, unit)):
        loss = output.sin().sum() + sum(member.cos().sum() for member in members(final))
        seen.append([output, *members(final), *torch.autograd.grad(loss, wanted)])
    for mine, theirs in zip(*seen, strict=True):
        torch.testing.assert_close(mine, theirs, **SAME)


class Separate(GatedFeedback):
    """Every layer fed by itself alone: gates at 1 for i = j and 0 otherwise."""

    def gates(self, into: Tensor, j: int) -> Tensor:
        return torch.eye(self.layers, dtype=into.dtype)[j].expand_as(into)


def stack(unit: str, ours: GatedFeedbackRNN, scale: float) -> nn.Module:
    """The plain stack with the layer's weights, its feedback from itself times `scale`."""
    kind = {"tanh": nn.RNN, "gru": GRU, "lstm": LSTM}[unit]
    theirs = kind(INPUT, HIDDEN, LAYERS, dtype=torch.float64)
    state = {}
    for j in range(LAYERS):
        self_fed = scale * ours.get_parameter(f"weight_hh_l{j}")[j * HIDDEN : (j + 1) * HIDDEN].detach()
        own = ours.get_parameter(f"weight_hh_own_l{j}").detach() if unit != "tanh" else None
        state[f"weight_ih_l{j}"] = ours.get_parameter(f"weight_ih_l{j}")
        if unit == "tanh":
            state[f"weight_hh_l{j}"] = self_fed
            state[f"bias_ih_l{j}"], state[f"bias_hh_l{j}"] = ours.get_parameter(f"bias_l{j}"), torch.zeros(HIDDEN)
        else:
            state[f"bias_l{j}"] = ours.get_parameter(f"bias_l{j}")
        if unit == "gru":
            state[f"weight_hh_l{j}"], state[f"weight_hh_n_l{j}"] = own, self_fed
            state[f"bias_hh_n_l{j}"] = ours.get_parameter(f"bias_hh_n_l{j}")
        if unit == "lstm":
            i, f, o = own.chunk(3)
            state[f"weight_hh_l{j}"] = torch.cat([i, f, self_fed, o])
    theirs.load_state_dict(state)
    return theirs


@units
def test_gates_that_let_only_the_own_layer_through_leave_the_plain_stack(unit):
    layer, x = make(unit), inputs(STEPS, BATCH, INPUT)
    layer.cell = Separate(unit, LAYERS)
    output, final = layer(x)
    expected, ends = stack(unit, layer, 1.0)(x)
    torch.testing.assert_close(output, expected, **SAME)
    for mine, theirs in zip(members(final), members(ends), strict=True):
        torch.testing.assert_close(mine, theirs, **SAME)


@units
def test_gates_without_weights_halve_the_feedback(unit):
    """The same limit without touching the cell: all gates at 1/2, and no matrix from another layer."""
    layer, x = make(unit), inputs(STEPS, BATCH, INPUT)
    with torch.no_grad():
        for j in range(LAYERS):
            for name in ("weight_ih_gate", "weight_hh_gate"):
                layer.get_parameter(f"{name}_l{j}").zero_()
            U = layer.get_parameter(f"weight_hh_l{j}").view(LAYERS, HIDDEN, HIDDEN)
            U[[i for i in range(LAYERS) if i != j]] = 0
    torch.testing.assert_close(layer(x)[0], stack(unit, layer, 0.5)(x)[0], **SAME)


def test_the_top_layer_speaks_to_the_first():
    """In a plain stack the state of the last layer never reaches the first."""
    layer, x = make("tanh"), torch.zeros(2, 1, INPUT, dtype=torch.float64)
    h0 = torch.zeros(LAYERS, 1, HIDDEN, dtype=torch.float64, requires_grad=True)
    _, h_1 = layer(x[:1], h0)
    (reached,) = torch.autograd.grad(h_1[0].sum(), h0)
    assert (reached[-1].abs() > 1e-6).all()


@units
def test_call_forms_agree(unit):
    layer, x = make(unit, initial_state="learned"), inputs(STEPS, BATCH, INPUT)
    whole, final = layer(x)
    assert whole.shape == (STEPS, BATCH, HIDDEN)
    assert all(member.shape == (LAYERS, BATCH, HIDDEN) for member in members(final))
    first = copy.deepcopy(layer)
    first.batch_first = True
    output, ends = first(x.transpose(0, 1))
    torch.testing.assert_close(output.transpose(0, 1), whole, **SAME)
    torch.testing.assert_close(members(ends)[0], members(final)[0], **SAME)
    packed, ends = layer(pack_padded_sequence(x, LENGTHS, enforce_sorted=False))
    padded, _ = pad_packed_sequence(packed)
    for b, length in enumerate(LENGTHS.tolist()):
        alone, alone_ends = layer(x[:length, b])
        torch.testing.assert_close(padded[:length, b], alone, **SAME)
        for together, single in zip(members(ends), members(alone_ends), strict=True):
            assert single.shape == (LAYERS, HIDDEN)
            torch.testing.assert_close(together[:, b], single, **SAME)


@units
def test_initial_state_given_zero_and_learned(unit):
    layer, x = make(unit, initial_state="learned"), inputs(STEPS, BATCH, INPUT)
    letters = "hc"[: layer.cell.state_size]
    learned = [torch.stack([layer.get_parameter(f"{s}0_l{j}") for j in range(LAYERS)]) for s in letters]
    given = tuple(member.detach().unsqueeze(1).expand(-1, BATCH, -1) for member in learned)
    output, _ = layer(x)
    torch.testing.assert_close(output, layer(x, given if unit == "lstm" else given[0])[0], **SAME)
    output.sum().backward()
    assert all((layer.get_parameter(f"{s}0_l{j}").grad != 0).all() for s in letters for j in range(LAYERS))
    layer.initial_state = "zero"
    zero = tuple(torch.zeros_like(member) for member in given)
    torch.testing.assert_close(layer(x)[0], layer(x, zero if unit == "lstm" else zero[0])[0], **SAME)


@units
def test_taps_are_the_gradients_by_every_state(unit):
    """A bump on the state of layer j at step t, finite differences against the tap's gradient."""
    layer, x, small = make(unit), inputs(STEPS, BATCH, INPUT), 1e-6
    with layer.taps() as taps:
        output, _ = layer(x)
    output.sin().sum().backward()
    assert [tap.shape for tap in taps] == [(STEPS, BATCH, HIDDEN)] * LAYERS
    layer.engine = "reference"  # a fused scan takes taps for the zeros that they are

    def bumped(j: int, t: int, size: float) -> Tensor:
        """The loss with `size` added to unit 2 of row 1 of layer j at step t."""
        with layer.taps() as zeros, torch.no_grad():
            layer._taps = Bumps(zeros, j, t, size)
            return layer(x)[0].sin().sum()

    for j in range(LAYERS):
        for t in (0, 3, STEPS - 1):
            slope = (bumped(j, t, small) - bumped(j, t, -small)) / (2 * small)
            torch.testing.assert_close(slope, taps[j].grad[t, 1, 2], atol=1e-8, rtol=1e-6)


class Bumps(list):
    """A list of taps that puts a number into one of them on the way in."""

    def __init__(self, taps: list[Tensor], layer: int, step: int, size: float) -> None:
        super().__init__(taps)
        self.at = (layer, step, size)

    def append(self, tap: Tensor) -> None:
        layer, step, size = self.at
        if len(self) == layer:
            tap.data[step, 1, 2] = size
        super().append(tap)


def test_dropout_on_the_way_up_only():
    x = torch.randn(STEPS, BATCH, INPUT)
    single = GatedFeedbackRNN(INPUT, HIDDEN, 1, dropout=0.5)
    assert torch.equal(single(x)[0], single(x)[0])
    layer = GatedFeedbackRNN(INPUT, HIDDEN, dropout=0.5)
    first, second = layer(x), layer(x)
    assert not torch.equal(first[0], second[0])
    # At the first step the lowest layer has seen no dropout: nothing came down yet, and nothing from below.
    one, two = layer(x[:1])[1], layer(x[:1])[1]
    assert torch.equal(one[0], two[0])
    assert not torch.equal(one[-1], two[-1])
    layer.eval()
    assert torch.equal(layer(x)[0], layer(x)[0])


def test_dropout_is_a_mask_on_what_goes_up_and_nothing_else():
    """All of it dropped, a layer above sees its bias and the states before; a factor of one changes nothing."""
    cell, layer = GatedFeedback("tanh", LAYERS), make("tanh")
    weights = cell.prepare({name: p.detach() for name, p in layer.named_parameters()})
    a, state = cell.project(inputs(BATCH, INPUT), weights), (inputs(BATCH, LAYERS * HIDDEN, seed=2),)
    (plain,) = cell.advance(a, state, weights)
    ones, zeros = a.new_ones(BATCH, (LAYERS - 1) * HIDDEN), a.new_zeros(BATCH, (LAYERS - 1) * HIDDEN)
    assert torch.equal(cell.advance(torch.cat([a, ones], -1), state, weights)[0], plain)
    (dropped,) = cell.advance(torch.cat([a, zeros], -1), state, weights)
    (elsewhere,) = cell.advance(torch.cat([a + 1, zeros], -1), state, weights)
    assert torch.equal(dropped[:, :HIDDEN], plain[:, :HIDDEN])
    assert not torch.equal(dropped[:, HIDDEN:], plain[:, HIDDEN:])
    assert torch.equal(dropped[:, HIDDEN:], elsewhere[:, HIDDEN:]), "the input reaches the first layer alone"


@units
def test_taps_and_dropout_together(unit):
    layer, x = make(unit, dropout=0.5), inputs(STEPS, BATCH, INPUT)
    torch.manual_seed(3)
    expected, _ = layer(x)
    torch.manual_seed(3)
    with layer.taps() as taps:
        output, _ = layer(x)
    assert torch.equal(output, expected)
    output.sum().backward()
    assert all(tap.grad.abs().sum() > 0 for tap in taps)


@units
def test_copies_autocast_and_compile(unit):
    layer = GatedFeedbackRNN(INPUT, HIDDEN, unit=unit, initial_state="learned")
    x = torch.randn(3, BATCH, INPUT)  # a compiled loop is as long as its steps
    expected, _ = layer(x)
    for twin in (pickle.loads(pickle.dumps(layer)), copy.deepcopy(layer)):
        assert torch.equal(twin(x)[0], expected)
    with torch.autocast("cpu", torch.bfloat16):
        output, _ = layer(x)
    torch.testing.assert_close(output.float(), expected, **HALF)
    torch.compiler.reset()
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x)[0], expected)


@units
@pytest.mark.parametrize("bias", [True, False])
def test_names_and_numbers(unit, bias):
    """Everything of the stack, and L - 1 more matrices and two rows of L gates for each layer."""
    I, H, L = 4, 6, 3
    layer = GatedFeedbackRNN(I, H, L, unit=unit, bias=bias)
    blocks = {"tanh": 1, "gru": 3, "lstm": 4}[unit]
    widths = [I, H, H]
    matrices = sum(blocks * H * (width + H) for width in widths) + L * (L - 1) * H * H
    gates = sum(L * (width + L * H) for width in widths)
    biases = L * (blocks + (unit == "gru")) * H if bias else 0
    assert sum(p.numel() for p in layer.parameters()) == matrices + gates + biases
    names = {name.rsplit("_l", 1)[0] for name, _ in layer.named_parameters()}
    assert {"weight_ih", "weight_hh", "weight_ih_gate", "weight_hh_gate"} <= names
    assert ("bias" in names) == bias
    assert layer(torch.randn(2, 3, I))[0].isfinite().all()


def test_the_forget_gate_starts_open():
    layer = GatedFeedbackRNN(INPUT, HIDDEN, unit="lstm", forget_bias=2.0)
    assert all((layer.get_parameter(f"bias_l{j}")[HIDDEN : 2 * HIDDEN] == 2).all() for j in range(LAYERS))


def test_same_generator_same_layer():
    first, second = (GatedFeedbackRNN(2, 4, generator=torch.Generator().manual_seed(5)) for _ in range(2))
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)


BAD = [
    (
        lambda: GatedFeedbackRNN(2, 4, bidirectional=True),
        "bidirectional must be False with gated feedback, where every layer needs the states of all layers one step "
        "before, got True",
    ),
    (lambda: GatedFeedbackRNN(2, 4, unit="relu"), "unit must be one of tanh, gru, lstm, got 'relu'"),
    (lambda: GatedFeedbackRNN(2, 4, num_layers=0), "num_layers must be a whole number of at least 1, got 0"),
    (
        lambda: GatedFeedbackRNN(2, 4, forget_bias=1.0),
        "forget_bias is a setting of unit='lstm' alone, got 1.0 with 'tanh'",
    ),
    (
        lambda: GatedFeedbackRNN(2, 4, map="exponential"),
        "GatedFeedback has no map on its gates, so map must be 'free', got 'exponential'",
    ),
    (
        lambda: GatedFeedbackRNN(2, 4, unit="lstm")(torch.randn(5, 2, 2), torch.randn(3, 2, 4)),
        "the initial state must be a pair (h0, c0), got 1 tensors",
    ),
    (
        lambda: GatedFeedbackRNN(2, 4)(torch.randn(5, 2, 2), torch.randn(1, 2, 4)),
        "h0 must have shape (3, 2, 4) for this input, got (1, 2, 4)",
    ),
]


@pytest.mark.parametrize(("call", "words"), BAD, ids=[words[:40] for _, words in BAD])
def test_bad_input_is_refused_in_one_sentence(call, words):
    with pytest.raises(ValueError) as error:
        call()
    assert str(error.value) == words
