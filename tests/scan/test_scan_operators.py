"""The operators behind the scans: their gradients, and their manners under compile, autocast and opcheck."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

from evenflow import GRU, LSTM, RNN, GatedFeedbackRNN, ScalarGatedRNN
from evenflow.activations import ACTIVATIONS, make
from evenflow.cells.gated_feedback import UNITS
from evenflow.scan.elman import elman
from evenflow.scan.gated_feedback import gated_feedback
from evenflow.scan.gru import gru
from evenflow.scan.linear import linear
from evenflow.scan.lstm import lstm

ENGINES = ["auto", "torch"]
LAYERS = [
    RNN(2, 5),
    RNN(2, 5, activation="abs"),
    ScalarGatedRNN(2, 5),
    GRU(2, 5),
    LSTM(2, 5),
    LSTM(2, 5, form="peephole"),
    LSTM(2, 5, form="1997"),
    GatedFeedbackRNN(2, 5, 2),
    GatedFeedbackRNN(2, 5, 2, unit="gru"),
    GatedFeedbackRNN(2, 5, 2, unit="lstm"),
]
# gradcheck moves each input by 1e-6: pre-activations and their differences must lie further than that from a kink.
KINK = 1e-3


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def away_from_kinks(activation: str, gated: bool) -> tuple[Tensor | None, ...]:
    """Inputs of the operator for which no unit, and no pair of oplu, comes near a kink at any step."""
    for seed in range(200):
        parameter = {
            "prelu": torch.full((1, 1), 0.3).double(),
            "modrelu": 0.3 * normal(1, 4, seed=seed),
            "complex_modrelu": 0.3 * normal(1, 2, seed=seed),
        }.get(activation)
        gates = [torch.tensor([[value]], dtype=torch.float64) if gated else None for value in (0.3, 0.6)]
        given = (normal(1, 3, 2, 4, seed=seed), 0.7 * normal(1, 4, 4, seed=seed + 1), normal(1, 2, 4, seed=seed + 2))
        a, h = [], given[2]
        for t in range(3):
            a.append(given[0][:, t] + h @ given[1].mT)
            new = make(activation)(a[-1], parameter)
            h = new if not gated else 0.3 * new + 0.6 * h
        pre = torch.stack(a)
        near = [pre.abs().min(), (pre[..., :2] - pre[..., 2:]).abs().min()]
        if parameter is not None and "modrelu" in activation:
            lengths = pre.unflatten(-1, (-1, parameter.shape[-1])).norm(dim=-2)  # of units, or of pairs
            near.append((lengths + parameter).abs().min())
        if min(near) > KINK:
            return (*given, *gates, parameter, torch.zeros(1, 3, 2, 4).double())
    raise AssertionError("no inputs away from the kinks")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("gated", [False, True], ids=["elman", "gated"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradcheck(activation: str, gated: bool, engine: str) -> None:
    *inputs, _ = (None if v is None else v.requires_grad_() for v in away_from_kinks(activation, gated))

    def states(*values: Tensor) -> Tensor:
        return elman(*values, None, activation, None, engine)[0]

    assert torch.autograd.gradcheck(states, tuple(inputs))


def of_lstm(blocks: int = 4, peephole: bool = False, models: int = 1) -> tuple[Tensor | None, ...]:
    a, weight = normal(models, 3, 2, 3 * blocks), normal(models, 3 * blocks, 3)
    return a, weight, normal(models, 2, 3), normal(models, 2, 3, seed=1), normal(models, 9) if peephole else None


def of_gru(bias: bool = True, models: int = 1) -> tuple[Tensor | None, ...]:
    return normal(models, 3, 2, 9), normal(models, 9, 3), normal(models, 3) if bias else None, normal(models, 2, 3)


def of_gated_feedback(unit: str, bias: bool = True, layers: int = 2, models: int = 1) -> tuple[Tensor | None, ...]:
    (blocks, own), H, L = UNITS[unit], 3, layers

    def drawn(*shape: int) -> Tensor:
        return normal(models, *shape, seed=sum(shape)) / 2

    return (
        drawn(3, 2, blocks * H + L),
        drawn(3, 2, (L - 1) * H).detach() if bias and L > 1 else None,
        drawn(L, H, L * H),
        drawn(L * L, L * H),
        drawn(L, own * H, H) if own else None,
        drawn(L - 1, blocks * H + L, H),
        drawn(L - 1, blocks * H + L) if bias else None,
        drawn(L, H) if bias and unit == "gru" else None,
        drawn(2, L * H),
        drawn(2, L * H) if unit == "lstm" else None,
    )


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("gated", [False, True], ids=["elman", "gated"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_what_is_kept_besides_the_states(activation: str, gated: bool, engine: str) -> None:
    states, kept = elman(*away_from_kinks(activation, gated), activation, None, engine)
    if gated or activation == "prelu":
        assert kept.dtype == states.dtype
    elif activation in ("abs", "oplu"):
        assert kept.dtype == torch.int8
    else:
        assert kept.numel() == 0
        return
    assert kept.shape == states.shape


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("blocks", "peephole"), [(4, False), (4, True), (3, False)], ids=["plain", "peephole", "1997"])
def test_gradcheck_lstm(blocks: int, peephole: bool, engine: str) -> None:
    inputs = tuple(None if v is None else v.requires_grad_() for v in of_lstm(blocks, peephole))
    assert torch.autograd.gradcheck(lambda *v: lstm(*v, None, False, [2, 2, 1], engine)[:2], inputs)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
def test_gradcheck_gru(bias: bool, engine: str) -> None:
    inputs = tuple(None if v is None else v.requires_grad_() for v in of_gru(bias))
    assert torch.autograd.gradcheck(lambda *v: gru(*v, None, [2, 2, 1], engine)[0], inputs)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("unit", UNITS)
def test_gradcheck_gated_feedback(unit: str, layers: int, bias: bool, engine: str) -> None:
    a, factors, *rest = of_gated_feedback(unit, bias, layers)
    inputs = tuple(None if v is None else v.requires_grad_() for v in (a, *rest))
    states = 2 if unit == "lstm" else 1
    run = lambda a, *v: gated_feedback(a, factors, *v, None, [2, 2, 1], engine)[:states]  # noqa: E731
    assert torch.autograd.gradcheck(run, inputs)


@pytest.mark.parametrize("width", [1, 2, 5, 70])
def test_gradcheck_linear(width: int) -> None:
    inputs = [v.requires_grad_() for v in (normal(2, 3, width), normal(5, width, seed=1), normal(5, seed=2))]
    assert torch.autograd.gradcheck(linear, tuple(inputs))


@pytest.mark.parametrize("rows", [1, 7, 300])
@pytest.mark.parametrize("width", [1, 2, 33, 128])
def test_linear_is_torchs(rows: int, width: int) -> None:
    given = [v.requires_grad_() for v in (normal(rows, 2, width), normal(40, width, seed=1), normal(40, seed=2))]
    twins = [v.detach().clone().requires_grad_() for v in given]
    for values, function in ((given, linear), (twins, torch.nn.functional.linear)):
        function(*values).sin().sum().backward()
    for one, other in zip(given, twins, strict=True):
        torch.testing.assert_close(one.grad, other.grad)


OPERATORS = {
    "elman": (elman, lambda e: (*away_from_kinks("tanh", False), "tanh", None, e)),
    "elman, marked": (elman, lambda e: (*away_from_kinks("oplu", False), "oplu", [2, 2, 1], e)),
    "gated": (elman, lambda e: (*away_from_kinks("prelu", True), "prelu", [2, 2, 1], e)),
    "gru": (gru, lambda e: (*of_gru(models=2), None, None, e)),
    "gru, tapped": (gru, lambda e: (*of_gru(False), normal(1, 3, 2, 3), [2, 2, 1], e)),
    "lstm": (lstm, lambda e: (*of_lstm(models=2), None, False, None, e)),
    "lstm, peephole": (lstm, lambda e: (*of_lstm(peephole=True), normal(1, 3, 2, 3), False, [2, 2, 1], e)),
    "lstm, 1997": (lstm, lambda e: (*of_lstm(3, models=2), None, True, None, e)),
    "gated feedback": (gated_feedback, lambda e: (*of_gated_feedback("tanh", models=2), None, None, e)),
    "gated feedback, gru": (gated_feedback, lambda e: (*of_gated_feedback("gru"), normal(1, 3, 2, 6), [2, 2, 1], e)),
    "gated feedback, lstm": (gated_feedback, lambda e: (*of_gated_feedback("lstm", False), None, [2, 2, 1], e)),
    "linear": (linear, lambda e: (normal(3, 2, 4), normal(5, 4), normal(5))),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", OPERATORS)
def test_opcheck(name: str, engine: str) -> None:
    operator, inputs = OPERATORS[name]
    given = tuple(v.requires_grad_() if isinstance(v, Tensor) else v for v in inputs(engine))
    torch.library.opcheck(operator, given)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("layer", LAYERS, ids=lambda l: type(l).__name__)
def test_compiles_as_one_graph(layer: torch.nn.Module, backend: str) -> None:
    torch._dynamo.reset()
    x = torch.randn(4, 3, 2, generator=torch.Generator().manual_seed(0))
    compiled = torch.compile(layer, backend=backend, fullgraph=True)
    layer.zero_grad()
    layer(x)[0].sum().backward()
    wanted = [p.grad for p in layer.parameters()]
    layer.zero_grad()
    compiled(x)[0].sum().backward()
    for parameter, gradient in zip(layer.parameters(), wanted, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


@pytest.mark.parametrize("layer", LAYERS, ids=lambda l: type(l).__name__)
def test_autocast_leaves_the_recurrence_in_single_precision(layer: torch.nn.Module) -> None:
    x = torch.randn(4, 3, 2, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, _ = layer(x)
    assert output.dtype == torch.float32
    output.sum().backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in layer.parameters())


@pytest.mark.parametrize("engine", ["auto", "torch", "reference"])
@pytest.mark.parametrize("layer", LAYERS, ids=lambda l: type(l).__name__)
def test_autocast_changes_nothing_where_the_input_is_exact(layer: torch.nn.Module, engine: str) -> None:
    """Symbols through weights that half precision holds: both passes are then those of single precision."""
    layer = copy.deepcopy(layer)
    layer.engine = engine
    with torch.no_grad():
        for name, weight in layer.named_parameters():
            if "ih" in name:
                weight.copy_(weight.bfloat16())
            if name.startswith("bias_l"):
                weight.zero_()
    x = torch.nn.functional.one_hot(torch.arange(12).reshape(4, 3) % 2).float()
    results = []
    for cast in (False, True):
        layer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=cast):
            output, _ = layer(x)
        # The way back of torch's own operations, which the loop is made of, is for outside.
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=cast and engine != "reference"):
            output.square().sum().backward()
        results.append([output] + [p.grad for name, p in layer.named_parameters() if "hh" in name])
    assert len(results[0]) > 1
    for plain, cast in zip(*results, strict=True):
        torch.testing.assert_close(cast, plain)


@pytest.mark.parametrize("kind", [RNN, GRU, LSTM])
def test_layers_in_half_precision(kind: type[RNN]) -> None:
    layer = kind(2, 6).to(torch.bfloat16)
    output, _ = layer(torch.randn(4, 3, 2).to(torch.bfloat16))
    output.sum().backward()
    assert output.dtype == torch.bfloat16


@pytest.mark.parametrize("name", ["tanh", "sigmoid"])
def test_curves_are_those_of_libm(name: str) -> None:
    """Through the cells that use them, over the whole range and at its ends."""
    x = torch.cat([torch.linspace(-100, 100, 20_001), torch.linspace(-1, 1, 2001), torch.tensor([-1e30, 1e30, 0.0])])
    for dtype, bound in ((torch.float32, 2e-7), (torch.float64, 4e-16)):
        v = x.to(dtype)
        a, zeros = v.view(1, 1, 1, -1), torch.zeros(1, 1, len(v), dtype=dtype)
        if name == "tanh":
            weight = torch.zeros(1, 1, 1, dtype=dtype)
            found = elman(a.mT.reshape(1, 1, -1, 1), weight, zeros.mT, None, None, None, None, "tanh", None, "auto")[0]
        else:
            rows = a.mT.reshape(1, 1, -1, 1).expand(1, 1, -1, 4).contiguous()
            weight = torch.zeros(1, 4, 1, dtype=dtype)
            found = lstm(rows, weight, zeros.mT, zeros.mT, None, None, False, None, "auto")[2][..., :1]
        assert (found.flatten() - getattr(torch, name)(v.double()).to(dtype)).abs().max() <= bound
