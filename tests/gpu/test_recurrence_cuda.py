"""The kernels of every cell on a GPU against the torch operations in double precision; `make test-gpu` runs these.

`tests/scan/test_cuda_emulated.py` runs the same kernels on a CPU, at small sizes and with every option.
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import evenflow
from evenflow import create
from evenflow.activations import ACTIVATIONS
from evenflow.runtime import compile_cuda as build
from evenflow.scan import backend, torch_operations
from evenflow.scan.compiled_step import CompiledStep
from evenflow.scan.cuda import cuda_recurrence as recurrence
from evenflow.scan.cuda import gemm, gemm_tiles, step_kernels, tile_tables
from evenflow.scan.cuda.gpu_capacity import FIRST_WITH_CLUSTERS, gpu_capacity
from evenflow.scan.cuda.kernels import RecurrenceKernel
from evenflow.scan.cuda.tile import Tile
from evenflow.scan.engine import ScanInputs, ScanOutputs, scan_gradients

sys.path.insert(0, str(Path(__file__).parents[1] / "scan"))
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import cuda_inputs
from cuda_cases import CELLS, OWN, Case, on
from cuda_inputs import Inputs, doubled, gradients, normal, off

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

DEVICE = torch.device("cuda", 0)
# Single precision against double, as ‖difference‖ / ‖reference‖, all steps together; the goal is 1e-5 at T = 784.
CLOSE = 1e-5
# A number summed over all steps and rows, its parts of either sign.
CLOSE_SUM = 1e-4
# Of units, that two precisions put on different sides of a kink.
FEW_AT_A_KINK = 1e-3
# How far a norm may drift in 784 steps: 1.3e-7 a step, the rounding of a single-precision number.
NORM_KEPT = 1e-4
# The weight gradient alone, from the same numbers: three products of eleven bits and rounded sums.
CLOSE_GRADIENT = 1e-6
SIZES = (8, 100, 128, 192, 256, 384, 512, 768, 1024)
LONG_SIZES = (8, 100, 128, 256, 512, 1024)
GIVEN = ("elman tanh", "gated tanh", "gru", "lstm", "lstm peephole", "scrn")

# By H.
ON_TENSOR_CORES = {
    100: Tile(1, 32, 16, 8, tensor_cores=True),
    128: Tile(1, 64, 16, 16, tensor_cores=True),
    256: Tile(8, 128, 16, 8, async_store=True, tensor_cores=True),
    384: Tile(8, 64, 16, 8, held=16, tensor_cores=True),
    512: Tile(8, 64, 16, 16, async_store=True, tensor_cores=True),
    768: Tile(16, 384, 48, 8, async_store=True, tensor_cores=True),
    1024: Tile(16, 128, 32, 8, held=36, async_store=True, tensor_cores=True),
}
# Forward and backward: several numbers per unit can be scattered where they go in, not where they come out.
GATED_ON_TENSOR_CORES = {
    256: (Tile(8, 128, 16, 8, async_store=True, tensor_cores=True),) * 2,
    512: (
        Tile(16, 128, 16, 8, held=32, async_store=True, tensor_cores=True),
        Tile(16, 128, 16, 8, held=32, async_store=True, tensor_cores=True, scatter=True),
    ),
}
# Products that wait for each other: plain, in a cluster by either exchange, and on tensor cores.
STAGED = {
    "plain": (100, Tile(1, 8, 4, 2, held=1)),
    "barrier": (100, Tile(4, 16, 4, 2, held=1)),
    "async_store": (100, Tile(4, 16, 4, 2, held=1, async_store=True)),
    "tensor_cores": (128, Tile(4, 64, 16, 8, held=4, async_store=True, tensor_cores=True)),
    "cluster of 16": (256, Tile(16, 128, 16, 8, held=4, async_store=True, tensor_cores=True)),
}
WAITING = ("lem", "mgu", "gru u(r h)", "layer-norm gru", "cornn")


class Run(NamedTuple):
    """One cell at one size: what is checked, and compiled ahead.

    Args:
        ragged: rows end at different steps.
        tile, back: of the forward and the backward pass, instead of the plan's; back is the first one's if None.
    """

    cell: str
    hidden: int
    batch: int = 50
    steps: int = 784
    models: int = 1
    ragged: bool = False
    tile: Tile | None = None
    back: Tile | None = None

    def __str__(self) -> str:
        shape = f"{self.cell} H{self.hidden} B{self.batch} T{self.steps} M{self.models}{' ragged' * self.ragged}"
        if self.tile is None:
            return shape
        t, kinds = self.tile, ("async_store", "tensor_cores", "scatter", "prefetch_slots")
        return f"{shape} C{t.blocks} KS{t.lanes} JT{t.units} R{t.rows} {' '.join(k for k in kinds if getattr(t, k))}"

    def step(self) -> CompiledStep:
        return Case(self.cell, self.hidden, self.tile or tile_tables.ELMAN[0][1][0]).step()

    def sizes(self) -> list[int] | None:
        """Rows running at each step, no more at a later one."""
        if not self.ragged:
            return None
        return [max(1, self.batch * (self.steps - t) // self.steps) for t in range(self.steps)]

    def missing(self, step: CompiledStep) -> str | None:
        """Why this GPU does not run it."""
        machine = gpu_capacity(DEVICE)
        if not all(machine.runs(t) for t in (self.tile, self.back) if t is not None):
            return "this GPU has no such clusters"
        return None if self.tile is not None else step_kernels.unsupported_step(step, DEVICE)

    def kernels(self) -> list[RecurrenceKernel]:
        step = self.step()
        if self.missing(step):
            return []
        found = []
        for backward, tile in ((False, self.tile), (True, self.back or self.tile)):
            with on(tile):
                several = step_kernels.kernels(step, backward, self.models, self.batch, DEVICE)
            found += [kernel for _, kernel in several]
        return found


@pytest.fixture(scope="module", autouse=True)
def compiled(request: pytest.FixtureRequest) -> None:
    """Kernels of all cases that will run, side by side: each takes seconds of a core."""
    params = [getattr(item, "callspec", None) for item in request.session.items]
    runs = {v for p in params if p is not None for v in p.params.values() if isinstance(v, Run)}
    # Of test processes side by side, each compiles a share, and finds most of the others on the disk.
    number, count = (int(os.environ.get(name, "").removeprefix("gw") or default)
                     for name, default in (("PYTEST_XDIST_WORKER", 0), ("PYTEST_XDIST_WORKER_COUNT", 1)))  # fmt: skip
    wanted = dict.fromkeys(kernel for run in sorted(runs, key=str)[number::count] for kernel in run.kernels())
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda kernel: build.machine_code(kernel, 0), wanted))


@pytest.fixture(autouse=True)
def poisoned() -> None:
    """Free memory holds NaN, so that a number which no kernel wrote shows."""
    poison = [torch.full((1 << n,), torch.nan, device="cuda") for n in range(8, 26) for _ in range(2)]
    torch.cuda.synchronize()
    del poison


def inputs(run: Run, step: CompiledStep) -> Inputs:
    return cuda_inputs.inputs(step, run.cell, run.models, run.steps, run.batch, DEVICE)


def close(named: dict[str, tuple[Tensor, Tensor]], bound: float = CLOSE) -> None:
    for name, (got, expected) in named.items():
        assert got.shape == expected.shape, name
        if expected.numel():
            error = off(got, expected)
            limit = CLOSE_SUM if "parameter" in name else bound
            assert error < limit, f"{name} is off by {error:.1e}"  # NaN fails too


def check(run: Run) -> None:
    """Forward, and backward from the same states, so that every kink is on the same side for both."""
    step = run.step()
    if why := run.missing(step):
        pytest.skip(why)
    given, sizes = inputs(run, step), run.sizes()
    new, kept, marks = torch_operations.forward(ScanInputs(step, *given.double(), sizes))
    with on(run.tile):
        got, got_kept, got_marks = recurrence.forward(ScanInputs(step, *given, sizes))
    close({f"state {i}": pair for i, pair in enumerate(zip(got, new, strict=True))} | {"kept": (got_kept, kept)})
    if marks.numel():
        assert (got_marks != marks).double().mean() < FEW_AT_A_KINK
    grads = [normal(*s.shape, seed=40 + i) for i, s in enumerate(new)]
    stored = [s.float() for s in new], kept.float(), marks
    wide = doubled(stored[0]), stored[1].double(), marks
    exact, loose = ScanInputs(step, *given.double(), sizes), ScanInputs(step, *given, sizes)
    expected = gradients(scan_gradients(torch_operations, exact, ScanOutputs(*wide), doubled(grads), True))
    with on(run.back or run.tile):
        found = gradients(scan_gradients(recurrence, loose, ScanOutputs(*stored), grads, True))
    assert found.keys() == expected.keys()
    close({name: (found[name], value) for name, value in expected.items()})


def even(cell: str, hidden: int) -> int:
    """The size, or one unit more for a cell that needs pairs of units."""
    try:
        CELLS[cell].start(3, hidden, True, None)
        CELLS[cell].matrices(hidden)
    except ValueError:
        return hidden + hidden % 2
    return hidden


@pytest.mark.parametrize("run", [Run(name, 128) for name in CELLS], ids=str)
def test_every_cell_over_784_steps(run: Run) -> None:
    check(run)


@pytest.mark.parametrize(
    "run", [Run(name, size) for name in (*GIVEN, *OWN) for size in LONG_SIZES if size != 128], ids=str
)
def test_sizes_over_784_steps(run: Run) -> None:
    check(run)


@pytest.mark.parametrize(
    "run",
    [
        Run(name, size, batch, steps)
        for name in ("elman tanh", "gated tanh", "gru", "lstm peephole", "lem", "layer-norm gru")
        for size in SIZES
        for batch, steps in ((1, 3), (50, 1), (256, 3))
    ],
    ids=str,
)
def test_sizes_and_batches(run: Run) -> None:
    check(run)


@pytest.mark.parametrize(
    "run",
    [Run(name, even(name, size), 5, 9, models=2, ragged=True) for name in CELLS for size in (33, 100, 256)],
    ids=str,
)
def test_every_cell_with_rows_that_end_and_several_models(run: Run) -> None:
    check(run)


@pytest.mark.parametrize("run", [Run(f"{kind} {name}", 1024, 5, 4, 2, True) for kind in ("elman", "gated")
                                 for name in ACTIVATIONS], ids=str)  # fmt: skip
def test_every_activation_on_tensor_cores(run: Run) -> None:
    check(run)


@pytest.mark.parametrize("run", [Run(name, 512) for name in ("elman abs", "gated relu", "elman oplu")], ids=str)
def test_kinks_over_784_steps(run: Run) -> None:
    check(run)


@pytest.mark.parametrize("ragged", [False, True], ids=["even", "ragged"])
@pytest.mark.parametrize("cell", ["elman tanh", "gated tanh"])
def test_some_rows_after_others(cell: str, ragged: bool) -> None:
    machine = gpu_capacity(DEVICE)
    if not tile_tables.covers(tile_tables.ELMAN, 512, machine):
        pytest.skip("no clusters")
    tile = tile_tables.ELMAN[5][1][-1]
    run = Run(cell, 512, machine.tiles_at_once(tile) * tile.rows + 16, 5, ragged=ragged)
    assert len(step_kernels.kernels(run.step(), False, 1, run.batch, DEVICE)) == 2
    check(run)


@pytest.mark.parametrize("run", [Run(name, size, 50, 20, models=16) for size in (128, 256)
                                 for name in ("elman tanh", "gru", "lem")], ids=str)  # fmt: skip
def test_many_models(run: Run) -> None:
    check(run)


@pytest.mark.parametrize("async_store", [False, True], ids=["barrier", "async_store"])
@pytest.mark.parametrize("size", [256, 512])
def test_both_ways_to_exchange_states(size: int, async_store: bool) -> None:
    check(
        Run(
            "elman tanh",
            size,
            tile=replace(tile_tables.choose(tile_tables.ELMAN, size, 50, 1), async_store=async_store),
        )
    )


@pytest.mark.parametrize("run", [Run("elman tanh", size, batch, tile=tile) for size, tile in ON_TENSOR_CORES.items()
                                 for batch in (3, 50)], ids=str)  # fmt: skip
def test_on_tensor_cores(run: Run) -> None:
    check(run)
    for pairs in ("gated oplu", "gated complex_modrelu"):
        check(run._replace(cell=pairs, steps=5, models=2, ragged=True))


@pytest.mark.parametrize("run", [Run(name, size, tile=there, back=back) for name in ("gru", "lstm peephole")
                                 for size, (there, back) in GATED_ON_TENSOR_CORES.items()], ids=str)  # fmt: skip
def test_gates_on_tensor_cores(run: Run) -> None:
    check(run)


@pytest.mark.parametrize("run", [Run(name, size, 20, 60, 2, True, tile) for name in WAITING
                                 for size, tile in STAGED.values()], ids=str)  # fmt: skip
def test_products_that_wait_for_each_other(run: Run) -> None:
    check(run)


@pytest.mark.parametrize("cell", ["elman identity", "elman oplu"])
def test_tensor_cores_keep_the_norm(cell: str) -> None:
    """Sums that were cut off would shrink an orthogonal recurrence, a little at each step."""
    run = Run(cell, 256, 8, tile=ON_TENSOR_CORES[256])
    step = run.step()
    if why := run.missing(step):
        pytest.skip(why)
    given = inputs(run, step)
    given.a.zero_()
    with on(run.tile):
        stored = recurrence.forward(ScanInputs(step, *given))
        (states,) = stored.states
        assert (states[:, -1].norm() / given.states[0].norm() - 1).abs() < NORM_KEPT
        grad = torch.zeros_like(states)
        grad[:, -1] = normal(1, 8, 256, seed=4)
        back = scan_gradients(recurrence, ScanInputs(step, *given), stored, [grad], False)
    assert (back[1][0].norm() / grad.norm() - 1).abs() < NORM_KEPT


def passes(run: Run, times: int = 3) -> list[list[Tensor]]:
    """All results of some forward and backward passes."""
    step, found = run.step(), []
    if why := run.missing(step):
        pytest.skip(why)
    given = ScanInputs(step, *inputs(run, step), run.sizes())
    for _ in range(times):
        with on(run.tile):
            stored = recurrence.forward(given)
        with on(run.back or run.tile):
            back = gradients(scan_gradients(recurrence, given, stored, stored.states, True))
        found.append([*stored.states, stored.kept, stored.marks, *back.values()])
    return found


@pytest.mark.parametrize(
    "run",
    [
        *(Run(name, 128, steps=100, models=2, ragged=True) for name in CELLS),
        *(Run(name, size, steps=100) for name in ("elman tanh", "gru", "lstm", "lem") for size in (256, 512, 1024)),
        *(Run("gated tanh", size, steps=100, tile=ON_TENSOR_CORES[size]) for size in (128, 256, 1024)),
        Run("gru", 700, steps=40, models=2),
    ],
    ids=str,
)
def test_the_same_bits_every_time(run: Run) -> None:
    first, *others = passes(run)
    for other in others:
        assert all(torch.equal(one, two) for one, two in zip(first, other, strict=True))


def test_many_weights_come_through_a_ring() -> None:
    """Those of the GRU at 700 units are too many for shared memory; `test_the_same_bits_every_time` runs them."""
    if not tile_tables.covers(tile_tables.GRU_FORWARD, 700, gpu_capacity(DEVICE)):
        pytest.skip("no clusters")
    for backward in (False, True):
        ((_, kernel),) = step_kernels.kernels(Run("gru", 700).step(), backward, 2, 50, DEVICE)
        assert kernel.step_tile.tile.prefetch_slots
        assert kernel.step_tile.tile.scatter == backward
        room = kernel.global_weights(torch.empty(0, device="cuda"), 2)
        assert room is not None
        assert room.numel() > 0
    check(Run("gru", 700, 50, 40, models=2))
    check(Run("lstm peephole", 700, 50, 40, models=2))


def test_a_gradient_that_does_not_arrive_counts_as_zero() -> None:
    run = Run("lstm", 128, steps=20)
    step = run.step()
    given = ScanInputs(step, *inputs(run, step))
    stored = recurrence.forward(given)
    grads = [normal(*s.shape, seed=4) for s in stored.states]
    for missing in (0, 1):
        found = []
        for absent in (None, torch.zeros_like(stored.states[missing])):
            arriving = [absent if i == missing else g for i, g in enumerate(grads)]
            found.append(gradients(scan_gradients(recurrence, given, stored, arriving, True)))
        assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


@pytest.mark.parametrize("name", ["rnn", "sgornn", "gru", "lstm"])
def test_steps_stored_in_half_precision(name: str) -> None:
    """The kernels run, in single precision, and what is kept between the passes takes half the memory."""
    plain, stored = (create(name, 2, 128, storage=storage).cuda() for storage in (None, "bfloat16"))
    stored.load_state_dict(plain.state_dict())
    x, kept, outputs = normal(784, 16, 2), [], []
    for layer in (plain, stored):
        layer(x)  # a library's first product of its kind keeps a workspace
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        output, _ = layer(x)
        kept.append(torch.cuda.memory_allocated() - before)
        output.float().square().mean().backward()
        outputs.append([output.float(), *(p.grad for p in layer.parameters())])
        del output
    assert kept[1] < 0.6 * kept[0]
    for one, other in zip(*outputs, strict=True):
        assert (other - one).norm() < 0.05 * one.norm() + 1e-6


@pytest.mark.parametrize("cell", ["elman tanh", "elman abs", "gated relu", "gru", "lstm", "lem", "fastgrnn"])
def test_memory_is_what_the_step_keeps(cell: str) -> None:
    """States, numbers and marks, and nothing of each step besides."""
    run = Run(cell, 128, 16)
    step = run.step()
    given = inputs(run, step)
    recurrence.forward(ScanInputs(step, *given))
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    results = recurrence.forward(ScanInputs(step, *given))
    wanted = (4 * (sum(step.state_sizes) + step.kept_size) + step.marks_size) * 784 * 16
    assert results
    assert torch.cuda.memory_allocated() - before < wanted + (16 << 20)
    assert torch.cuda.max_memory_allocated() - before < wanted + (24 << 20)


def exact_gradient(d: Tensor, x: Tensor, x0: Tensor) -> Tensor:
    behind = torch.cat([x0.unsqueeze(1), x[:, :-1]], 1)
    return d.flatten(1, 2).double().mT @ behind.flatten(1, 2).double()


def check_gradient(got: Tensor, expected: Tensor) -> None:
    assert got.shape == expected.shape
    error = ((got.double() - expected).norm() / expected.norm()).item()
    assert error < CLOSE_GRADIENT, f"off by {error:.1e}"


@pytest.mark.parametrize("models", [1, 3])
@pytest.mark.parametrize("size", [8, 33, 100, 128, 256, 512, 1024])
def test_weight_gradient(size: int, models: int) -> None:
    d, x, x0 = (normal(models, 200, 50, width, seed=seed) for seed, width in enumerate((3 * size, size, size)))
    x0 = x0[:, 0].contiguous()
    for left in (d[..., :size].contiguous(), d[..., : 2 * size]):  # also rows of a wider tensor, as the GRU's
        expected = exact_gradient(left, x, x0)
        flat = left.flatten(1, 2), x.flatten(1, 2), x0
        for tile in (None, *gemm_tiles.GEMM_TILES):
            got = gemm.product(*flat, tile=tile)
            check_gradient(got, expected)
            for _ in range(2):
                assert torch.equal(gemm.product(*flat, tile=tile), got)
        check_gradient(recurrence.weight_gradient(left, x, x0), expected)


@pytest.mark.parametrize("tile", gemm_tiles.GEMM_TILES, ids=lambda p: f"{p.block_m} x {p.block_n}{', halves' * p.fp16}")
@pytest.mark.parametrize("kind", ["either sign", "one sign"])
def test_weight_gradient_over_200_000_rows(kind: str, tile: gemm_tiles.GemmTile) -> None:
    d, x, x0 = normal(1, 784, 256, 64), normal(1, 784, 256, 64, seed=1), normal(1, 256, 64, seed=2)
    if kind == "one sign":
        d, x, x0 = d.abs(), x.abs(), x0.abs()
    for parts in (1, 40):
        got = gemm.product(d.flatten(1, 2), x.flatten(1, 2), x0, tile=tile, parts=parts)
        check_gradient(got, exact_gradient(d, x, x0))


@pytest.mark.parametrize("width", [1, 2, 3, 16])
def test_products_with_a_thin_side(width: int) -> None:
    left, right = normal(4, 5000, 128), normal(4, 5000, width, seed=1)
    check_gradient(gemm.product(left, right), left.double().mT @ right.double())


def test_another_batch_compiles_nothing() -> None:
    step = Run("elman tanh", 100).step()
    kernels = {step_kernels.kernels(step, False, 1, batch, DEVICE)[0][1] for batch in (1, 50, 132)}
    assert len(kernels) == 1
    (kernel,) = kernels
    assert build.cubin_path(kernel, 0) == build.cubin_path(
        step_kernels.kernels(Run("elman tanh", 100).step(), False, 1, 7, DEVICE)[0][1], 0
    )


def test_a_kernel_on_disk_is_not_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run("mgu", 96)
    kernels = run.kernels()
    codes = [build.machine_code(kernel, 0) for kernel in kernels]
    monkeypatch.setattr(build, "compile_source", lambda *_: pytest.fail("compiled again"))
    assert [build.machine_code(kernel, 0) for kernel in run.kernels()] == codes


@pytest.mark.parametrize(
    ("cell", "hidden"), [(name, size) for name in (*GIVEN, *OWN) for size in (128, 256)], ids=lambda v: str(v)
)
def test_registers_suffice(cell: str, hidden: int) -> None:
    """A kernel that spills many weights reads them from device memory at every step."""
    for kernel in Run(cell, hidden).kernels():
        assert build.resources(kernel, 0)["local_bytes"] <= 512, (kernel.function, kernel.step_tile)


def test_on_a_stream_of_its_own() -> None:
    for cell in ("elman tanh", "lem"):
        run = Run(cell, 128, steps=100)
        step = run.step()
        given = inputs(run, step)
        expected = recurrence.forward(ScanInputs(step, *given))[0][0]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            got = recurrence.forward(ScanInputs(step, *given))[0][0]
        stream.synchronize()
        assert torch.equal(got, expected)


def test_clusters_at_once() -> None:
    machine = gpu_capacity(DEVICE)
    assert (machine.clusters != {}) == (torch.cuda.get_device_capability() >= FIRST_WITH_CLUSTERS)
    for size, count in machine.clusters.items():
        assert 1 <= count <= machine.multiprocessors // size


def test_which_problems_run() -> None:
    step, weight = Run("elman tanh", 128).step(), torch.empty(1, 128, 128, device="cuda")
    assert step_kernels.unsupported(step, weight, None, weight) is None
    assert step_kernels.unsupported(step, weight.double()) == "the kernels compute in torch.float32, not torch.float64"
    assert step_kernels.unsupported(step, weight, weight.cpu()) == "not all of its numbers are on one NVIDIA GPU"
    assert step_kernels.unsupported(step, weight[:0]) == "there is nothing to do"
    large = torch.empty(1, 5000, 5000, device="cuda")
    said = "on this GPU no kernel of this cell runs 5000 units"
    assert step_kernels.unsupported(Run("elman tanh", 5000).step(), large) == said
    assert step_kernels.unsupported(Run("gru", 5000).step(), large) == said


def test_a_cell_without_a_kernel_runs_by_torch_operations_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    backend._warn_once.cache_clear()

    @evenflow.cell()
    def largest(a, h, U):  # type: ignore[no-untyped-def]
        x = a + h @ U.mT
        return torch.tanh(x - x.amax(-1, keepdim=True))

    layer = evenflow.Recurrent(largest(), 2, 8)
    x = normal(5, 3, 2)
    expected = layer(x.cpu())[0]
    with pytest.warns(RuntimeWarning, match=r"step by step.*the largest number of a row"):
        got = layer.cuda()(x)[0]
    torch.testing.assert_close(got.cpu(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("batch", [1, 3, 10])
def test_linear_recurrences_run_in_pieces(batch: int) -> None:
    run = Run("elman identity", 33, batch, 10_000)
    assert recurrence._pieces(inputs(run, run.step()).a) > 2
    check(run)
    assert recurrence._pieces(normal(1, 100, batch, 33)) == 1


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The kernels that are launched."""
    found: list[Any] = []
    launch = build.launch
    monkeypatch.setattr(build, "launch", lambda kernel, *rest: (found.append(kernel), launch(kernel, *rest)))
    return found


