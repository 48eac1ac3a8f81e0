"""The plan of launches: which tiles run which sizes, and that every planned kernel fits a GPU and compiles."""

from __future__ import annotations

import itertools

import pytest
import torch
from cuda_cases import CELLS, Case

from evenflow.runtime import compile_cuda as build
from evenflow.runtime import cuda_libraries as libraries
from evenflow.scan.compiled_step import CompiledStep
from evenflow.scan.cuda import cuda_recurrence as recurrence
from evenflow.scan.cuda import step_kernels, tile_tables
from evenflow.scan.cuda.gpu_capacity import CLUSTER_SIZES, H200, GpuCapacity
from evenflow.scan.cuda.kernels import RecurrenceKernel
from evenflow.scan.cuda.tile import Tile

# A block of a Hopper GPU: threads, bytes of shared memory, registers of a multiprocessor and of a thread.
THREADS, SHARED_BYTES, REGISTERS, REGISTERS_OF_A_THREAD = 1024, 227 * 1024, 65536, 255
BATCHES = (1, 50, 256, 100_000)
GIVEN = ("elman tanh", "gated tanh", "gru", "lstm peephole")  # cells whose tiles are in tables
WAITING = ("lem", "mgu", "gru u(r h)", "cornn", "layer-norm gru", "elman oplu")
CPU = torch.device("cpu")


def step_of(cell: str, hidden: int) -> CompiledStep:
    return Case(cell, hidden, tile_tables.ELMAN[0][1][0]).step()


def kernels(cell: str, hidden: int, batch: int) -> list[RecurrenceKernel]:
    step = step_of(cell, hidden)
    return [kernel for backward in (False, True) for _, kernel in step_kernels.kernels(step, backward, 1, batch, CPU)]


