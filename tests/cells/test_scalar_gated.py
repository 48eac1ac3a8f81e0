"""The scalar gates: where they start, and the bound that holds for any number the optimiser can reach."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from evenflow.cells import Elman, ScalarGated

ANY = st.floats(-(2.0**100), 2.0**100, width=32)
ROUNDING = 1e-6  # float32: 1 - 2α + 2α


@given(a=ANY, b=ANY)
def test_gates_keep_their_bound(a, b):
    weights = {"gate_alpha": torch.tensor([a]), "gate_beta": torch.tensor([b])}
    alpha, beta = ScalarGated(gates="bounded").scalars(weights)
    assert 0 <= alpha <= 0.5
    assert 0 <= beta <= 1 - 2 * alpha + ROUNDING


def test_gates_start_where_they_are_told():
    for gates, share, keep in (("free", 0.0474, 0.9526), ("bounded", 0.023, 0.9526), ("bounded", 0.1, 0.5)):
        cell = ScalarGated(gates=gates, alpha=share, beta=keep)
        alpha, beta = cell.scalars(cell.extra(4, None))
        torch.testing.assert_close(alpha, torch.tensor([share]))
        torch.testing.assert_close(beta, torch.tensor([keep]))


def test_an_active_bound_still_trains_alpha():
    a, b = torch.tensor([1.0], requires_grad=True), torch.tensor([3.0], requires_grad=True)
    _, beta = ScalarGated(gates="bounded").scalars({"gate_alpha": a, "gate_beta": b})
    beta.backward()
    assert a.grad < 0, "less α leaves more room for β"


def test_alpha_one_beta_zero_is_elman():
    cell, plain = ScalarGated("relu", gates="free"), Elman("relu")
    weights = {"weight_hh": torch.randn(5, 5), "gate_alpha": torch.tensor([40.0]), "gate_beta": torch.tensor([-40.0])}
    a, h = torch.randn(3, 5), torch.randn(3, 5)
    torch.testing.assert_close(cell.advance(a, (h,), cell.prepare(weights)), plain.advance(a, (h,), weights))