def ragged_passes(layer: evenflow.Recurrent) -> list[list[Tensor]]:
    """Outputs, last states and gradients by kernels and by the loop."""
    x = nn.utils.rnn.pack_sequence([normal(n, 3, seed=n) for n in (9, 7, 7, 1)])
    results = []
    for engine in ("auto", "reference"):
        layer.engine = engine
        layer.zero_grad()
        output, state = layer(x)
        h = state[0] if isinstance(state, tuple) else state
        (output.data.sin().sum() + h.square().sum()).backward()
        results.append([output.data.detach(), h.detach(), *(p.grad for p in layer.parameters())])
    return results


@pytest.mark.parametrize("name", ["rnn", "gru", "lstm", "sgornn", "lstm-1997", "lstm-peephole", "scrn"])
def test_layers_take_the_kernels(name: str, launched: list[Any]) -> None:
    """A layer on a GPU gives what its loop gives, ragged batches, several layers and both directions included."""
    torch.manual_seed(0)
    layer = create(name, 3, 16, num_layers=2, bidirectional=True).cuda()
    for got, expected in zip(*ragged_passes(layer), strict=True):
        torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)
    assert len([kernel for kernel in launched if isinstance(kernel, RecurrenceKernel)]) == 8  # forward and backward


@pytest.mark.parametrize("cell", OWN)
def test_layers_of_ones_own_cells_take_the_kernels(cell: str, launched: list[Any]) -> None:
    torch.manual_seed(0)
    layer = evenflow.Recurrent(OWN[cell](), 3, 20, num_layers=2, bidirectional=True).cuda()
    for got, expected in zip(*ragged_passes(layer), strict=True):
        torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)
    assert len([kernel for kernel in launched if isinstance(kernel, RecurrenceKernel)]) == 8


