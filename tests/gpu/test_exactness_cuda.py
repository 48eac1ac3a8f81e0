"""Whole layers over 784 steps on a GPU: within 1e-5 of the plain loop in double precision, and the same bits each time.

With tanh, which has no kink: at one, two precisions may take different sides, and no way to compute brings them
together again. `test_recurrence_cuda.py` has every activation, back from the same states.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from evenflow import create
from evenflow.layers.named import GRU, LSTM, RNN, ScalarGatedRNN

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

CLOSE = 1e-5  # ‖difference‖ / ‖reference‖
STEPS, BATCH, HIDDEN = 784, 50, 128
MAPS: dict[str, dict[str, Any]] = {
    "exponential": {},
    "householder": {"reflectors": 16},
    "svd": {"reflectors": (16, 16)},
    "rotations": {},
}
LAYERS: dict[str, Callable[[], nn.Module]] = {
    f"{kind.__name__} {name}": partial(kind, 2, HIDDEN, map=name, activation="tanh", **options)
    for kind in (RNN, ScalarGatedRNN)
    for name, options in MAPS.items()
}
LAYERS |= {
    "GRU": partial(GRU, 2, HIDDEN),
    "GRU 256": partial(GRU, 2, 256),
    "ugru": partial(create, "ugru", 2, HIDDEN),
    "LSTM": partial(LSTM, 2, HIDDEN),
    "LSTM 256": partial(LSTM, 2, 256),
    "LSTM peephole": partial(LSTM, 2, HIDDEN, form="peephole"),
}


def made(name: str) -> tuple[nn.Module, Tensor, Tensor]:
    """A layer none of whose weights is zero throughout, an input and a gradient of its output."""
    torch.manual_seed(0)
    layer = LAYERS[name]().cuda()
    with torch.no_grad():
        for weight in layer.parameters():
            if not weight.any():
                weight.normal_(0, 0.1)
    return layer, torch.randn(STEPS, BATCH, 2).cuda(), torch.randn(STEPS, BATCH, layer.hidden_size).cuda()


def results(layer: nn.Module, x: Tensor, grad: Tensor) -> dict[str, Tensor]:
    layer.zero_grad()
    output, _ = layer(x)
    output.backward(grad)
    return {"output": output.detach(), **{name: weight.grad for name, weight in layer.named_parameters()}}


@pytest.mark.parametrize("name", LAYERS)
def test_within_1e_5_of_double_precision(name: str) -> None:
    layer, x, grad = made(name)
    exact = copy.deepcopy(layer).double()
    exact.engine = "reference"
    expected = results(exact, x.double(), grad.double())
    for what, got in results(layer, x, grad).items():
        error = ((got - expected[what]).norm() / expected[what].norm()).item()
        assert error < CLOSE, f"{what} is off by {error:.1e}"


@pytest.mark.parametrize("name", LAYERS)
def test_the_same_bits_every_time(name: str) -> None:
    layer, x, grad = made(name)
    first = results(layer, x, grad)
    for _ in range(9):  # the map is recorded after three calls, the layer after six
        again = results(layer, x, grad)
        assert all(torch.equal(first[what], again[what]) for what in first)
