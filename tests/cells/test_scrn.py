"""SCRN: the document's equations, and its one-matrix form."""

from __future__ import annotations

import pytest
import torch

from evenflow import SCRN, SequenceModel

SAME = {"atol": 1e-12, "rtol": 1e-11}  # float64, the same sums in another order
STEPS, BATCH, INPUT, PLAIN, CONTEXT = 9, 4, 3, 5, 2


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rates", ["fixed", "learned"])
def test_is_the_equation(rates, bias):
    layer = SCRN(INPUT, PLAIN + CONTEXT, context_size=CONTEXT, rates=rates, bias=bias, dtype=torch.float64)
    rate = torch.full((CONTEXT,), 0.95, dtype=torch.float64)
    with torch.no_grad():
        if bias:
            layer.bias_l0.normal_()
        if rates == "learned":
            torch.testing.assert_close(layer.context_rate_l0.sigmoid(), rate, rtol=1e-6, atol=0)  # drawn in float32
            layer.context_rate_l0.normal_()
    x = torch.randn(STEPS, BATCH, INPUT, dtype=torch.float64, requires_grad=True)
    wanted = [x, *layer.parameters()]
    output, _ = layer(x)
    got = torch.autograd.grad(output.sin().sum(), wanted)
    alpha = layer.context_rate_l0.sigmoid() if rates == "learned" else rate
    A, B = layer.weight_ih_l0.split([PLAIN, CONTEXT])
    h, s, by_hand = torch.zeros(BATCH, PLAIN).double(), torch.zeros(BATCH, CONTEXT).double(), []
    for x_t in x.unbind():
        s = (1 - alpha) * (x_t @ B.mT) + alpha * s
        h = torch.tanh(
            x_t @ A.mT + (layer.bias_l0 if bias else 0) + s @ layer.weight_hs_l0.mT + h @ layer.weight_hh_l0.mT
        )
        by_hand.append(torch.cat([h, s], -1))
    torch.testing.assert_close(output, torch.stack(by_hand), **SAME)
    for mine, theirs in zip(got, torch.autograd.grad(torch.stack(by_hand).sin().sum(), wanted), strict=True):
        torch.testing.assert_close(mine, theirs, **SAME)


def test_the_context_forgets_at_its_rate():
    layer = SCRN(INPUT, 8, context_size=3, alpha=0.9)
    h0 = torch.ones(1, 1, 8)
    output, _ = layer(torch.zeros(20, 1, INPUT), h0)
    torch.testing.assert_close(output[:, 0, -1], 0.9 ** torch.arange(1.0, 21.0))


def test_a_readout_sees_both_kinds_of_units():
    model = SequenceModel(SCRN(INPUT, 8), 4)
    assert model.layer.cell.context(8) == 2
    assert model.output.weight.shape == (4, 8)
    model(torch.randn(STEPS, BATCH, INPUT))[0].sum().backward()
    assert (model.output.weight.grad != 0).all()


def test_the_map_makes_the_plain_units_matrix():
    assert SCRN(INPUT, 8, context_size=3, map="householder").weight_hh_l0.shape == (5, 5)
