"""The forms of LSTM: with peepholes, and that of 1997 with its truncated gradient."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from evenflow import LSTM
from evenflow.cells import LSTM1997
from evenflow.layers.recurrent import Recurrent

SAME = {"atol": 1e-12, "rtol": 1e-11}  # float64, the same sums in another order
STEPS, BATCH, INPUT, HIDDEN = 7, 3, 2, 4


def filled(layer: Recurrent) -> Recurrent:
    """A layer whose every weight matters."""
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(std=0.7)
    return layer


def test_peepholes_at_zero_are_the_plain_cell():
    plain, peephole = LSTM(INPUT, HIDDEN), LSTM(INPUT, HIDDEN, form="peephole")
    missing = peephole.load_state_dict(plain.state_dict(), strict=False)
    assert missing.missing_keys == ["peephole_l0"]
    x = torch.randn(STEPS, BATCH, INPUT)
    torch.testing.assert_close(peephole(x)[0], plain(x)[0])


def test_peephole_equation():
    layer = filled(LSTM(INPUT, HIDDEN, form="peephole", dtype=torch.float64))
    x = torch.randn(STEPS, BATCH, INPUT, dtype=torch.float64)
    h = c = torch.zeros(BATCH, HIDDEN, dtype=torch.float64)
    into_i, into_f, into_o = layer.peephole_l0.view(3, HIDDEN)
    for x_t in x:
        i, f, g, o = (
            (x_t @ layer.weight_ih_l0.T + layer.bias_l0 + h @ layer.weight_hh_l0.T).view(BATCH, 4, -1).unbind(1)
        )
        before = c
        c = torch.sigmoid(f + into_f * before) * before + torch.sigmoid(i + into_i * before) * torch.tanh(g)
        h = torch.sigmoid(o + into_o * c) * torch.tanh(c)
    torch.testing.assert_close(layer(x)[1][0][0], h, **SAME)


def gradients_by_hand(layer: Recurrent, x: Tensor, weight: Tensor) -> dict[str, Tensor]:
    """The rule of 1997 for L = Σ_t weight_t · h_t: e_t = ∂L/∂c_t runs back through the memory alone."""
    W, U, b = (p.detach() for p in (layer.weight_ih_l0, layer.weight_hh_l0, layer.bias_l0))
    h = c = torch.zeros(BATCH, HIDDEN, dtype=torch.float64)
    kept = []
    for x_t in x:
        i, g, o = (x_t @ W.T + b + h @ U.T).chunk(3, -1)
        i, g, o, before = i.sigmoid(), g.tanh(), o.sigmoid(), h
        c = c + i * g
        h = o * c.tanh()
        kept.append((x_t, before, i, g, o, c.tanh()))
    dW, dU, db = torch.zeros_like(W), torch.zeros_like(U), torch.zeros_like(b)
    e = torch.zeros_like(c)
    for (x_t, before, i, g, o, tanh_c), w in reversed(list(zip(kept, weight, strict=True))):
        e = e + w * o * (1 - tanh_c**2)  # the memory hands it on with weight one
        d = torch.cat([e * g * i * (1 - i), e * i * (1 - g**2), w * tanh_c * o * (1 - o)], -1)
        dW, dU, db = dW + d.T @ x_t, dU + d.T @ before, db + d.sum(0)
    return {"weight_ih_l0": dW, "bias_l0": db, "weight_hh_l0": dU}


def test_truncated_gradient_by_hand():
    layer = filled(LSTM(INPUT, HIDDEN, form="1997", dtype=torch.float64))
    x = torch.randn(STEPS, BATCH, INPUT, dtype=torch.float64)
    weight = torch.randn(STEPS, BATCH, HIDDEN, dtype=torch.float64)
    (layer(x)[0] * weight).sum().backward()
    expected = gradients_by_hand(layer, x, weight)
    assert set(expected) == {name for name, _ in layer.named_parameters()}
    for name, gradient in expected.items():
        torch.testing.assert_close(getattr(layer, name).grad, gradient, **SAME)


def test_the_full_gradient_is_another_one_of_the_same_function():
    truncated = filled(LSTM(INPUT, HIDDEN, form="1997", dtype=torch.float64))
    full = Recurrent(LSTM1997(gradient="full"), INPUT, HIDDEN, dtype=torch.float64)
    full.load_state_dict(truncated.state_dict())
    x = torch.randn(STEPS, BATCH, INPUT, dtype=torch.float64)
    outputs = [layer(x)[0] for layer in (truncated, full)]
    assert torch.equal(*outputs)
    for output in outputs:
        output.sum().backward()
    assert (truncated.weight_hh_l0.grad - full.weight_hh_l0.grad).abs().max() > 1e-3
    h0 = torch.randn(1, 1, HIDDEN, dtype=torch.float64, requires_grad=True)
    c0 = torch.zeros(1, 1, HIDDEN, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda h: full(x[:, :1], (h, c0))[0], h0)


def test_the_memory_carries_its_gradient_unchanged():
    """∂c_T/∂c_0 is the identity, over any number of steps: what the cell was made for."""
    layer = LSTM(INPUT, HIDDEN, form="1997", dtype=torch.float64)
    h0 = torch.zeros(1, 1, HIDDEN, dtype=torch.float64)
    c0 = torch.randn(1, 1, HIDDEN, dtype=torch.float64, requires_grad=True)
    _, (_, c_n) = layer(torch.randn(500, 1, INPUT, dtype=torch.float64), (h0, c0))
    jacobian = torch.stack([torch.autograd.grad(c, c0, retain_graph=True)[0][0, 0] for c in c_n.flatten()])
    assert torch.equal(jacobian, torch.eye(HIDDEN, dtype=torch.float64))


def test_unknown_gradient_is_refused():
    with pytest.raises(ValueError) as error:
        LSTM1997(gradient="half")
    assert str(error.value) == "gradient must be one of truncated, full, got 'half'"
