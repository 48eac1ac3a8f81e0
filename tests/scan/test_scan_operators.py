"""The operators behind the scans: their gradients, and their manners under compile, autocast and opcheck."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

from evenflow import GRU, LSTM, RNN, GatedFeedbackRNN, ScalarGatedRNN
from evenflow.activations import ACTIVATIONS, make
from evenflow.cells import LSTM1997, Cell, Elman, GatedFeedback, GRUStep, LSTMStep, PeepholeLSTM, ScalarGated, SCRNStep
from evenflow.cells.gated_feedback import UNITS
from evenflow.scan.compiled_step import compiled_step
from evenflow.scan.derived_parameters import with_derived
from evenflow.scan.recurrence import fused_scan, recurrence

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
# Of each unit without gates: marks, where no number is kept, and those of which one is.
MARKS = dict.fromkeys(ACTIVATIONS, 0) | {"leaky": 1, "hardtanh": 1, "abs": 1, "oplu": 0.5, "modrelu": 1}
NUMBERS = ("prelu", "softsign", "sin", "saturated", "complex_modrelu")
# gradcheck moves each input by 1e-6: pre-activations and their differences must lie further than that from a kink.
KINK = 1e-3


Inputs = tuple[str, Tensor, list[Tensor], list[Tensor], list[Tensor]]  # of the operator, but for the last three


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def away_from_kinks(activation: str, gated: bool) -> Inputs:
    """Inputs of the operator for which no unit, and no pair of oplu, comes near a kink at any step."""
    for seed in range(200):
        start = make(activation).start(4)
        parameter = None if start is None else 0.3 * normal(1, *start.shape, seed=seed)
        gates = [torch.tensor([[value]], dtype=torch.float64) for value in (0.3, 0.6)] if gated else []
        a, weight = normal(1, 3, 2, 4, seed=seed), 0.7 * normal(1, 4, 4, seed=seed + 1)
        first = h = normal(1, 2, 4, seed=seed + 2)
        seen = []
        for t in range(3):
            seen.append(a[:, t] + h @ weight.mT)
            new = make(activation)(seen[-1], parameter)
            h = new if not gated else 0.3 * new + 0.6 * h
        pre = torch.stack(seen)
        near = [pre.abs().min(), (pre[..., :2] - pre[..., 2:]).abs().min()]
        if parameter is not None and "modrelu" in activation:
            lengths = pre.unflatten(-1, (-1, parameter.shape[-1])).norm(dim=-2)  # of units, or of pairs
            near.append((lengths + parameter).abs().min())
        if min(near) > KINK:
            cell = ScalarGated(activation) if gated else Elman(activation)
            weights = {"weight_hh": weight, "activation": parameter}
            weights |= dict(zip(("alpha", "beta"), gates, strict=True)) if gated else {}
            return of(cell, a, [first], {name: w for name, w in weights.items() if w is not None})
    raise AssertionError("no inputs away from the kinks")


def of(cell: Cell, a: Tensor, states: list[Tensor], weights: dict[str, Tensor]) -> Inputs:
    """What the operator is called with for some models, from the weights as `prepare` leaves them."""
    matrices, parameters = cell.arguments(weights)
    text = cell.program(a.shape[-1], [s.shape[-1] for s in states], {name: w[0] for name, w in weights.items()})
    assert isinstance(text, str)
    return text, a, states, matrices, [p.detach() for p in with_derived(text, parameters)]


def drawn(cell: Cell, hidden: int = 3, bias: bool = True, models: int = 1) -> Inputs:
    """Three steps of two sequences, with weights that all matter."""
    made = cell.start(2, hidden, bias, None) | {
        m.name: torch.empty(m.blocks * m.size, m.size) for m in cell.matrices(hidden)
    }
    prepared = [
        cell.prepare({n: normal(*w.shape, seed=10 * k + m) / 2 for k, (n, w) in enumerate(made.items())})
        for m in range(models)
    ]
    weights = {name: torch.stack([each[name] for each in prepared]) for name in prepared[0]}
    states = [normal(models, 2, hidden, seed=s) for s in range(cell.state_size)]
    return of(cell, normal(models, 3, 2, weights["weight_ih"].shape[1]), states, weights)


def of_gated_feedback(
    unit: str, bias: bool = True, layers: int = 2, models: int = 1, beside: bool = False, hidden: int = 3
) -> Inputs:
    """With `beside`, taps and dropout's factors in columns of their own."""
    cell, H = GatedFeedback(unit, layers), hidden
    prepared = []
    for m in range(models):
        weights = {}
        for j in range(layers):
            made = cell.start(2 if j == 0 else H, H, bias, None)
            made |= {each.name: torch.empty(each.blocks * H, H) for each in cell.matrices(H)}
            weights |= {f"{n}_l{j}": normal(*w.shape, seed=10 * k + m + j) / 2 for k, (n, w) in enumerate(made.items())}
        prepared.append(cell.prepare(weights))
    named = {name: torch.stack([each[name] for each in prepared]) for name in prepared[0]}
    columns = UNITS[unit][0] * H + layers + ((2 * layers - 1) * H if beside else 0)
    states = [normal(models, 2, layers * H, seed=s) for s in range(cell.state_size)]
    return of(cell, normal(models, 3, 2, columns), states, named)