@pytest.mark.parametrize(("hidden", "layers"), [(8, 1), (16, 3), (37, 2), (64, 3), (128, 3)])
@pytest.mark.parametrize("unit", ["tanh", "gru", "lstm"])
def test_gated_feedback_is_one_recurrence(unit: str, hidden: int, layers: int, launched: list[Any]) -> None:
    torch.manual_seed(0)
    layer = create("gated-feedback", 3, hidden, num_layers=layers, unit=unit).cuda()
    for got, expected in zip(*ragged_passes(layer), strict=True):
        torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)
    found = [kernel for kernel in launched if isinstance(kernel, RecurrenceKernel)]
    assert len(found) == 2  # all layers at once, forward and backward


@pytest.mark.parametrize("unit", ["tanh", "gru", "lstm"])
def test_gated_feedback_with_taps_dropout_and_states(unit: str) -> None:
    """Whose step has columns behind its input: the same factors for both engines, by the same seed."""
    torch.manual_seed(0)
    results = []
    layer = create("gated-feedback", 3, 16, unit=unit, dropout=0.5).cuda()
    states = tuple(normal(3, 5, 16, seed=n) for n in range(2))
    for engine in ("auto", "reference"):
        layer.engine = engine
        layer.zero_grad()
        torch.manual_seed(1)
        with layer.taps() as taps:
            output, _ = layer(normal(30, 5, 3), states if unit == "lstm" else states[0])
        output.sin().sum().backward()
        results.append([output.detach(), *(t.grad for t in taps), *(p.grad for p in layer.parameters())])
    close({f"result {i}": pair for i, pair in enumerate(zip(*results, strict=True))}, bound=10 * CLOSE)


