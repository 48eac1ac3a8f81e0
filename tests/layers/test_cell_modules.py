"""Cells as modules: torch's cells in signature, names and numbers, and layers cut into steps."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

import evenflow
from evenflow import GRUCell, LSTMCell, Recurrent, RecurrentCell, RNNCell, create
from evenflow.maps import Map
from evenflow.systems import SYSTEMS

T, B, I, H = 5, 3, 4, 6
SAME = {"atol": 1e-11, "rtol": 1e-9}  # float64, the same sums in another order
PAIRS = {
    "tanh": (RNNCell, nn.RNNCell, {}),
    "relu": (RNNCell, nn.RNNCell, {"nonlinearity": "relu"}),
    "gru": (GRUCell, nn.GRUCell, {}),
    "lstm": (LSTMCell, nn.LSTMCell, {}),
}
# Layers of one cell and one map; gated feedback runs through several layers in one step.
CUT = [name for name in SYSTEMS if name not in ("esn", "gated-feedback")]


def listed(state: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return state if isinstance(state, tuple) else (state,)


def zeros(cell: RecurrentCell, *lead: int) -> Tensor | tuple[Tensor, ...]:
    states = tuple(torch.zeros(*lead, size, dtype=torch.float64) for size in cell.state_sizes)
    return states if len(states) > 1 else states[0]


def same_cell(layer: Recurrent) -> RecurrentCell:
    """The cell of a layer, with its weights."""

    def again(chain: nn.Module) -> Callable[[int], Map]:
        return lambda size: copy.deepcopy(chain[0])

    chains = getattr(layer, "parametrizations", {}).items()
    maps = {name.removesuffix("_l0"): again(chain) for name, chain in chains}
    cell = RecurrentCell(layer.cell, I, H, layer.bias, map=maps or "free", dtype=torch.float64)
    cell.load_state_dict({key.replace("_l0", ""): value for key, value in layer.state_dict().items()})
    return cell


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", PAIRS)
def test_equals_torch(kind, bias):
    ours, theirs, options = PAIRS[kind]
    theirs = theirs(I, H, bias, **options, dtype=torch.float64)
    ours = ours(I, H, bias, **options, dtype=torch.float64)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(T, B, I, dtype=torch.float64)
    gradients = []
    for cell in (ours, theirs):
        leaf, state = x.clone().requires_grad_(), None
        for x_t in leaf:
            state = cell(x_t, state)
        loss = sum((s * torch.arange(1.0, H + 1)).sum() for s in listed(state))
        gradients.append((*listed(state), *torch.autograd.grad(loss, (leaf, cell.weight_ih))))
    for found, wanted in zip(*gradients, strict=True):
        torch.testing.assert_close(found, wanted, **SAME)
    with torch.no_grad():
        again = ours(x[0], ours(x[1]))
        for found, wanted in zip(listed(again), listed(theirs(x[0], theirs(x[1]))), strict=True):
            torch.testing.assert_close(found, wanted, **SAME)
        one = ours(x[0, 0], ours(x[1, 0]))
        for found, wanted in zip(listed(one), listed(again), strict=True):
            torch.testing.assert_close(found, wanted[0], **SAME)


@pytest.mark.parametrize("kind", PAIRS)
def test_arguments_stand_where_torch_has_them(kind):
    ours, theirs, _ = PAIRS[kind]
    given = list(inspect.signature(theirs).parameters)
    assert list(inspect.signature(ours).parameters)[: len(given)] == given


@pytest.mark.parametrize("name", CUT)
def test_a_loop_is_the_layer(name):
    layer = create(name, I, H, dtype=torch.float64)
    cell = same_cell(layer)
    x = torch.randn(T, B, I, dtype=torch.float64)
    output, last = layer(x)
    states = []
    state = zeros(cell, B)
    for x_t in x:
        state = cell(x_t, state)
        states.append(listed(state)[0])
    torch.testing.assert_close(torch.stack(states), output, **SAME)
    for found, wanted in zip(listed(state), listed(last), strict=True):
        torch.testing.assert_close(found, wanted[0], **SAME)
    names = [key for key, _ in layer.named_parameters()]
    assert [key for key, _ in cell.named_parameters()] == [key.replace("_l0", "") for key in names]
    wanted = torch.autograd.grad(output.square().sum(), layer.parameters(), allow_unused=True)
    found = torch.autograd.grad(torch.stack(states).square().sum(), cell.parameters(), allow_unused=True)
    for key, ours, theirs in zip(names, found, wanted, strict=True):
        assert (ours is None) == (theirs is None), key
        if ours is not None:
            torch.testing.assert_close(ours, theirs, atol=1e-9, rtol=1e-7)
    with torch.no_grad():
        state = zeros(cell, B)
        for t, x_t in enumerate(x):
            state = cell(x_t, state)
            torch.testing.assert_close(listed(state)[0], output[t], **SAME)


def test_second_derivatives():
    cell = GRUCell(2, 3, dtype=torch.float64)
    x, h = (torch.randn(2, n, dtype=torch.float64, requires_grad=True) for n in (2, 3))
    assert torch.autograd.gradcheck(cell, (x, h))
    assert torch.autograd.gradgradcheck(cell, (x, h))


def test_a_mapped_cell_takes_torchs_matrix_through_its_map():
    cell = RNNCell(I, H, False, map="exponential")
    theirs = nn.RNNCell(I, H, False)
    nn.init.orthogonal_(theirs.weight_hh)
    if torch.linalg.det(theirs.weight_hh) < 0:
        with torch.no_grad():
            theirs.weight_hh[0].neg_()
    cell.load_state_dict(theirs.state_dict())
    torch.testing.assert_close(cell.weight_hh, theirs.weight_hh, atol=1e-5, rtol=1e-5)


def test_copies_and_repr():
    cell, x = GRUCell(I, H, map="cayley"), torch.randn(B, I)
    with torch.no_grad():
        wanted = cell(x, cell(x))
        for other in (copy.deepcopy(cell), pickle.loads(pickle.dumps(cell))):
            assert torch.equal(other(x, other(x)), wanted)
    assert repr(RNNCell(I, H, nonlinearity="relu")) == "RNNCell(4, 6, activation='relu')"


def test_the_matrix_is_computed_once_inside_cached(monkeypatch):
    cell = RNNCell(I, H, map="exponential")
    calls = []
    plain = evenflow.maps.Map.compute
    monkeypatch.setattr(evenflow.maps.Map, "compute", lambda *args: calls.append(1) or plain(*args))
    h = torch.zeros(B, H)
    with parametrize.cached():
        for x_t in torch.randn(T, B, I):
            h = cell(x_t, h)
    h.sum().backward()
    assert len(calls) == 1


def test_hooks_of_a_cell_run():
    cell, seen = RNNCell(I, H), []
    cell.register_forward_hook(lambda _, inputs, output: seen.append(output))
    with torch.no_grad():
        h = cell(torch.randn(B, I), torch.zeros(B, H))
    assert seen[0] is h


def test_step_is_the_same_with_an_output():
    cell, x = LSTMCell(I, H), torch.randn(B, I)
    state = (torch.randn(B, H), torch.randn(B, H))
    output, (h, c) = cell.step(x, state)
    assert torch.equal(output, h)
    assert all(torch.equal(a, b) for a, b in zip((h, c), cell(x, state), strict=True))


@pytest.mark.parametrize("option", ["num_layers", "bidirectional", "batch_first", "recurrent_dropout"])
def test_options_of_layers_are_refused(option):
    with pytest.raises(ValueError, match=f"GRUCell is one step of one layer and has no option '{option}'"):
        GRUCell(I, H, **{option: 1})


def test_bad_input_is_named():
    cell = RNNCell(I, H)
    for mode in (torch.no_grad, torch.enable_grad):
        with mode():
            with pytest.raises(
                ValueError, match=r"input must be one step, \(B, I\) or \(I\) with I = 4, got \(2, 3, 4\)"
            ):
                cell(torch.randn(2, 3, 4))
            with pytest.raises(ValueError, match=r"h0 must have shape"):
                cell(torch.randn(B, I), torch.zeros(2, H))
            with pytest.raises(ValueError, match="initial state must be a pair"):
                LSTMCell(I, H)(torch.randn(B, I), torch.zeros(B, H))
