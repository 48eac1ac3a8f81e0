"""Complex units: the equation in complex numbers, the norm they keep, and the point without a direction."""

from __future__ import annotations

import pytest
import torch

from evenflow import ComplexRNN
from evenflow.cells import ComplexElman
from evenflow.maps import residual

SAME = {"atol": 1e-12, "rtol": 1e-11}  # float64, complex numbers taken apart
STEPS, BATCH, INPUT, UNITS = 9, 4, 3, 5


@pytest.mark.parametrize("map", ["unitary", "unitary_product", "free"])
def test_is_the_equation_in_complex_numbers(map):
    layer = ComplexRNN(INPUT, 2 * UNITS, map=map, initial_state="learned", dtype=torch.float64)
    with torch.no_grad():
        for name in ("bias_l0", "h0_l0", "activation_l0"):
            getattr(layer, name).normal_(std=0.3)
    x = torch.randn(STEPS, BATCH, INPUT, dtype=torch.float64, requires_grad=True)
    wanted = [x, *layer.parameters()]
    output, _ = layer(x)
    got = torch.autograd.grad(output.sin().sum(), wanted)
    W, b, z = (torch.complex(*v.chunk(2)) for v in (layer.weight_ih_l0, layer.bias_l0, layer.h0_l0))
    U = layer.weight_hh_l0.to(torch.complex128)
    z, by_hand = z.expand(BATCH, UNITS), []
    for x_t in x.unbind():
        a = x_t.to(W.dtype) @ W.mT + b + z @ U.mT
        z = a / a.abs() * torch.relu(a.abs() + layer.activation_l0)
        by_hand.append(torch.cat([z.real, z.imag], -1))
    torch.testing.assert_close(output, torch.stack(by_hand), **SAME)
    for mine, theirs in zip(got, torch.autograd.grad(torch.stack(by_hand).sin().sum(), wanted), strict=True):
        torch.testing.assert_close(mine, theirs, **SAME)


@pytest.mark.parametrize("map", ["unitary", "unitary_product"])
def test_unitary_layers_keep_the_norm(map):
    layer = ComplexRNN(1, 32, map=map, bias=False)
    torch.nn.init.zeros_(layer.activation_l0)
    h0 = torch.randn(1, 4, 32)
    output, _ = layer(torch.zeros(500, 4, 1), h0)
    torch.testing.assert_close(output[-1].norm(dim=-1), h0[0].norm(dim=-1), rtol=1e-4, atol=0)
    assert residual(layer.weight_hh_l0) < 1e-5


def test_zero_has_no_direction_and_no_gradient():
    layer = ComplexRNN(1, 6, bias=False)
    torch.nn.init.ones_(layer.activation_l0)
    output, _ = layer(torch.zeros(5, 2, 1))
    assert (output == 0).all()
    output.sum().backward()
    assert all((p.grad == 0).all() for p in layer.parameters())


def test_a_unitary_matrix_can_be_assigned():
    layer = ComplexRNN(1, 8, dtype=torch.float64)
    unitary = torch.linalg.qr(torch.randn(4, 4, dtype=torch.complex128)).Q
    layer.weight_hh_l0 = unitary
    torch.testing.assert_close(layer.weight_hh_l0, unitary, atol=1e-10, rtol=0)


@pytest.mark.parametrize("half", [{"storage": "bfloat16"}, {"storage": "float16"}, {"dtype": torch.bfloat16}], ids=str)
def test_half_precision_keeps_the_slopes(half):
    """|a| is |h| - b, of which a stored h in half precision would leave nothing where b is the larger part."""
    torch.manual_seed(0)
    layer = ComplexRNN(2, 8, map="free", **half)
    torch.nn.init.constant_(layer.activation_l0, 0.3)
    x = 1e-3 * torch.randn(1, 50, 2, dtype=layer.weight_ih_l0.dtype)
    found = []
    for engine in ("auto", "reference"):
        layer.engine = engine
        layer.zero_grad()
        layer(x)[0].float().sum().backward()
        found.append(layer.weight_ih_l0.grad.float().clone())
    torch.testing.assert_close(*found, rtol=0.1, atol=0.1 * found[1].abs().max().item())


def test_a_cell_from_before_it_had_an_activation_of_its_own():
    layer = ComplexRNN(2, 8)
    layer.cell = ComplexElman.__new__(ComplexElman)  # as a layer that was saved whole then is loaded
    assert layer(torch.randn(3, 2, 2))[0].shape == (3, 2, 8)
