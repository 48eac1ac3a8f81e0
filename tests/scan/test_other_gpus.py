"""GPUs that the kernels were never run on: every planned kernel fits them, and NVRTC compiles it. No GPU is needed."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import pytest
import torch
from cuda_cases import Case
from kernel_registers import report

from evenflow.runtime import cuda_libraries as libraries
from evenflow.scan.cuda import gpu_capacity, step_kernels, tile_tables
from evenflow.scan.cuda.gpu_capacity import GpuCapacity
from evenflow.scan.cuda.kernels import RecurrenceKernel

KB = 1024
# Compute capability, and what a GPU of it has: multiprocessors, clusters at once, shared memory of a block.
GPUS = {
    "T4": (75, GpuCapacity(40, {}, 64 * KB, tensor_cores=False)),
    "A100": (80, GpuCapacity(108, {}, 163 * KB)),
    "RTX 3090": (86, GpuCapacity(82, {}, 99 * KB)),
    "RTX 4090": (89, GpuCapacity(128, {}, 99 * KB)),
    "B200": (100, GpuCapacity(148, {2: 74, 4: 34, 8: 16, 16: 7}, 227 * KB)),
    "RTX 5090": (120, GpuCapacity(170, {2: 85, 4: 40, 8: 20}, 99 * KB)),
}
# Units that every GPU of the table runs.
LEAST = {"elman tanh": 192, "gated tanh": 192, "gru": 128, "lstm": 96, "cornn": 128, "lem": 96, "layer-norm gru": 96}
CPU = torch.device("cpu")


def kernels(name: str, cell: str, hidden: int, batch: int, monkeypatch: pytest.MonkeyPatch) -> list[RecurrenceKernel]:
    monkeypatch.setattr(step_kernels, "gpu_capacity", lambda _: GPUS[name][1])
    step = Case(cell, hidden, tile_tables.ELMAN[0][1][0]).step()
    return [kernel for backward in (False, True) for _, kernel in step_kernels.kernels(step, backward, 1, batch, CPU)]


@pytest.mark.parametrize("cell", LEAST)
@pytest.mark.parametrize("name", GPUS)
def test_every_planned_kernel_fits(name: str, cell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = GPUS[name][1]
    for hidden in (8, 33, LEAST[cell], 256, 512, 1024):
        for batch in (1, 50, 256):
            planned = kernels(name, cell, hidden, batch, monkeypatch)
            assert planned or hidden > LEAST[cell]
            for kernel in planned:
                tile = kernel.step_tile.tile
                assert kernel.memory <= gpu.shared_bytes
                assert tile.blocks == 1 or tile.blocks in gpu.clusters
                assert gpu.tensor_cores or not tile.tensor_cores


@pytest.mark.parametrize("name", GPUS)
def test_nvrtc_compiles_without_spills(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        supported = libraries.supported_architectures()
    except libraries.CudaError as error:
        pytest.skip(str(error))
    capability, _ = GPUS[name]
    if capability not in supported:
        pytest.skip(f"this NVRTC does not know sm_{capability}")
    for kernel in kernels(name, "gru", 96, 50, monkeypatch):
        assert report(kernel, libraries._nvrtc(), f"sm_{capability}")["spilled_bytes"] == 0


def test_a_gpu_that_was_never_tried_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(multi_processor_count=108))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA A100")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    monkeypatch.setattr(gpu_capacity, "block_bytes", lambda _: 163 * KB)
    gpu_capacity.gpu_capacity.cache_clear()
    device = torch.device("cuda", 0)
    try:
        with pytest.warns(RuntimeWarning, match=r"run on GPUs of compute capability 9\.0 only; .*A100, has 8\.0"):
            assert gpu_capacity.gpu_capacity(device) == GPUS["A100"][1]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            gpu_capacity.gpu_capacity(device)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
        monkeypatch.setattr(gpu_capacity, "max_active_clusters", lambda size, _: {2: 66, 4: 30, 8: 15, 16: 7}[size])
        gpu_capacity.gpu_capacity.cache_clear()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert gpu_capacity.gpu_capacity(device).clusters[16] == 7
    finally:
        gpu_capacity.gpu_capacity.cache_clear()