def assert_gradients(inputs: Inputs, engine: str, second: bool = False, tapped: bool = False) -> None:
    """By everything that the operator has a gradient by, on sequences of different lengths."""
    text, a, *groups = inputs
    counts = [len(group) for group in groups]
    tap = torch.zeros_like(groups[0][0].unsqueeze(1).expand(-1, a.shape[1], -1, -1)) if tapped else None
    leaves = [v.requires_grad_() for v in (a, *(v for group in groups for v in group), *([] if tap is None else [tap]))]

    def run(a: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        parts = [list(rest[sum(counts[:i]) : sum(counts[: i + 1])]) for i in range(3)]
        last = rest[-1] if tapped else None
        return tuple(fused_scan(text, a, *parts, last, [2, 2, 1], engine)[: counts[0]])

    check = torch.autograd.gradgradcheck if second else torch.autograd.gradcheck
    assert check(run, tuple(leaves))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("gated", [False, True], ids=["elman", "gated"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradcheck(activation: str, gated: bool, engine: str) -> None:
    assert_gradients(away_from_kinks(activation, gated), engine)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("gated", [False, True], ids=["elman", "gated"])
@pytest.mark.parametrize("activation", MARKS)
def test_what_is_kept_besides_the_states(activation: str, gated: bool, engine: str) -> None:
    """Nothing where h tells f's slope; marks of a byte where a sign does; else one number per unit."""
    text, a, states, *rest = away_from_kinks(activation, gated)
    new, kept, marks = recurrence(a, states, *rest, None, text, None, engine, None)
    assert kept.dtype == new.dtype
    assert marks.dtype == torch.int8
    assert kept.shape[:-1] == marks.shape[:-1] == new.shape[:-1]
    units, numbers = new.shape[-1], gated or activation in NUMBERS
    both = gated and activation == "sin"  # a for its slope, and f(a) for α
    assert kept.shape[-1] == (2 * units if both else units if numbers else 0)
    assert marks.shape[-1] == MARKS[activation] * units if not numbers else marks.shape[-1] <= units / 2
    made = compiled_step(text)
    assert (made.kept_size, made.marks_size) == (kept.shape[-1], marks.shape[-1])


CELLS = {
    "gru": GRUStep(),
    "lstm": LSTMStep(),
    "lstm, peephole": PeepholeLSTM(),
    "lstm, 1997": LSTM1997("full"),
    "scrn": SCRNStep(1),
    "scrn, learned": SCRNStep(1, rates="learned"),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("name", CELLS)
def test_gradcheck_of_cells(name: str, bias: bool, engine: str) -> None:
    assert_gradients(drawn(CELLS[name], bias=bias), engine)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("unit", UNITS)
def test_gradcheck_gated_feedback(unit: str, layers: int, bias: bool, engine: str) -> None:
    assert_gradients(of_gated_feedback(unit, bias, layers, hidden=2), engine)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("tapped", [False, True], ids=["", "tapped"])
@pytest.mark.parametrize("name", ["elman", "gated", "gated feedback", *CELLS])
def test_second_derivatives(name: str, tapped: bool, engine: str) -> None:
    others = {
        "elman": lambda: away_from_kinks("tanh", False),
        "gated": lambda: away_from_kinks("tanh", True),
        "gated feedback": lambda: of_gated_feedback("lstm", hidden=2),
    }
    assert_gradients(
        others[name]() if name in others else drawn(CELLS[name], hidden=2), engine, second=True, tapped=tapped
    )


@pytest.mark.parametrize("engine", ENGINES)
def test_a_gradient_that_is_cut_off_stays_so_with_a_graph(engine: str) -> None:
    layer, x = LSTM(2, 5, form="1997", engine=engine), torch.randn(4, 3, 2)
    found = [
        torch.autograd.grad(layer(x)[0].square().sum(), list(layer.parameters()), create_graph=graph)
        for graph in (False, True)
    ]
    torch.testing.assert_close(*found)


def tapped(inputs: Inputs) -> tuple[Inputs, Tensor]:
    models, steps, batch = inputs[1].shape[:3]
    return inputs, normal(models, steps, batch, inputs[2][0].shape[-1])


OPERATED = {
    "elman": lambda: (away_from_kinks("tanh", False), None, None),
    "elman, marked": lambda: (away_from_kinks("oplu", False), None, [2, 2, 1]),
    "gated": lambda: (away_from_kinks("prelu", True), None, [2, 2, 1]),
    "gru": lambda: (drawn(GRUStep(), models=2), None, None),
    "gru, tapped": lambda: (*tapped(drawn(GRUStep(), bias=False)), [2, 2, 1]),
    "lstm": lambda: (drawn(LSTMStep(), models=2), None, None),
    "lstm, peephole": lambda: (*tapped(drawn(PeepholeLSTM())), [2, 2, 1]),
    "lstm, 1997": lambda: (drawn(LSTM1997(), models=2), None, None),
    "scrn": lambda: (*tapped(drawn(SCRNStep(1, rates="learned"), models=2)), [2, 2, 1]),
    "gated feedback": lambda: (of_gated_feedback("tanh", models=2), None, None),
    "gated feedback, gru": lambda: (of_gated_feedback("gru", beside=True), None, [2, 2, 1]),
    "gated feedback, lstm": lambda: (of_gated_feedback("lstm", False), None, [2, 2, 1]),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", OPERATED)
def test_opcheck(name: str, engine: str) -> None:
    (text, a, *groups), tap, sizes = OPERATED[name]()
    groups = [[v.requires_grad_() for v in group] for group in groups]
    tap = None if tap is None else tap.requires_grad_()
    torch.library.opcheck(recurrence, (a.requires_grad_(), *groups, tap, text, sizes, engine, None))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["elman", "lstm, peephole"])
def test_opcheck_with_resets(name: str, engine: str) -> None:
    (text, a, *groups), tap, sizes = OPERATED[name]()
    groups = [[v.requires_grad_() for v in group] for group in groups]
    resets = torch.rand(a.shape[:3], generator=torch.Generator().manual_seed(0)) < 0.4
    settings = (compiled_step(text).from_zero, sizes, engine, resets)
    torch.library.opcheck(recurrence, (a.requires_grad_(), *groups, tap, *settings))


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


class Logistic(Elman):
    def step(self, a: Tensor, h: Tensor, U: Tensor, p: Tensor | None = None) -> Tensor:
        return (a + h @ U.mT).sigmoid()


CURVES = {"tanh": Elman, "sigmoid": Logistic}


@pytest.mark.parametrize("name", CURVES)
def test_curves_are_those_of_libm(name: str) -> None:
    """Through cells that use them, over the whole range and at its ends."""
    x = torch.cat([torch.linspace(-100, 100, 20_001), torch.linspace(-1, 1, 2001), torch.tensor([-1e30, 1e30, 0.0])])
    for dtype, bound in ((torch.float32, 2e-7), (torch.float64, 4e-16)):
        a = x.to(dtype).view(1, 1, -1, 1)
        weight, zeros = torch.zeros(1, 1, 1, dtype=dtype), torch.zeros(1, len(x), 1, dtype=dtype)
        found, *_ = fused_scan(*of(CURVES[name](), a, [zeros], {"weight_hh": weight}))
        assert (found.flatten() - getattr(torch, name)(a.flatten().double()).to(dtype)).abs().max() <= bound