def launchable(kernel: RecurrenceKernel, hidden: int) -> None:
    tile = kernel.step_tile.tile
    assert kernel.threads <= THREADS
    assert kernel.threads % 32 == 0
    assert kernel.memory <= SHARED_BYTES
    assert tile.owned(hidden) * tile.blocks >= hidden
    each = [(t, s) for t, s in zip(kernel.step_tile.tiles(), kernel.shapes, strict=True) if s.weighted]
    wanted = sum(t.in_registers(hidden, s) for t, s in each) + sum(map(tile.sums, kernel.shapes))
    assert wanted < min(REGISTERS_OF_A_THREAD, REGISTERS // kernel.threads)


@pytest.mark.parametrize(
    "hidden", [1, 2, 7, 8, 31, 33, 65, 100, 127, 129, 193, 256, 257, 384, 512, 513, 767, 1000, 1024]
)
def test_every_tile_of_the_plan_can_be_launched(hidden: int) -> None:
    for cell in GIVEN:
        for batch in BATCHES:
            found = kernels(cell, hidden, batch)
            assert len(found) >= 2
            for kernel in found:
                launchable(kernel, hidden)


@pytest.mark.parametrize("hidden", [1, 7, 33, 100, 128, 256])
@pytest.mark.parametrize("cell", WAITING)
def test_a_tile_is_found_for_cells_of_ones_own(cell: str, hidden: int) -> None:
    hidden += hidden % 2 if cell == "elman oplu" else 0
    for batch in BATCHES:
        found = kernels(cell, hidden, batch)
        assert len(found) == 2
        for kernel in found:
            launchable(kernel, kernel.hidden)


@pytest.mark.parametrize("unit", ["tanh", "gru", "lstm"])
def test_numbers_per_row_take_no_matrices(unit: str) -> None:
    """Three layers of 128 units with gated feedback: a matrix for each of its nine gates would leave them no tile."""
    for batch in BATCHES:
        for kernel in kernels(f"gated feedback {unit}, three layers", 128, batch):
            assert kernel.threads <= THREADS
            assert kernel.memory <= SHARED_BYTES
            # Of all layers to all, of each layer to its own gates, of each to the next.
            own = {"tanh": 0, "gru": 2, "lstm": 3}[unit]
            assert sum(shape.out * shape.into for shape in kernel.shapes) == 9 + 3 * own + 2 * (own + 1)


def test_more_units_than_any_tile_runs_are_said() -> None:
    why = step_kernels.unsupported_step(step_of("elman tanh", 5000), CPU)
    assert why == "on this GPU no kernel of this cell runs 5000 units"


def test_a_step_without_a_kernel_says_what_it_lacks() -> None:
    import evenflow

    @evenflow.cell()
    def largest(a, h, U):  # type: ignore[no-untyped-def]
        x = a + h @ U.mT
        return torch.tanh(x - x.amax(-1, keepdim=True))

    (text,) = evenflow.Recurrent(largest(), 2, 8).cell.programs.values()
    assert "the largest number of a row" in str(step_kernels.unsupported_step(CompiledStep(text), CPU))


def test_the_plan_fills_the_gpu_once_where_it_can() -> None:
    for hidden, batch, models in (
        (128, 50, 1),
        (128, 256, 1),
        (256, 50, 1),
        (256, 256, 1),
        (512, 50, 1),
        (512, 240, 1),
        (1024, 50, 1),
    ):
        tile = tile_tables.choose(tile_tables.ELMAN, hidden, batch, models)
        assert models * -(-batch // tile.rows) <= H200.tiles_at_once(tile), (hidden, batch, models)
        assert tile_tables.waves(tile_tables.ELMAN, hidden, batch, models) == ((batch, tile),)


def test_rows_that_would_leave_most_of_the_gpu_idle_run_by_themselves() -> None:
    (most, wide), (rest, quick) = tile_tables.waves(tile_tables.ELMAN, 512, 256, 1)
    assert (most, rest) == (240, 16)
    assert most // wide.rows == H200.tiles_at_once(wide)
    assert quick == tile_tables.choose(tile_tables.ELMAN, 512, 16, 1)
    tables = (
        tile_tables.ELMAN,
        tile_tables.GRU_FORWARD,
        tile_tables.GRU_BACKWARD,
        tile_tables.LSTM_FORWARD,
        tile_tables.LSTM_BACKWARD,
    )
    divided = 0
    for table, hidden, batch, models in itertools.product(
        tables,
        (64, 128, 256, 384, 512, 768, 1024),
        (0, 1, 50, 100, 240, 241, 300, 301, 1100, 5000),
        (1, 2, 8, 20, 1000),
    ):
        found, tile = tile_tables.waves(table, hidden, batch, models), tile_tables.choose(table, hidden, batch, models)
        assert sum(rows for rows, _ in found) == batch
        assert sum(rounds(rows, models, each) for rows, each in found) <= rounds(batch, models, tile)
        divided += len(found) - 1
        if len(found) > 1:
            assert tile.tensor_cores
            assert found[0][0] % tile.rows == 0
            assert found[1][1] != tile
    assert divided


def rounds(rows: int, models: int, tile: Tile) -> int:
    return -(-models * -(-rows // tile.rows) // H200.tiles_at_once(tile))


@pytest.mark.parametrize("hidden", [8, 33, 100, 128, 192, 256, 384, 512, 768, 1024])
def test_few_batches_compile_anything(hidden: int) -> None:
    assert len({tile_tables.choose(tile_tables.ELMAN, hidden, batch, 1) for batch in range(1, 513)}) <= 3


def test_a_ring_stands_alone() -> None:
    """Room for its weights is allocated for the tile of the first wave."""
    for table in (
        tile_tables.ELMAN,
        tile_tables.GRU_FORWARD,
        tile_tables.GRU_BACKWARD,
        tile_tables.LSTM_FORWARD,
        tile_tables.LSTM_BACKWARD,
    ):
        assert all(len(tiles) == 1 for _, tiles in table if any(tile.prefetch_slots for tile in tiles))


def test_the_plan_knows_every_size_of_cluster() -> None:
    tables = (
        tile_tables.ELMAN,
        tile_tables.GRU_FORWARD,
        tile_tables.GRU_BACKWARD,
        tile_tables.LSTM_FORWARD,
        tile_tables.LSTM_BACKWARD,
    )
    sizes = {tile.blocks for table in tables for _, tiles in table for tile in tiles}
    assert sizes == {1, *CLUSTER_SIZES}
    assert set(H200.clusters) == set(CLUSTER_SIZES)


def test_without_clusters_small_sizes_remain() -> None:
    bare = GpuCapacity(132, {})
    assert tile_tables.covers(tile_tables.ELMAN, 192, bare)
    assert not tile_tables.covers(tile_tables.ELMAN, 193, bare)
    assert tile_tables.covers(tile_tables.LSTM_FORWARD, 96, bare)
    assert tile_tables.choose(tile_tables.LSTM_FORWARD, 96, 256, 1).blocks > 1
    assert tile_tables.choose(tile_tables.LSTM_FORWARD, 96, 256, 1, bare).blocks == 1
    assert not tile_tables.covers(tile_tables.ELMAN, 193, bare)
    assert not tile_tables.covers(tile_tables.ELMAN, 1025)
    assert tile_tables.covers(tile_tables.LSTM_FORWARD, 513)
    assert not tile_tables.covers(tile_tables.LSTM_FORWARD, 1025)


def test_clusters_that_a_gpu_cannot_run_are_left_out() -> None:
    small = GpuCapacity(60, {2: 30, 4: 14, 8: 6})
    assert tile_tables.covers(tile_tables.ELMAN, 512, small)
    assert not tile_tables.covers(tile_tables.ELMAN, 513, small)
    assert not tile_tables.covers(tile_tables.ELMAN, 1024, small)
    assert tile_tables.choose(tile_tables.ELMAN, 512, 24, 1, small).blocks == 8
    assert tile_tables.choose(tile_tables.ELMAN, 512, 28, 1, small).blocks == 4, "six clusters of four rows run at once"


def test_tensors_of_a_cpu_do_not_run_here() -> None:
    weight = torch.empty(1, 8, 8)
    assert step_kernels.unsupported(step_of("gru", 8), weight) is not None


def test_batch_and_steps_are_not_compiled_in() -> None:
    few, many = (kernels("elman tanh", 64, batch)[0] for batch in (7, 8))
    assert few.source() == many.source()


@pytest.mark.parametrize("cell", CELLS)
def test_every_cell_has_a_source(cell: str) -> None:
    for kernel in kernels(cell, 16, 50):
        assert kernel.source().count("ENTRY(run") == 1
        assert "namespace scope_run" in kernel.source()


@pytest.fixture
def nvrtc() -> None:
    try:
        libraries.nvrtc_version()
    except libraries.CudaError as error:
        pytest.skip(str(error))


@pytest.mark.usefixtures("nvrtc")
@pytest.mark.parametrize("hidden", [100, 1024])
@pytest.mark.parametrize("cell", GIVEN)
def test_nvrtc_compiles(cell: str, hidden: int) -> None:
    for kernel in kernels(cell, hidden, 50):
        assert libraries.compile_source(kernel.source(), "sm_90")[:4] == b"\x7fELF"


@pytest.mark.usefixtures("nvrtc")
@pytest.mark.parametrize(
    "cell",
    [
        *WAITING,
        "gated feedback tanh, three layers",
        *(pytest.param(f"gated feedback {unit}, three layers", marks=pytest.mark.slow) for unit in ("gru", "lstm")),
    ],
)
def test_nvrtc_compiles_cells_of_ones_own(cell: str) -> None:
    for kernel in kernels(cell, 100, 50):
        assert libraries.compile_source(kernel.source(), "sm_90")[:4] == b"\x7fELF"


@pytest.mark.parametrize("ragged", [False, True], ids=["even", "ragged"])
def test_ragged_rows_run_in_one_launch(ragged: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where rows end early the next cluster begins; in waves it would wait for the longest."""
    seen: list[tuple[int, int, int]] = []
    monkeypatch.setattr(
        build, "launch", lambda kernel, job, like, models, rows: seen.append((job.begin, job.end, rows))
    )
    runs = step_kernels.kernels(step_of("elman tanh", 512), False, 1, 256, CPU)
    job = recurrence.job_type(8)(lengths=1 if ragged else None)
    recurrence.launch_waves(runs, job, torch.empty(1, 3, 256, 512, device="meta"), 1)
    assert seen == ([(0, 256, 256)] if ragged else [(0, 240, 240), (240, 256, 16)])
