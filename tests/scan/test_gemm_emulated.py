"""The weight gradient's kernel, run on the CPU by `cuda_on_cpu.h`, against the plain sum in double precision; and how
its work is shared out. `tests/gpu` runs it on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product as combined

import pytest
import torch
from cuda_cases import normal
from cuda_emulator import COMPILER, Emulator
from torch import Tensor

from evenflow.runtime import compile_cuda as build
from evenflow.runtime import cuda_libraries as libraries
from evenflow.scan.cuda import cuda_recurrence as recurrence
from evenflow.scan.cuda import gemm
from evenflow.scan.cuda.gemm_tiles import GEMM_TILES, GemmTile, choose_gemm_tile
from evenflow.scan.cuda.gpu_capacity import H200
from evenflow.scan.cuda.kernels import GemmKernel
from evenflow.scan.weight_gradient import summed

# ‖difference‖ / ‖sum‖: three products of TF32 leave about 1e-7, two would leave 1e-4, sums cut off at their full length
# 1e-5 and single precision added up one after another 1e-6.
CLOSE = 5e-7
SHARED_BYTES, REGISTERS = 227 * 1024, 65536  # of a multiprocessor

ONE_WARP = GemmTile(16, 8, 1, 1, 1, block_k=16, stages=2)
IN_HALVES = GemmTile(16, 8, 1, 1, 1, block_k=16, stages=2, fp16=True)
ONE = pytest.mark.parametrize("tile", [ONE_WARP, IN_HALVES], ids=["TF32", "halves"])
SMALL = {
    "one warp": ONE_WARP,
    "four warps": GemmTile(32, 16, 2, 2, 1, block_k=8, stages=3, chain=8),
    "side by side": GemmTile(64, 32, 1, 2, 1, stages=2),
    "packs of four": GemmTile(32, 32, 1, 1, 1, chain=32),
    "halves": GemmTile(32, 16, 2, 2, 1, block_k=16, stages=3, fp16=True),
    "halves, packs of four": GemmTile(64, 64, 1, 2, 1, stages=2, fp16=True),
}
# L, R and rows: fitting, smaller and larger than a tile, not multiples of four, and a single number.
SIZES = [(16, 8, 32), (40, 12, 50), (33, 9, 21), (7, 35, 77), (65, 64, 40), (1, 1, 1), (4, 4, 3)]


def kernels() -> Iterator[GemmKernel]:
    for tile in (*SMALL.values(), IN_HALVES, *GEMM_TILES):
        for by_4 in combined((False, True), repeat=2):
            yield GemmKernel(tile, *by_4)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Emulator:
    if COMPILER is None:
        pytest.skip("needs a C++ compiler")
    return Emulator(kernels(), tmp_path_factory.mktemp("gradient"))


@pytest.fixture
def emulated(machine: Emulator, monkeypatch: pytest.MonkeyPatch) -> Emulator:
    machine.order = 0
    monkeypatch.setattr(build, "launch", machine.launch)
    return machine


def plain(left: Tensor, right: Tensor, first: Tensor | None = None) -> Tensor:
    if first is not None:
        right = torch.cat([first, right], 1)[:, : left.shape[1]]
    return torch.einsum("mnl,mnr->mlr", left.double(), right.double())


def off(got: Tensor, expected: Tensor) -> float:
    assert got.shape == expected.shape
    assert got.dtype == torch.float32
    assert got.is_contiguous()
    return ((got.double() - expected).norm() / expected.norm()).item()


def sides(models: int, rows: int, left: int, right: int) -> tuple[Tensor, Tensor]:
    return normal(models, rows, left), normal(models, rows, right, seed=1)


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("models", [1, 3])
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("tile", SMALL.values(), ids=SMALL)
def test_sums(tile: GemmTile, size: tuple[int, int, int], models: int) -> None:
    left, right = sides(models, size[2], *size[:2])
    for parts in (1, 3):
        assert off(gemm.product(left, right, tile=tile, parts=parts), plain(left, right)) < CLOSE


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("batch", [1, 5, 24, 60])
@pytest.mark.parametrize("tile", SMALL.values(), ids=SMALL)
def test_one_step_behind(tile: GemmTile, batch: int) -> None:
    left, right = sides(2, 60, 20, 12)
    first = normal(2, batch, 12, seed=2)
    right[:, 60 - batch :] = torch.nan  # the last step meets nothing
    for parts in (1, 2, 4):
        assert off(gemm.product(left, right, first, tile=tile, parts=parts), plain(left, right, first)) < CLOSE


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("tile", GEMM_TILES, ids=lambda p: f"{p.block_m} x {p.block_n}{', halves' * p.fp16}")
def test_the_patches_of_the_plan(tile: GemmTile) -> None:
    left, right = sides(1, 70, 132, 72)
    first = normal(1, 6, 72, seed=2)
    assert off(gemm.product(left, right, first, tile=tile, parts=2), plain(left, right, first)) < CLOSE


@pytest.mark.usefixtures("emulated")
def test_slices_and_repeated_rows_are_read_in_place() -> None:
    wide = normal(2, 40, 24)
    right, first = normal(2, 40, 9, seed=1)[..., 1:], normal(2, 1, 8, seed=2).expand(2, 5, 8)
    for left in (wide[..., :16], wide[..., 3:], wide.mT.contiguous().mT):
        assert off(gemm.product(left, right, first, tile=ONE_WARP), plain(left, right, first)) < CLOSE


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("kind", ["either sign", "one sign"])
@pytest.mark.parametrize("rows", [2048, 39_200])
@ONE
def test_long_sums_keep_single_precision(tile: GemmTile, rows: int, kind: str) -> None:
    left, right = sides(1, rows, 16, 8)
    if kind == "one sign":
        left, right = left.abs(), right.abs()
    assert off(gemm.product(left, right, tile=tile, parts=1), plain(left, right)) < CLOSE


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("largest", [1e-30, 1.0, 1e30])
@ONE
def test_numbers_far_apart(tile: GemmTile, largest: float) -> None:
    """Gradients are: most of them may be a thousandth of the largest, whose power they share."""
    left, right = sides(1, 500, 16, 8)
    left, right = left * left.abs() ** 4, right * right.abs() ** 4
    left, right = left / left.abs().max() * largest, right / right.abs().max()
    left[0, 7], right[0, 7] = 0, 0  # and some are nothing
    assert off(gemm.product(left, right, tile=tile, parts=1), plain(left, right)) < CLOSE


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("small", [1e-3, 1e-8, 1e-20])
@ONE
def test_an_output_of_small_numbers_alone(tile: GemmTile, small: float) -> None:
    """Its gradient is as exact as that of others: an optimiser may divide by it."""
    left, right = sides(1, 100, 16, 8)
    left[..., 3] *= small
    right[..., 5] *= small
    got, exact = gemm.product(left, right, tile=tile, parts=1), plain(left, right)
    for place in ((0, 3), (0, slice(None), 5)):
        assert off(got[place].clone(), exact[place]) < CLOSE


@pytest.mark.parametrize("order", [1, 2], ids=["falling", "scattered"])
def test_the_order_of_threads_does_not_matter(order: int, emulated: Emulator) -> None:
    left, right = sides(2, 100, 40, 20)
    for tile in SMALL.values():
        seen = []
        for emulated.order in (0, order):
            seen.append(gemm.product(left, right, normal(2, 7, 20, seed=2), tile=tile, parts=2))
        assert torch.equal(*seen)


@pytest.mark.usefixtures("emulated")
@ONE
def test_a_number_that_is_none_stays_in_its_row_and_column(tile: GemmTile) -> None:
    left, right = sides(1, 30, 20, 10)
    left[0, 3, 4] = torch.nan
    right[0, 8, 2] = torch.inf
    got = gemm.product(left, right, tile=tile)[0]
    spoilt = torch.zeros(20, 10, dtype=torch.bool)
    spoilt[4], spoilt[:, 2] = True, True
    assert torch.equal(~got.isfinite(), spoilt)


@pytest.mark.usefixtures("emulated")
def test_no_rows() -> None:
    assert torch.equal(gemm.product(*sides(2, 0, 3, 5)), torch.zeros(2, 3, 5))


def test_the_weight_gradient_takes_it(emulated: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemm, "runs", lambda *_: True)
    d, x, x0 = normal(3, 5, 6, 24), normal(3, 5, 6, 10, seed=1), normal(3, 6, 10, seed=2)
    rows = d.flatten(1, 2), x.flatten(1, 2)
    assert off(recurrence.weight_gradient(d, x, x0), plain(*rows, x0)) < CLOSE
    assert off(recurrence.weight_gradient(d[..., :16], x, x0), plain(rows[0][..., :16], rows[1], x0)) < CLOSE
    assert off(summed(*rows), plain(*rows)) < CLOSE


@pytest.mark.parametrize("models", [1, 3])
def test_elsewhere_the_weight_gradient_is_a_product_of_torch(models: int) -> None:
    d, x, x0 = normal(models, 5, 6, 24), normal(models, 5, 6, 10, seed=1), normal(models, 6, 10, seed=2)
    rows = d.flatten(1, 2), x.flatten(1, 2)
    assert not gemm.runs(*rows, 10**9)
    assert off(recurrence.weight_gradient(d, x, x0), plain(*rows, x0)) < CLOSE


# Models, rows, L, R: those of the benchmark.
WANTED = [
    (1, 39_200, 1024, 1024),
    (1, 200_704, 512, 512),
    (1, 39_200, 2048, 512),
    (1, 39_200, 1024, 512),
    (1, 39_200, 128, 128),
    (16, 39_200, 128, 128),
    (32, 39_200, 128, 128),
]
LEAST_BUSY = 0.85  # of the multiprocessors, over the whole product


@pytest.mark.parametrize("size", WANTED, ids=str)
def test_all_multiprocessors_are_at_work(size: tuple[int, int, int, int]) -> None:
    models, rows, left, right = size
    tile, each = choose_gemm_tile(*size)
    tiles = tile.count(left, right)
    parts = -(-rows // each)
    blocks = parts * models * tiles
    full, rest = divmod(blocks, H200.multiprocessors * tile.blocks_per_sm)
    turns = full * tile.blocks_per_sm + min(tile.blocks_per_sm, -(-rest // H200.multiprocessors))
    assert each % tile.block_k == 0
    assert models * tiles * rows / (turns * H200.multiprocessors * each) > LEAST_BUSY


def test_a_gpu_with_little_shared_memory_has_patches_too() -> None:
    assert choose_gemm_tile(1, 39_200, 1024, 1024)[0].memory > 99 * 1024
    assert choose_gemm_tile(1, 39_200, 1024, 1024, block_bytes=99 * 1024)[0].memory <= 99 * 1024


@pytest.mark.parametrize("tile", GEMM_TILES, ids=lambda p: f"{p.block_m} x {p.block_n}{', halves' * p.fp16}")
def test_every_patch_can_be_launched(tile: GemmTile) -> None:
    assert tile.blocks_per_sm * (tile.memory + 1024) <= SHARED_BYTES + 1024
    matrices = tile.block_m * tile.block_n // (128 * tile.warps_m * tile.warps_n)
    assert (
        8 * matrices * tile.threads * tile.blocks_per_sm < REGISTERS
    )  # two sums of four for each, and room for the rest


@pytest.mark.parametrize("tile", GEMM_TILES, ids=lambda p: f"{p.block_m} x {p.block_n}{', halves' * p.fp16}")
def test_nvrtc_compiles(tile: GemmTile) -> None:
    try:
        libraries.nvrtc_version()
    except libraries.CudaError as error:
        pytest.skip(str(error))
    assert libraries.compile_source(GemmKernel(tile).source(), "sm_90")[:4] == b"\x7fELF"
