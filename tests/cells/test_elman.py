"""The plain cell's gain and leak: the equation step by step, and the fused scan that still runs them."""

from __future__ import annotations

import pytest
import torch

from evenflow import RNN, ScalarGatedRNN
from evenflow.cells import Elman, ScalarGated

SAME = {"atol": 1e-12, "rtol": 1e-11}  # float64, the gain multiplied in elsewhere


@pytest.mark.parametrize("engine", ["auto", "torch", "reference"])
@pytest.mark.parametrize(("gain", "leak"), [(1.05, 1.0), (1.0, 0.3), (1.3, 0.6)])
def test_is_the_equation(gain, leak, engine):
    layer = RNN(3, 6, gain=gain, leak=leak, engine=engine, initial_state="learned", dtype=torch.float64)
    with torch.no_grad():
        layer.bias_l0.normal_()
        layer.h0_l0.normal_()
    x = torch.randn(9, 4, 3, dtype=torch.float64, requires_grad=True)
    wanted = [x, *layer.parameters()]
    output, _ = layer(x)
    got = torch.autograd.grad(output.sin().sum(), wanted)
    h, by_hand = layer.h0_l0.expand(4, 6), []
    for x_t in x.unbind():
        inside = x_t @ layer.weight_ih_l0.mT + layer.bias_l0 + h @ layer.weight_hh_l0.mT
        h = (1 - leak) * h + leak * torch.tanh(gain * inside)
        by_hand.append(h)
    torch.testing.assert_close(output, torch.stack(by_hand), **SAME)
    for mine, theirs in zip(got, torch.autograd.grad(torch.stack(by_hand).sin().sum(), wanted), strict=True):
        torch.testing.assert_close(mine, theirs, **SAME)


@pytest.mark.parametrize("leak", [1.0, 0.3])
def test_gain_and_leak_keep_the_fused_scan(leak, operators):
    layer = RNN(3, 6, gain=1.05, leak=leak)
    assert "evenflow::recurrence" in operators(lambda: layer(torch.randn(9, 4, 3)))


def test_a_gain_of_one_touches_nothing():
    weights = {"weight_ih": torch.randn(4, 2), "weight_hh": torch.randn(4, 4)}
    assert Elman().prepare(weights) is weights


def test_a_leak_of_one_is_the_plain_layer():
    assert type(RNN(3, 6, leak=1.0).cell) is Elman


def test_fixed_gates_have_no_weights_and_their_limit_is_elman():
    plain, gated = RNN(3, 6, activation="relu"), ScalarGatedRNN(3, 6, gates="fixed", alpha=1.0, beta=0.0)
    assert type(gated.cell) is ScalarGated
    gated.load_state_dict(plain.state_dict())  # the same names and no others
    x = torch.randn(9, 4, 3)
    torch.testing.assert_close(gated(x)[0], plain(x)[0])
