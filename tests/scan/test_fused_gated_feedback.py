"""The fused scan of gated feedback gives what the reference loop gives: every state, and every gradient."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence

from evenflow import GatedFeedbackRNN
from evenflow.cells import GatedFeedback
from evenflow.scan import scan

# Sums of at most 128 terms over 17 steps, taken in another order: a few hundred roundings of 1e-16.
DOUBLE = {"atol": 1e-11, "rtol": 1e-11}
SINGLE = 1e-5  # ‖difference‖ / ‖reference‖ at T = 1,000, against a reference in double
SHAPES = [(1, 1, 1, 1), (2, 3, 2, 2), (17, 3, 7, 3), (5, 13, 16, 4), (3, 2, 33, 1)]

units = pytest.mark.parametrize("unit", ["tanh", "gru", "lstm"])
engines = pytest.mark.parametrize("engine", ["auto", "torch"])


def make(unit: str, hidden: int, layers: int, **options: object) -> GatedFeedbackRNN:
    """A layer whose every weight matters."""
    layer = GatedFeedbackRNN(3, hidden, layers, unit=unit, **{"dtype": torch.float64} | options)  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(hidden + layers)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / max(1, parameter.shape[-1]) ** 0.5)
    return layer


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def passed(layer: GatedFeedbackRNN, engine: str, steps: int, batch: int, lengths: list[int] | None) -> list[Tensor]:
    """Outputs and ends, and the gradients of a sum that weighs them all differently by x, states, taps and weights."""
    layer.engine = engine
    layer.zero_grad()
    torch.manual_seed(7)  # dropout
    dtype = layer.weight_hh_l0.dtype
    x = normal(steps, batch, 3).to(dtype).requires_grad_()
    shape = (layer.num_layers, batch, layer.hidden_size)
    start = [normal(*shape, seed=1 + s).to(dtype).requires_grad_() for s in range(layer.cell.state_size)]
    with layer.taps() as taps:
        given = x if lengths is None else pack_padded_sequence(x, torch.tensor(lengths), enforce_sorted=False)
        output, final = layer(given, tuple(start) if len(start) > 1 else start[0])
    data, ends = output if lengths is None else output.data, (final,) if isinstance(final, Tensor) else final
    torch.stack([(v * normal(*v.shape, seed=9).to(dtype)).sum() for v in (data, *ends)]).sum().backward()
    leaves = [x, *start, *taps, *layer.parameters()]
    return [
        data.detach(),
        *(e.detach() for e in ends),
        *(torch.zeros_like(v) if v.grad is None else v.grad for v in leaves),
    ]


@engines
@units
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "T{}-B{}-H{}-L{}".format(*s))
def test_agrees_with_the_reference(shape: tuple[int, ...], bias: bool, unit: str, engine: str) -> None:
    steps, batch, hidden, layers = shape
    layer = make(unit, hidden, layers, bias=bias)
    for got, expected in zip(*(passed(layer, e, steps, batch, None) for e in (engine, "reference")), strict=True):
        torch.testing.assert_close(got, expected, **DOUBLE)


@engines
@units
@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_agrees_on_ragged_lengths_and_with_dropout(layers: int, dropout: float, unit: str, engine: str) -> None:
    layer = make(unit, 6, layers, dropout=dropout)
    lengths = [2, 9, 5, 5, 1]
    for got, expected in zip(*(passed(layer, e, 9, 5, lengths) for e in (engine, "reference")), strict=True):
        torch.testing.assert_close(got, expected, **DOUBLE)


@units
def test_single_precision_over_a_thousand_steps(unit: str) -> None:
    layer = GatedFeedbackRNN(3, 16, 2, unit=unit, dtype=torch.float32, generator=torch.Generator().manual_seed(0))
    got = passed(layer, "auto", 1000, 3, None)
    expected = passed(layer.double(), "reference", 1000, 3, None)
    for one, other in zip(got, expected, strict=True):
        assert (one.double() - other).norm() <= SINGLE * other.norm()


@engines
@units
def test_one_member_of_the_state_alone(unit: str, engine: str) -> None:
    """A loss of the last memory alone."""
    layer = make(unit, 5, 2)
    layer.engine = engine
    _, final = layer(normal(4, 3, 3))
    (final if isinstance(final, Tensor) else final[1]).sum().backward()
    got = [p.grad.clone() for p in layer.parameters()]
    layer.engine = "reference"
    layer.zero_grad()
    _, final = layer(normal(4, 3, 3))
    (final if isinstance(final, Tensor) else final[1]).sum().backward()
    for one, parameter in zip(got, layer.parameters(), strict=True):
        torch.testing.assert_close(one, parameter.grad, **DOUBLE)


@engines
@units
@pytest.mark.parametrize("layers", [1, 2])
def test_models_side_by_side(layers: int, unit: str, engine: str) -> None:
    """`torch.vmap` over layers with weights of their own is each of them by itself."""
    members = [make(unit, 5, layers, engine=engine) for _ in range(3)]
    for index, member in enumerate(members):
        with torch.no_grad():
            for parameter in member.parameters():
                parameter *= 1 + 0.1 * index
    x = normal(4, 3, 3)
    weights, _ = torch.func.stack_module_state(members)  # type: ignore[arg-type]
    outputs = torch.vmap(lambda w: torch.func.functional_call(members[0], w, (x,))[0])(weights)
    outputs.sin().sum().backward()
    for index, member in enumerate(members):
        output, _ = member(x)
        output.sin().sum().backward()
        torch.testing.assert_close(outputs[index], output, **DOUBLE)
        for name, parameter in member.named_parameters():
            torch.testing.assert_close(weights[name].grad[index], parameter.grad, **DOUBLE)


@engines
@units
def test_nan_stays_in_its_row(unit: str, engine: str) -> None:
    layer, x = make(unit, 5, 2, engine=engine), normal(6, 3, 3)
    x[2, 1] = torch.nan
    output, _ = layer(x)
    assert output[2:, 1].isnan().all()
    assert not output[:2].isnan().any()
    assert not output[:, [0, 2]].isnan().any()


@engines
@units
def test_an_empty_batch(unit: str, engine: str) -> None:
    for options in ({}, {"dropout": 0.5}):
        layer = make(unit, 5, 2, engine=engine, **options)
        output, _ = layer(torch.zeros(4, 0, 3, dtype=torch.float64))
        assert output.shape == (4, 0, 5)
        output.sum().backward()
        assert not layer.weight_hh_l0.grad.any()


class Halved(GatedFeedback):
    """Global gates that never open further than half."""

    def gates(self, into: Tensor, j: int) -> Tensor:
        return super().gates(into, j) / 2


@engines
@units
def test_a_subclass_runs_as_its_own_step(unit: str, engine: str, operators: Callable[..., list[str]]) -> None:
    layer = make(unit, 6, 2)
    plain = passed(layer, engine, 9, 5, None)
    layer.cell = Halved(unit, 2)
    found, wanted = (passed(layer, e, 9, 5, [2, 9, 5, 5, 1]) for e in (engine, "reference"))
    for got, expected in zip(found, wanted, strict=True):
        torch.testing.assert_close(got, expected, **DOUBLE)
    assert not torch.allclose(passed(layer, engine, 9, 5, None)[0], plain[0])
    assert "evenflow::recurrence" in operators(lambda: passed(layer, engine, 9, 5, None))


@engines
@units
def test_a_tap_from_outside(unit: str, engine: str) -> None:
    """It is not one of the cell's own, which a layer puts beside the projected input."""
    cell, layer = GatedFeedback(unit, 2), make(unit, 4, 2)
    weights = cell.prepare({name: p.detach() for name, p in layer.named_parameters()})
    a = cell.project(normal(5, 3, 3), weights)
    state = tuple(normal(3, 8, seed=s) for s in range(cell.state_size))
    grads = []
    for each in (engine, "reference"):
        tap = torch.zeros(5, 3, 8, dtype=torch.float64, requires_grad=True)
        scan(cell, a, state, weights, None, tap, each)[0].sin().sum().backward()
        grads.append(tap.grad)
    torch.testing.assert_close(*grads, **DOUBLE)


def kept_of(layer: GatedFeedbackRNN) -> int:
    """Bytes that the graph of a pass over 100 steps of 8 sequences holds."""
    held: dict[int, int] = {}

    def pack(t: Tensor) -> Tensor:
        held[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        layer(normal(100, 8, 3))
    return sum(held.values())


@units
def test_what_is_kept(unit: str) -> None:
    """Of each step and unit the state, what its own gates are told from, and what comes from each of the layers."""
    layer, own = make(unit, 32, 3), {"tanh": 0, "gru": 3, "lstm": 4}[unit]
    numbers = 3 * 32 * (layer.cell.state_size + own + 3)
    gates, share = 9, layer.cell.blocks * 32 + 3
    weights = sum(p.numel() for p in layer.parameters())
    assert kept_of(layer) <= 8 * (800 * (numbers + gates + share) + 2 * weights)


@units
def test_little_is_kept(unit: str) -> None:
    """Less than a graph of every step holds."""
    layer, kept = make(unit, 32, 3), {}
    for layer.engine in ("auto", "reference"):
        kept[layer.engine] = kept_of(layer)
    assert kept["auto"] < 0.7 * kept["reference"]