@pytest.mark.parametrize("name", ["rnn", "gru", "lstm"])
def test_taps_and_first_states(name: str) -> None:
    results, layer = [], create(name, 3, 100).cuda()
    states = [normal(1, 5, 100, seed=n).requires_grad_() for n in range(2)]
    hx = tuple(states) if name == "lstm" else states[0]
    for engine in ("auto", "reference"):
        layer.engine = engine
        with layer.taps() as taps:
            output, _ = layer(normal(30, 5, 3), hx)
        leaves = [*taps, *states[: 1 + (name == "lstm")], *layer.parameters()]
        results.append([output.detach(), *torch.autograd.grad(output.sin().sum(), leaves)])
    close({f"result {i}": pair for i, pair in enumerate(zip(*results, strict=True))}, bound=2 * CLOSE)


@pytest.mark.parametrize("hidden", [64, 128, 256, 512])
@pytest.mark.parametrize("kind", ["GRU", "LSTM"])
def test_cudnn_gives_the_same(kind: str, hidden: int) -> None:
    """With weights of torch's own layer, over 784 steps: both are off by their rounding."""
    torch.manual_seed(0)
    torchs = getattr(nn, kind)(3, hidden).cuda()
    ours = getattr(evenflow, kind)(3, hidden).cuda()
    with torch.no_grad():
        bias = torchs.bias_ih_l0 + torchs.bias_hh_l0
        if kind == "GRU":  # torch's second bias of the candidate is inside the reset gate's brackets
            bias[2 * hidden :] = torchs.bias_ih_l0[2 * hidden :]
            ours.weight_hh_l0.copy_(torchs.weight_hh_l0[: 2 * hidden])
            ours.weight_hh_n_l0.copy_(torchs.weight_hh_l0[2 * hidden :])
            ours.bias_hh_n_l0.copy_(torchs.bias_hh_l0[2 * hidden :])
        else:
            ours.weight_hh_l0.copy_(torchs.weight_hh_l0)
        ours.weight_ih_l0.copy_(torchs.weight_ih_l0)
        ours.bias_l0.copy_(bias)
    x, grad, found = normal(784, 50, 3), normal(784, 50, hidden, seed=1), []
    allowed = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        for layer in (ours, torchs):
            given = x.clone().requires_grad_()
            output = layer(given)[0]
            output.backward(grad)
            found.append([output.detach(), given.grad, layer.weight_ih_l0.grad])
        recurrent = [ours.weight_hh_l0.grad] if kind == "LSTM" else [ours.weight_hh_l0.grad, ours.weight_hh_n_l0.grad]
        found[0].append(torch.cat(recurrent))
        found[1].append(torchs.weight_hh_l0.grad)
    finally:
        torch.backends.cudnn.allow_tf32 = allowed
    close({f"result {i}": pair for i, pair in enumerate(zip(*found, strict=True))}, bound=3 * CLOSE)


def test_a_double_precision_layer_says_that_it_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    backend._warn_once.cache_clear()
    layer = create("rnn", 2, 4).cuda().double()
    with pytest.warns(RuntimeWarning, match=r"step by step.*float32, not torch.float64"):
        layer(torch.zeros(3, 1, 2, device="cuda", dtype=torch.float64))


@pytest.mark.parametrize("cell", ["sgornn", "lem"])
def test_recurrences_can_be_captured(cell: str) -> None:
    """No kernel waits for the host, so that a whole training step can become a CUDA graph."""
    layer = (evenflow.Recurrent(OWN[cell](), 2, 16) if cell in OWN else create(cell, 2, 16)).cuda()
    x = normal(5, 3, 2)

    def step() -> Tensor:
        for p in layer.parameters():
            p.grad = None
        output = layer(x)[0]
        output.sum().backward()
        return output

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = step()
    x.copy_(normal(5, 3, 2, seed=9))
    graph.replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(output, layer(x)[0])
