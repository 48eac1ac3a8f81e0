"""The CUDA kernels, run on the CPU by `cuda_on_cpu.h`: every output and gradient against the torch operations in double
precision, which `test_recurrence.py` holds to the reference loop.

What this cannot show is speed, and whether a GPU's memory is as orderly as the emulation; `tests/gpu` runs them there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from cuda_cases import CELLS, MODELS, STEPS, Case, Problem, inputs, kernels, normal, on, resets
from cuda_emulator import COMPILER, Emulator
from torch import Tensor

from evenflow.activations import ACTIVATIONS
from evenflow.runtime import compile_cuda as build
from evenflow.scan import torch_operations
from evenflow.scan.compiled_step import CompiledStep
from evenflow.scan.cuda import cuda_recurrence as recurrence
from evenflow.scan.cuda.tile import Tile
from evenflow.scan.engine import ScanInputs, ScanOutputs, scan_gradients

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")

CLOSE = 1e-5  # ‖difference‖ / ‖result‖: single precision, sums of at most some hundred products in another order
# Drift of a norm in 100 steps: single precision's is 1e-8; with the half nearest to each number, whose products make
# sums that the hardware has to cut off, it is 4e-6.
NORM_KEPT = 1e-6
# ‖difference‖ / ‖result‖ of one product: single precision's is 1e-7, and two of the three products would leave 1e-4.
PRODUCT = 3e-7
RAGGED = {"even": None, "ragged": (4, 3, 3, 1)}  # rows running at each step; must not rise

PLAIN = Tile(1, 8, 4, 2)  # padded units, one item per lane
SEVERAL = Tile(1, 4, 4, 4)  # several items per lane
APART = Tile(2, 8, 2, 2)  # a cluster
ASYNC_STORE = Tile(2, 8, 2, 2, held=1, async_store=True)
ON_TENSOR_CORES = Tile(1, 64, 32, 8, tensor_cores=True)  # four items of a lane, moved at once
SHAPES = [
    (8, Tile(1, 8, 4, 1)),
    (12, Tile(1, 16, 8, 4)),
    (20, Tile(1, 4, 4, 4, held=1)),
    (32, Tile(1, 32, 4, 1)),
    (40, Tile(1, 8, 4, 2, held=0)),
    (64, Tile(1, 16, 8, 1)),
    (20, Tile(4, 8, 2, 2)),
    (32, Tile(2, 16, 4, 8)),
    (40, Tile(4, 16, 4, 1, async_store=True)),
    (64, Tile(8, 16, 2, 4, held=0, async_store=True)),
    (40, Tile(16, 8, 2, 4, async_store=True)),
]
TENSOR_SHAPES = [
    (16, Tile(1, 32, 16, 8, tensor_cores=True)),
    (40, Tile(1, 64, 16, 16, tensor_cores=True)),  # padded units and inputs, several rows of matrices
    (64, Tile(1, 64, 16, 8, held=1, tensor_cores=True)),  # most weights in shared memory, two warps share the inputs
    (64, Tile(2, 128, 32, 16, held=5, async_store=True, tensor_cores=True)),
    (40, Tile(4, 256, 16, 8, async_store=True, tensor_cores=True)),  # more lanes than items
    (64, Tile(4, 32, 16, 8, tensor_cores=True)),
    (80, Tile(6, 64, 16, 16, held=2, async_store=True, tensor_cores=True)),  # a cluster of no power of two
    (
        128,
        Tile(4, 32, 16, 8, held=13, async_store=True, tensor_cores=True),
    ),  # weights in shared memory among those in registers
    (
        482,
        Tile(16, 128, 32, 8, held=9, async_store=True, tensor_cores=True),
    ),  # two items of a lane, which travel in fours
    (
        64,
        Tile(1, 64, 16, 8, held=1, tensor_cores=True, prefetch_slots=3),
    ),  # weights that come from device memory every step
    (40, Tile(2, 64, 16, 16, held=0, async_store=True, tensor_cores=True, prefetch_slots=4)),
]
SCATTERED = [  # blocks send sums
    (64, Tile(4, 32, 16, 8, async_store=True, tensor_cores=True, scatter=True)),
    (40, Tile(4, 64, 16, 16, held=3, async_store=True, tensor_cores=True, scatter=True)),
    (64, Tile(2, 64, 16, 8, held=0, async_store=True, tensor_cores=True, scatter=True)),
    (40, Tile(4, 64, 16, 8, held=0, async_store=True, tensor_cores=True, scatter=True, prefetch_slots=3)),
]
GATES = [(20, PLAIN), (20, APART), *SHAPES[1:3], (40, Tile(4, 8, 2, 2, held=1)), SHAPES[-1]]
GATES += [TENSOR_SHAPES[1], TENSOR_SHAPES[3], *TENSOR_SHAPES[-2:], *SCATTERED[:2], SCATTERED[-1]]
# Products that wait for each other share a tile.
SEVERAL_PRODUCTS = [
    (20, PLAIN),
    (20, APART),
    (20, ASYNC_STORE),
    (40, Tile(2, 64, 16, 8, async_store=True, tensor_cores=True)),
]
SEVERAL_PRODUCTS += [(40, Tile(4, 32, 16, 8, held=2, async_store=True, tensor_cores=True))]
# Sums over units of numbers that lie in several lanes, warps and blocks.
SUMS = [(20, SEVERAL), (36, ON_TENSOR_CORES), (20, Tile(8, 32, 2, 4, held=1, async_store=True, ahead=1))]
SUMS += [(40, Tile(2, 64, 16, 8, async_store=True, tensor_cores=True)), (20, Tile(4, 16, 4, 2, ahead=1))]
WAITING = ("lem", "mgu", "gru u(r h)", "layer-norm gru", "cornn")

EVERY_CELL = [Case(name, 12, PLAIN) for name in CELLS]
ELSEWHERE = [Case(f"elman {name}", 20, APART) for name in ACTIVATIONS]
ELSEWHERE += [Case(f"gated {name}", 12, SEVERAL) for name in ACTIVATIONS]
ELSEWHERE += [Case(f"elman {name}", 36, ON_TENSOR_CORES) for name in ACTIVATIONS]
ELSEWHERE += [Case(name, 20, ASYNC_STORE) for name in CELLS if "elman" not in name and not name.startswith("gated ")]
ELMANS = [Case("gated tanh", *shape) for shape in (*SHAPES, *TENSOR_SHAPES, *SCATTERED)]
GATED = [Case(name, *shape) for name in ("gru", "lstm peephole") for shape in GATES]
STAGED = [Case(name, *shape) for name in WAITING for shape in SEVERAL_PRODUCTS]
NARROW = [Case("numbers per row", *shape) for shape in (*SUMS, *SEVERAL_PRODUCTS[1:3])]
NARROW += [Case("gated feedback lstm, three layers", *SUMS[2]), Case("layer-norm gru", *SUMS[2])]
RESETTING = [Case(name, 12, PLAIN, resets=True) for name in CELLS]
RESETTING += [Case(name, *shape, resets=True) for name in ("gru", "lstm peephole") for shape in GATES[1::4]]
RESETTING += [Case(name, *shape, resets=True) for name in WAITING[::2] for shape in SEVERAL_PRODUCTS[2:4]]
RESETTING += [Case("numbers per row", *SUMS[2], resets=True)]
LINEAR = Case("elman identity", *TENSOR_SHAPES[2])
ALL = list(
    dict.fromkeys(
        [
            *EVERY_CELL,
            *ELSEWHERE,
            *ELMANS,
            *GATED,
            *STAGED,
            *NARROW,
            *RESETTING,
            LINEAR,
            Case("elman tanh", 36, ON_TENSOR_CORES),
        ]
    )
)
# Half of the rows with one tile, then the others with another.
WAVES = ((2, PLAIN), (2, SEVERAL))
IN_WAVES = [
    Case(name, 12, tile) for name in ("gated modrelu", "elman abs", "lstm peephole", "gru") for tile in (PLAIN, SEVERAL)
]


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Emulator:
    """All that this file runs, compiled in one go."""
    listed = dict.fromkeys([*ALL, *IN_WAVES])
    return Emulator((kernel for case in listed for kernel in kernels(case)), tmp_path_factory.mktemp("kernels"))


@pytest.fixture(autouse=True)
def emulated(machine: Emulator, monkeypatch: pytest.MonkeyPatch) -> Emulator:
    machine.order = 0
    monkeypatch.setattr(build, "launch", machine.launch)
    return machine


Outputs = dict[str, Tensor]


def scan_inputs(step: CompiledStep, given: Problem, sizes: Sequence[int] | None) -> ScanInputs:
    at = resets(step, *given.a.shape[:3])
    return ScanInputs(step, *given, sizes, None if at is None else at.to(given.a.dtype))


def forward(engine: Any, step: CompiledStep, given: Problem, sizes: Sequence[int] | None) -> ScanOutputs:
    outputs: ScanOutputs = engine.forward(scan_inputs(step, given, sizes))
    return outputs


def backward(
    engine: Any,
    step: CompiledStep,
    grads: Sequence[Tensor | None],
    given: Problem,
    stored: tuple[list[Tensor], Tensor, Tensor],
    sizes: Sequence[int] | None,
    tap: bool,
) -> Outputs:
    inputs = scan_inputs(step, given, sizes)
    d_a, d_states, d_matrices, d_parameters, d_tap = scan_gradients(engine, inputs, ScanOutputs(*stored), grads, tap)
    found = {"d_a": d_a, **{f"d_s0 {i}": d for i, d in enumerate(d_states)}}
    found |= {f"d_weight {i}": d for i, d in enumerate(d_matrices)}
    found |= {f"d_parameter {i}": d for i, d in enumerate(d_parameters) if d is not None}
    if d_tap is not None:
        found["tap"] = d_tap
    return found


def same(got: Outputs, expected: Outputs, bound: float = CLOSE) -> None:
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        error = (got[name].double() - value).norm() / value.norm().clamp(min=1e-30)
        assert error <= bound or torch.equal(got[name].double(), value), f"{name} is off by {error:.1e}"


def check(case: Case, sizes: Sequence[int] | None, tap: bool, waves: Sequence[tuple[int, Tile]] = ()) -> None:
    step = case.step()
    given = inputs(step)
    new, kept, marks = forward(torch_operations, step, given.to(torch.float64), sizes)
    grads = [normal(*s.shape, seed=4 + i) for i, s in enumerate(new)]
    # The backward pass starts from the same numbers, so that a kink is on the same side for both.
    stored = [s.float() for s in new], kept.float(), marks
    wide = [s.double() for s in stored[0]], stored[1].double(), marks
    expected = backward(torch_operations, step, [g.double() for g in grads], given.to(torch.float64), wide, sizes, tap)
    with on(case.tile, waves):
        got, got_kept, got_marks = forward(recurrence, step, given, sizes)
        found = backward(recurrence, step, grads, given, stored, sizes, tap)
    same({f"state {i}": s for i, s in enumerate(got)}, {f"state {i}": s for i, s in enumerate(new)})
    same({"kept": got_kept}, {"kept": kept})
    assert torch.equal(got_marks, marks)
    same(found, expected)


@pytest.mark.parametrize("ragged", RAGGED.values(), ids=RAGGED)
@pytest.mark.parametrize("case", EVERY_CELL, ids=str)
def test_every_cell(case: Case, ragged: tuple[int, ...] | None) -> None:
    check(case, ragged, tap=True)


@pytest.mark.parametrize("case", ELSEWHERE, ids=str)
def test_in_clusters_with_several_items_and_on_tensor_cores(case: Case) -> None:
    check(case, (4, 3, 3, 1), tap=False)


@pytest.mark.parametrize("ragged", RAGGED.values(), ids=RAGGED)
@pytest.mark.parametrize("case", [*ELMANS, *GATED], ids=str)
def test_shapes(case: Case, ragged: tuple[int, ...] | None) -> None:
    check(case, ragged, tap=True)


@pytest.mark.parametrize("case", STAGED, ids=str)
def test_products_that_wait_for_each_other(case: Case) -> None:
    check(case, (4, 3, 3, 1), tap=True)


@pytest.mark.parametrize("ragged", RAGGED.values(), ids=RAGGED)
@pytest.mark.parametrize("case", NARROW, ids=str)
def test_products_with_numbers_per_row(case: Case, ragged: tuple[int, ...] | None) -> None:
    check(case, ragged, tap=True)


@pytest.mark.parametrize("case", RESETTING, ids=str)
def test_rows_that_restart(case: Case) -> None:
    check(case, None, tap=True)
    check(case, (4, 3, 3, 1), tap=False)


@pytest.mark.parametrize("ragged", RAGGED.values(), ids=RAGGED)
@pytest.mark.parametrize("name", ["gated modrelu", "elman abs", "lstm peephole", "gru"])
def test_some_rows_after_others(name: str, ragged: tuple[int, ...] | None) -> None:
    check(Case(name, 12, PLAIN), ragged, tap=True, waves=WAVES)


@pytest.mark.parametrize("missing", [0, 1])
def test_a_state_without_a_gradient_counts_as_zero(missing: int) -> None:
    case = Case("lstm peephole", 20, APART)
    step = case.step()
    given = inputs(step)
    with on(case.tile):
        stored = forward(recurrence, step, given, None)
        grads: list[Tensor | None] = [normal(*s.shape, seed=4) for s in stored[0]]
        none = [None if i == missing else g for i, g in enumerate(grads)]
        zero = [torch.zeros_like(stored[0][0]) if i == missing else g for i, g in enumerate(grads)]
        found = [backward(recurrence, step, each, given, stored, None, True) for each in (none, zero)]
    same(*found, bound=0)


@pytest.mark.parametrize("cell", ["gated tanh", "elman abs", "lem"])
def test_numbers_that_begin_anywhere(cell: str) -> None:
    """Threads move several at once, which must begin at a multiple of their bytes; parts of other tensors may not."""
    case = Case(cell, 12, SEVERAL) if cell != "lem" else Case(cell, 20, PLAIN)
    step = case.step()

    def moved(value: Tensor | None) -> Tensor | None:
        if value is None or not value.numel():
            return value
        within = value.new_empty(value.numel() + 1)[1:].view_as(value)
        return within.copy_(value)

    given = inputs(step)
    elsewhere = Problem(moved(given.a), *([moved(v) for v in several] for several in given[1:]))  # type: ignore[arg-type]
    seen = []
    with on(case.tile):
        stored = forward(recurrence, step, given, None)
        grads = [normal(*s.shape, seed=4) for s in stored[0]]
        for each, change in ((given, lambda v: v), (elsewhere, moved)):
            new, kept, marks = forward(recurrence, step, each, None)
            again = [change(s) for s in new], change(kept), change(marks)
            found = backward(recurrence, step, [change(g) for g in grads], each, again, None, True)
            seen.append({"new": new[0], "kept": kept, **found})
    same(seen[1], seen[0], bound=0)


@pytest.mark.parametrize("order", [1, 2], ids=["falling", "scattered"])
@pytest.mark.parametrize(
    "case",
    [ELMANS[n] for n in (1, 6, 8, 10)]
    + ELMANS[12:]
    + [c for c in STAGED if c.cell in ("lem", "layer-norm gru")]
    + NARROW,
    ids=str,
)
def test_the_order_of_threads_does_not_matter(case: Case, order: int, emulated: Emulator) -> None:
    step = case.step()
    given, seen = inputs(step), []
    with on(case.tile):
        for emulated.order in (0, order):
            new, kept, marks = forward(recurrence, step, given, None)
            found = backward(recurrence, step, new, given, (new, kept, marks), None, True)
            seen.append({"new": new[0], "kept": kept, **found})
    same(seen[1], seen[0], bound=0)


def test_a_nan_stays_in_its_row() -> None:
    for case in (Case("elman tanh", 36, ON_TENSOR_CORES), Case("elman tanh", 20, APART)):
        step = case.step()
        given = inputs(step)
        with on(case.tile):
            (clean,), *_ = forward(recurrence, step, given, None)
            given.a[0, 1, 2, 5] = torch.nan
            (states,), *_ = forward(recurrence, step, given, None)
        assert states[0, 2:, 2].isnan().all()
        assert states.isnan().any(-1).sum() == STEPS - 1
        states[0, 1:, 2] = clean[0, 1:, 2]
        assert torch.equal(states, clean)


@pytest.mark.parametrize("cell", ["elman tanh", "lstm peephole", "layer-norm gru", "fastgrnn"])
def test_rows_at_their_end_are_zero_whatever_lies_beyond(cell: str) -> None:
    case, sizes = Case(cell, 12, PLAIN), (4, 3, 3, 1)
    step = case.step()
    given = inputs(step)
    given.a[:, 3, 1:] = torch.nan
    with on(case.tile):
        new, kept, marks = forward(recurrence, step, given, sizes)
        grads = [normal(*s.shape) for s in new]
        for g in grads:
            g[:, 3, 1:] = torch.nan
        found = backward(recurrence, step, grads, given, (new, kept, marks), sizes, True)
    for value in (*new, found["d_a"], found["tap"]):
        assert not value[:, 3, 1:].any()
    assert not any(value.isnan().any() for value in (*new, *found.values()))


def linear(weight: Tensor, h0: Tensor, steps: int) -> tuple[CompiledStep, Problem, Tensor]:
    step = LINEAR.step()
    given = Problem(torch.zeros(len(h0), steps, h0.shape[1], LINEAR.hidden), [h0], [weight], [None])
    with on(LINEAR.tile):
        (states,), *_ = forward(recurrence, step, given, None)
    return step, given, states


def product_on_tensor_cores(weight: Tensor, h0: Tensor, steps: int = 1) -> tuple[Tensor, Tensor]:
    """W^steps h0 and the same in double precision."""
    exact = h0.double()
    for _ in range(steps):
        exact = exact @ weight.double().mT
    return linear(weight, h0, steps)[2][:, -1].double(), exact


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
@pytest.mark.parametrize("larger", [1.0, 100.0, 1e4])
def test_tensor_cores_take_outputs_and_states_of_any_size(larger: float, scale: float) -> None:
    """Every output has a power of its own, so that large weights of one take nothing from another."""
    size = LINEAR.hidden
    weight, h0 = torch.linalg.qr(normal(1, size, size))[0].contiguous(), scale * normal(1, 8, size, seed=2)
    weight[:, ::16] *= larger
    got, exact = product_on_tensor_cores(weight, h0)
    rows = torch.arange(size) % 16 != 0
    for part in (rows, ~rows):
        assert (got - exact)[..., part].norm() / exact[..., part].norm() < PRODUCT


def test_tensor_cores_keep_the_norm_of_one_sign() -> None:
    """Where all products have one sign their sums are the largest, and what is cut off of them would show."""
    size = LINEAR.hidden
    weight = torch.linalg.qr(normal(1, size, size))[0].abs().contiguous()
    weight /= torch.linalg.matrix_norm(weight, 2)
    got, exact = product_on_tensor_cores(weight, normal(1, 8, size, seed=2).abs(), steps=100)
    assert abs(got.norm() / exact.norm() - 1) < NORM_KEPT


def test_tensor_cores_keep_the_norm() -> None:
    """Sums that were cut off would shrink an orthogonal recurrence, a little at each step."""
    size = LINEAR.hidden
    weight, h0 = torch.linalg.qr(normal(1, size, size))[0].contiguous(), normal(1, 8, size, seed=2)
    step, given, states = linear(weight, h0, 100)
    assert abs(states[:, -1].norm() / h0.norm() - 1) < NORM_KEPT
    grad = torch.zeros_like(states)
    grad[:, -1] = h0
    with on(LINEAR.tile):
        stored = [states], states[..., :0], states[..., :0].to(torch.int8)
        d_h0 = backward(recurrence, step, [grad], given, stored, None, False)["d_s0 0"]
    assert abs(d_h0.norm() / h0.norm() - 1) < NORM_KEPT


def test_a_linear_recurrence_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows and many steps run as more rows and fewer steps."""
    case = Case("elman identity", 12, PLAIN)
    step = case.step()
    given = inputs(step, steps=STEPS * 3)
    given.matrices[0].copy_(torch.linalg.qr(given.matrices[0]).Q)
    seen = []
    with on(case.tile):
        for pieces in (1, 3):
            monkeypatch.setattr(recurrence, "_pieces", lambda a, pieces=pieces: pieces)
            stored = forward(recurrence, step, given, None)
            found = backward(recurrence, step, [normal(*stored[0][0].shape, seed=4)], given, stored, None, True)
            seen.append({"states": stored[0][0].double(), **{k: v.double() for k, v in found.items()}})
    same(seen[1], seen[0])


def test_models_have_weights_of_their_own() -> None:
    case = Case("lem", 20, PLAIN)
    step = case.step()
    given = inputs(step)
    assert len(given.a) == MODELS > 1
    with on(case.tile):
        new, *_ = forward(recurrence, step, given, None)
        alone = Problem(given.a[1:], *([None if v is None else v[1:] for v in several] for several in given[1:]))  # type: ignore[arg-type]
        (second, *_), *_ = forward(recurrence, step, alone, None)
    assert torch.equal(new[0][1:], second)


def test_lengths_of_rows() -> None:
    assert recurrence.lengths((4, 3, 3, 1), 4, torch.empty(0)).tolist() == [4, 3, 3, 1]
    assert recurrence.lengths((2, 2), 3, torch.empty(0)).tolist() == [2, 2, 0]
    assert recurrence.lengths(None, 3, torch.empty(0)) is None
