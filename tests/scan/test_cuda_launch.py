"""What the driver is told, by a driver that writes it down: no GPU, and no NVRTC, is needed."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from cuda_cases import Case, on

from evenflow.runtime import compile_cuda as build
from evenflow.runtime import cuda_libraries as libraries
from evenflow.scan.cuda import cuda_recurrence as recurrence
from evenflow.scan.cuda import step_kernels
from evenflow.scan.cuda.gpu_capacity import NO_SUCH_CLUSTERS, max_active_clusters
from evenflow.scan.cuda.tile import ProductShape, Tile

COMPILER = next((name for name in ("cc", "gcc", "clang") if shutil.which(name)), None)
pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs a C compiler")

DRIVER = """
int seen[16], count, fails;
static void note(int a, int b, int c, int d) {
    seen[count++] = a, seen[count++] = b, seen[count++] = c, seen[count++] = d;
}
int cuCtxSetCurrent(void *c) { return 0; }
int cuDriverGetVersion(int *v) { *v = 13000; return 0; }
int cuDeviceGet(int *d, int n) { *d = n; return 0; }
int cuDevicePrimaryCtxRetain(void **c, int d) { *c = (void *)1; return 0; }
int cuModuleLoadData(void **m, const char *code) { *m = (void *)2; return code[0] == 'x' ? 209 : 0; }
int cuModuleGetFunction(void **f, void *m, const char *name) { *f = (void *)3; return 0; }
int cuFuncSetAttribute(void *f, int a, int v) { note(-1, a, v, 0); return 0; }
int cuGetErrorString(int e, const char **s) { *s = e == 209 ? "no kernel image" : "out of resources"; return 0; }
int cuLaunchKernel(void *f, unsigned x, unsigned y, unsigned z, unsigned t, unsigned u, unsigned v, unsigned bytes,
                   void *s, void **a, void **e) { note(x, y, t, bytes); return fails; }
int cuDeviceGetAttribute(int *v, int a, int d) { *v = 232448; return 0; }
typedef struct { int id; char gap[4]; union { unsigned cluster[3]; char all[64]; } value; } Attribute;
typedef struct { unsigned grid[3], block[3], bytes; void *stream; Attribute *attributes; unsigned count; } Config;
int cuOccupancyMaxActiveClusters(int *n, void *f, const Config *c) {
    const unsigned *size = c->attributes[0].value.cluster;
    if (c->count != 1 || c->attributes[0].id != 4 || size[1] * size[2] != 1 || c->grid[0] != size[0]) return 1;
    note(c->block[0], c->bytes, size[0], 0);
    *n = 120 / size[0];
    return fails;
}
"""


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ctypes.CDLL]:
    source, library = tmp_path / "driver.c", tmp_path / "driver.so"
    source.write_text(DRIVER)
    subprocess.run([str(COMPILER), "-shared", "-fPIC", "-w", str(source), "-o", str(library)], check=True)
    made = ctypes.CDLL(str(library))
    monkeypatch.setattr(libraries, "_cuda", lambda: made)
    monkeypatch.setattr(build, "compile_source", lambda *_: b"machine code")
    monkeypatch.setattr(build, "nvrtc_version", lambda: (13, 0))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0))
    caches = (build.loaded, libraries.context, max_active_clusters)
    for cache in caches:
        cache.cache_clear()
    yield made
    for cache in caches:
        cache.cache_clear()


ON_GPU: Any = SimpleNamespace(device=torch.device("cuda", 0))


def launched(driver: ctypes.CDLL, hidden: int, tile: Tile, models: int = 1, batch: int = 50) -> list[list[int]]:
    with on(tile):
        ((_, kernel),) = step_kernels.kernels(
            Case("elman tanh", hidden, tile).step(), False, models, batch, torch.device("cpu")
        )
    build.launch(kernel, recurrence.job_type(8)(), ON_GPU, models, batch)
    count = ctypes.c_int.in_dll(driver, "count")
    seen = (ctypes.c_int * 16).in_dll(driver, "seen")
    rows = [list(seen[at : at + 4]) for at in range(0, count.value, 4)]
    count.value = 0
    return rows


def test_a_grid_of_tiles_and_models(driver: ctypes.CDLL) -> None:
    tile = Tile(1, 8, 8, 2)
    memory = tile.memory(128, ProductShape(1, 1), 1)
    assert launched(driver, 128, tile, models=3) == [[25, 3, 128, memory]]
    assert launched(driver, 128, tile, models=3) == [[25, 3, 128, memory]]
    assert launched(driver, 128, tile, models=0) == []  # a grid of nothing is an error to the driver


def test_much_memory_and_large_clusters_are_asked_for(driver: ctypes.CDLL) -> None:
    tile = Tile(16, 16, 4, 8, held=8, async_store=True)
    memory = tile.memory(1024, ProductShape(1, 1), 1)
    first, second, start = launched(driver, 1024, tile)
    assert first == [-1, build.MAX_SHARED_BYTES, memory, 0]
    assert second == [-1, build.LARGE_CLUSTERS, 1, 0]
    assert start == [7 * 16, 1, 256, memory]


def test_a_spoilt_file_is_compiled_again(driver: ctypes.CDLL, tmp_path: Path) -> None:
    launched(driver, 64, Tile(1, 8, 4, 1))
    (kept,) = (tmp_path / "cache").rglob("*.cubin")
    kept.write_bytes(b"x spoilt")
    build.loaded.cache_clear()
    launched(driver, 64, Tile(1, 8, 4, 1))
    assert kept.read_bytes() == b"machine code"


def test_how_many_clusters_run_at_once(driver: ctypes.CDLL) -> None:
    assert max_active_clusters(4, 0) == 30
    seen = list((ctypes.c_int * 16).in_dll(driver, "seen"))
    assert seen[:4] == [-1, build.MAX_SHARED_BYTES, 232448, 0], "a block has its multiprocessor to itself"
    assert seen[4:8] == [32, 232448, 4, 0]


@pytest.mark.parametrize("status", NO_SUCH_CLUSTERS)
def test_a_gpu_without_such_clusters(driver: ctypes.CDLL, status: int) -> None:
    ctypes.c_int.in_dll(driver, "fails").value = status
    assert max_active_clusters(16, 0) == 0


def test_an_error_of_the_moment_is_not_remembered(driver: ctypes.CDLL) -> None:
    fails = ctypes.c_int.in_dll(driver, "fails")
    fails.value = 2  # out of memory
    with pytest.raises(libraries.CudaError):
        max_active_clusters(8, 0)
    fails.value = ctypes.c_int.in_dll(driver, "count").value = 0
    assert max_active_clusters(8, 0) == 15


def test_what_the_driver_refuses_is_said(driver: ctypes.CDLL) -> None:
    ctypes.c_int.in_dll(driver, "fails").value = 701
    with pytest.raises(libraries.CudaError, match="cuLaunchKernel failed: out of resources"):
        launched(driver, 64, Tile(1, 8, 4, 1))
