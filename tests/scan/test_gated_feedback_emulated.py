"""The CUDA kernels of gated feedback, run on the CPU by `cuda_on_cpu.h`, against the torch operations and autograd."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from cuda_cases import normal
from cuda_emulator import COMPILER, Emulator
from torch import Tensor

from evenflow.cells import GatedFeedback
from evenflow.scan import gated_feedback_torch, reference
from evenflow.scan.cuda import build, gated_feedback
from evenflow.scan.cuda.stack import FAR_AWAY, IN_REGISTERS, IN_SHARED, Stack

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")

CLOSE = {"atol": 1e-5, "rtol": 1e-5}  # single precision, sums of at most 100 products in another order
MODELS, STEPS, BATCH = 2, 4, 4
# Rows running at each step; must not rise. Of a piece of longer sequences some may have ended before its first step.
RAGGED = {"even": None, "ragged": (4, 3, 3, 1), "some without a step": (2, 1, 1, 1)}
SHARES = {"tanh": 1, "gru": 3, "lstm": 4}
NEAR, SHARED, FAR = ((place,) * 3 for place in (IN_REGISTERS, IN_SHARED, FAR_AWAY))
# Units, layers, blocks of a cluster, lanes, units of a group, rows, places of the weights.
SHAPES = {
    "one layer": (12, 1, 2, 8, 2, 2, NEAR),
    "two layers": (20, 2, 2, 8, 2, 4, NEAR),
    "three layers": (12, 3, 2, 8, 1, 2, NEAR),
    "four blocks": (37, 3, 4, 16, 4, 2, (IN_REGISTERS, IN_SHARED, FAR_AWAY)),
    "more blocks than lanes with an item": (20, 2, 8, 8, 1, 8, SHARED),
    "more rows than there are": (33, 2, 2, 32, 2, 8, FAR),
    "one row": (8, 2, 16, 8, 1, 1, (IN_SHARED, IN_REGISTERS, IN_SHARED)),
    "four layers": (10, 4, 4, 32, 1, 4, (FAR_AWAY, IN_REGISTERS, IN_REGISTERS)),
    "several columns": (70, 2, 2, 8, 2, 2, (IN_REGISTERS, FAR_AWAY, IN_SHARED)),
}
# Each shape with some units, and four with all of them: compilation takes its time.
CASES = [(shape, unit) for shape in ("one layer", "two layers", "three layers", "four blocks") for unit in SHARES]
CASES += [("more blocks than lanes with an item", "tanh"), ("more rows than there are", "lstm")]
CASES += [("one row", "lstm"), ("four layers", "tanh"), ("several columns", "gru")]
cases = pytest.mark.parametrize(("shape", "unit"), CASES)


def stack(shape: str, unit: str, way: str, dropped: bool) -> Stack:
    hidden, layers, *rest = SHAPES[shape]
    return Stack(hidden, layers, SHARES[unit], way, dropped, *rest)  # type: ignore[arg-type]


def kernels() -> Iterator[Stack]:
    for shape, unit in CASES:
        for way in ("forward", "backward"):
            yield stack(shape, unit, way, False)
            if shape == "four blocks":
                yield stack(shape, unit, way, True)
    for way in ("forward", "backward"):
        yield plans(way)


def plans(way: str) -> Stack:
    """What the cost model takes for 40 units."""
    found = gated_feedback.chosen(way, 40, 2, 3, False, MODELS * BATCH, torch.device("cpu"))
    assert found is not None
    return found


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Emulator:
    return Emulator(kernels(), tmp_path_factory.mktemp("kernels"))


@pytest.fixture(autouse=True)
def emulated(machine: Emulator, monkeypatch: pytest.MonkeyPatch) -> Emulator:
    machine.order = 0
    monkeypatch.setattr(build, "launch", machine.launch)
    return machine


def inputs(shape: str, unit: str, dropped: bool = False, bias: bool = True) -> tuple[Tensor | None, ...]:
    H, L = SHAPES[shape][:2] if shape in SHAPES else (40, 2)
    shares, wide = SHARES[unit], SHARES[unit] * H + L

    def drawn(*size: int, scale: float = 1.0) -> Tensor:
        return scale * normal(MODELS, *size, seed=sum(size))

    return (
        drawn(STEPS, BATCH, wide),
        drawn(STEPS, BATCH, (L - 1) * H).sign() + 1 if dropped else None,
        drawn(L, H, L * H, scale=H**-0.5),
        drawn(L * L, L * H, scale=(L * H) ** -0.5),
        drawn(L, (shares - 1) * H, H, scale=H**-0.5) if shares > 1 else None,
        drawn(L - 1, wide, H, scale=H**-0.5),
        drawn(L - 1, wide, scale=0.3) if bias else None,
        drawn(L, H, scale=0.3) if bias and unit == "gru" else None,
        drawn(BATCH, L * H),
        drawn(BATCH, L * H, scale=0.5) if unit == "lstm" else None,
    )


NAMES = "d_a d_feedback d_gate d_own d_up d_bias d_shift d_h0 d_c0 d_states"


def same(names: str, got: tuple[Tensor, ...], expected: tuple[Tensor, ...], **bounds: float) -> None:
    for name, one, other in zip(names.split(), got, expected, strict=True):
        torch.testing.assert_close(one, other, **(bounds or CLOSE), msg=lambda said, name=name: f"{name}: {said}")


def check(shape: str, unit: str, ragged: tuple[int, ...] | None, dropped: bool = False, bias: bool = True) -> None:
    given = inputs(shape, unit, dropped, bias)
    expected = gated_feedback_torch.forward(*given, ragged)
    got = gated_feedback.forward(*given, ragged, stack=stack(shape, unit, "forward", dropped))
    same("h c units gates", got, expected)
    _, factors, feedback, gate, own, up, _, _, h0, c0 = given
    grads = [normal(*expected[0].shape, seed=5), normal(*expected[0].shape, seed=6) if unit == "lstm" else None]
    for grad_h, grad_c, tap in ((*grads, True), (grads[0], None, False), (None, grads[1], False)):
        if grad_h is None and grad_c is None:
            continue
        back = (grad_h, grad_c, *expected, factors, feedback, gate, own, up, h0, c0, ragged, tap)
        found = gated_feedback.backward(*back, stack=stack(shape, unit, "backward", dropped))
        same(NAMES, found, gated_feedback_torch.backward(*back))


@pytest.mark.parametrize("ragged", RAGGED.values(), ids=RAGGED)
@cases
def test_shapes(shape: str, unit: str, ragged: tuple[int, ...] | None) -> None:
    check(shape, unit, ragged)


@pytest.mark.parametrize("ragged", RAGGED.values(), ids=RAGGED)
@pytest.mark.parametrize("unit", SHARES)
def test_dropout_and_no_bias(unit: str, ragged: tuple[int, ...] | None) -> None:
    check("four blocks", unit, ragged, dropped=True)
    check("four blocks", unit, ragged, bias=False)


@pytest.mark.parametrize("unit", SHARES)
def test_against_the_cell_in_double_precision(unit: str) -> None:
    """The reference loop over the cell itself, model by model, with its gradients by autograd."""
    L = SHAPES["four blocks"][1]
    given = inputs("four blocks", unit)
    forward, back = (stack("four blocks", unit, way, False) for way in ("forward", "backward"))
    kept = gated_feedback.forward(*given, None, stack=forward)
    _, factors, feedback, gate, own, up, _, _, h0, c0 = given
    grad = normal(*kept[0].shape, seed=5)
    rest = (factors, feedback, gate, own, up, h0, c0, None, False)
    got = gated_feedback.backward(grad, None, *kept, *rest, stack=back)
    cell = GatedFeedback(unit, L)
    for m in range(MODELS):
        leaves = [None if v is None else v[m].double().requires_grad_() for v in given]
        a, _, feedback_m, gate_m, own_m, up_m, bias, shift, *state = leaves
        weights = {"weight_hh": feedback_m, "weight_hh_gate": gate_m, "weight_hh_own": own_m}
        for j in range(1, L):
            weights |= {f"weight_ih_l{j}": up_m[j - 1], f"bias_l{j}": bias[j - 1]}
        weights |= {f"bias_hh_n_l{j}": shift[j] for j in range(L)} if shift is not None else {}
        states = reference.scan(cell, a, tuple(v for v in state if v is not None), weights)
        states[0].backward(grad[m].double())
        same("h", (kept[0][m].double(),), (states[0],))
        names = "d_a d_feedback d_gate d_own d_up d_bias d_shift d_h0 d_c0"
        for name, value, leaf in zip(names.split(), got, (a, *leaves[2:]), strict=False):
            if leaf is not None:
                same(name, (value[m].double(),), (leaf.grad,))


@pytest.mark.parametrize("order", [1, 2], ids=["falling", "scattered"])
@cases
def test_the_order_of_threads_does_not_matter(shape: str, unit: str, order: int, emulated: Emulator) -> None:
    given = inputs(shape, unit)
    _, factors, feedback, gate, own, up, _, _, h0, c0 = given
    seen = []
    for emulated.order in (0, order):
        kept = gated_feedback.forward(*given, None, stack=stack(shape, unit, "forward", False))
        rest = (factors, feedback, gate, own, up, h0, c0, None, True)
        back = gated_feedback.backward(kept[0], None, *kept, *rest, stack=stack(shape, unit, "backward", False))
        seen.append((*kept, *back))
    same(f"h c units gates {NAMES}", *seen, atol=0, rtol=0)


@pytest.mark.parametrize("unit", SHARES)
def test_nan_stays_in_its_row_and_ends_with_it(unit: str) -> None:
    given = inputs("four blocks", unit)
    sizes = (4, 3, 3, 1)
    given[0][:, 3:, 1:] = torch.nan  # beyond these rows' ends
    clean = gated_feedback.forward(*given, sizes, stack=stack("four blocks", unit, "forward", False))
    assert not any(v.isnan().any() for v in clean)
    given[0][0, 1, 0] = torch.nan
    spoilt = gated_feedback.forward(*given, sizes, stack=stack("four blocks", unit, "forward", False))[0]
    assert spoilt[0, 1:, 0].isnan().all()
    spoilt[0, 1:, 0] = clean[0][0, 1:, 0]
    torch.testing.assert_close(spoilt, clean[0], atol=0, rtol=0)


def test_what_the_cost_model_takes() -> None:
    given = inputs("the plan's", "gru")
    expected = gated_feedback_torch.forward(*given, None)
    same("h c units gates", gated_feedback.forward(*given, None), expected)
    _, factors, feedback, gate, own, up, _, _, h0, c0 = given
    rest = (factors, feedback, gate, own, up, h0, c0, None, True)
    back = (normal(*expected[0].shape, seed=5), None, *expected, *rest)
    same(NAMES, gated_feedback.backward(*back), gated_feedback_torch.backward(*back))


def test_weights_lie_in_every_place() -> None:
    assert {place for each in kernels() for place in each.places} == {IN_REGISTERS, IN_SHARED, FAR_AWAY}
