"""A layer that keeps norms warns once if the carried state has grown a hundredfold; other layers never do."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch

from evenflow import RNNCell, create
from evenflow.layers.carried_norm import EVERY
from evenflow.systems import SYSTEMS

KEEPS = ["urnn", "ornn", "exprnn", "dtriv", "vprnn"]  # those of docs/concepts/gradients.md


def grow(layer, calls: int = 4 * EVERY, step: bool = False) -> list[str]:
    """Run a layer whose state is multiplied by 1.1 from call to call; the messages of warnings."""
    layer.eval()
    x = torch.rand(2, layer.input_size)
    with torch.no_grad(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        states = [torch.full((layer.num_layers, 2, size), 0.01) for size in layer.state_sizes]
        for call in range(calls):
            hx = [s * 1.1 ** min(call, 200) for s in states]
            given = tuple(hx) if len(hx) > 1 else hx[0]
            layer.step(x, given) if step else layer(x[None], given)
    return [str(w.message) for w in caught if "hundredfold" in str(w.message)]


@pytest.mark.parametrize("name", KEEPS)
@pytest.mark.parametrize("step", [False, True])
def test_growth_warns_once(name, step):
    layer = create(name, 3, 8)
    assert len(grow(layer, step=step)) == 1
    assert grow(layer, step=step) == []
    assert len(grow(copy.deepcopy(layer), step=step)) == 1


OTHERS = [name for name in SYSTEMS if name not in (*KEEPS, "scornn", "arjovsky-urnn", "full-urnn", "scurnn")]


@pytest.mark.parametrize("name", OTHERS)
def test_other_systems_do_not_warn(name):
    assert grow(create(name, 3, 8)) == []


def test_the_readmes_case():
    """Constant inputs in [0, 1] add up in batches that carry the state."""
    layer, state = create("urnn", 1, 64, generator=torch.Generator().manual_seed(0)), None
    x = torch.rand(10, 1, 1)

    def carry(state):
        for _ in range(40 * EVERY):
            _, state = layer(x, state)

    with torch.no_grad(), pytest.warns(UserWarning, match="hundredfold.*keeps the norm"):
        carry(state)


def test_a_bounded_activation_and_states_that_stay_do_not_warn():
    layer = create("urnn", 3, 8, activation="tanh")
    state = torch.full((1, 2, 8), 1e-6)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3 * EVERY):
            _, state = layer(torch.randn(5, 2, 3), state)
            layer.step(torch.randn(2, 3), state)


def test_cells_warn():
    cell = RNNCell(3, 8, map="exponential", activation="abs")

    def carry(h):
        for _ in range(20 * EVERY):
            h = cell(torch.rand(2, 3), h)

    with torch.no_grad(), pytest.warns(UserWarning, match="of this RNNCell keeps the norm"):
        carry(torch.full((2, 8), 1e-3))
