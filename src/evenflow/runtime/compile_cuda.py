"""Compiles CUDA kernels at first use, keeps their machine code on disk, and launches them.

The machine code lies in `compile_cache.cache_folder` under a name made from the kernel's source, the compiler options,
the GPU's architecture and the versions of NVRTC and the driver: each kernel is compiled once per machine.
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from evenflow.runtime.compile_cache import cache_folder, cached_bytes, compile_once, fingerprint
from evenflow.runtime.cuda_libraries import (
    OPTIONS,
    CudaError,
    compile_source,
    context,
    driver,
    driver_version,
    nvrtc_version,
    supported_architectures,
)

# Attributes of a function, as the driver numbers them.
LOCAL_BYTES, REGISTERS, MAX_SHARED_BYTES, LARGE_CLUSTERS = 3, 4, 8, 14
PORTABLE_CLUSTER, DEFAULT_SHARED_BYTES = 8, 48 * 1024  # beyond these a kernel has to ask


class Kernel(Protocol):
    """A kernel that can be compiled and launched; hashable, since compiled kernels are cached.

    Attributes:
        function: what it computes, for the name of its file.
        threads: of a block.
        memory: bytes of dynamic shared memory of a block.
        cluster: blocks of a cluster.
    """

    @property
    def function(self) -> str: ...
    @property
    def threads(self) -> int: ...
    @property
    def memory(self) -> int: ...
    @property
    def cluster(self) -> int: ...
    def blocks(self, batch: int) -> int:
        """Blocks of its grid for one model."""

    def source(self) -> str:
        """The CUDA source, which defines the kernel ``run``; the same for every GPU."""

    def __hash__(self) -> int: ...


def launch(kernel: Kernel, job: ctypes.Structure, like: Tensor, models: int, batch: int) -> None:
    """Run a kernel with the argument `job` in the current stream of the GPU of `like`."""
    if models * batch == 0:  # the driver refuses an empty grid
        return
    with torch.cuda.device(like.device):
        driver("cuCtxSetCurrent", context(like.device.index))  # a new thread has no context yet
        function = loaded(kernel, like.device.index)
        arguments = (ctypes.c_void_p * 1)(ctypes.addressof(job))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        grid, threads = (kernel.blocks(batch), models, 1), (kernel.threads, 1, 1)
        driver("cuLaunchKernel", function, *grid, *threads, kernel.memory, stream, arguments, None)


@compile_once
def loaded(kernel: Kernel, device: int) -> ctypes.c_void_p:
    """The kernel on one GPU, from memory, from disk or freshly compiled."""
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    driver("cuModuleLoadData", ctypes.byref(module), machine_code(kernel, device))
    driver("cuModuleGetFunction", ctypes.byref(function), module, b"run")
    if kernel.memory > DEFAULT_SHARED_BYTES:
        driver("cuFuncSetAttribute", function, MAX_SHARED_BYTES, kernel.memory)
    if kernel.cluster > PORTABLE_CLUSTER:
        driver("cuFuncSetAttribute", function, LARGE_CLUSTERS, 1)
    return function


def machine_code(kernel: Kernel, device: int) -> bytes:
    """The kernel's machine code for one GPU, from disk or freshly compiled."""
    return cached_bytes(cubin_path(kernel, device), lambda: compile_source(kernel.source(), architecture(device)))


def cubin_path(kernel: Kernel, device: int) -> Path:
    """The file in which the machine code is kept."""
    versions = str(nvrtc_version()), str(driver_version())
    name = fingerprint(*OPTIONS, kernel.source(), architecture(device), *versions)
    return cache_folder() / f"{kernel.function}-{name}.cubin"


def architecture(device: int) -> str:
    """The architecture of a GPU as NVRTC names it, such as ``"sm_90"``."""
    return "sm_{}{}".format(*torch.cuda.get_device_capability(device))


@functools.cache
def unavailable(device: int) -> str | None:
    """The reason why no kernel can be compiled for this GPU or started on it, or None."""
    try:
        driver_version()
        supported = supported_architectures()
    except CudaError as error:
        return str(error)
    name = architecture(device)
    return None if int(name[3:]) in supported else f"NVRTC {'.'.join(map(str, nvrtc_version()))} does not know {name}"


def resources(kernel: Kernel, device: int) -> dict[str, int]:
    """Registers and bytes of local memory per thread, as the driver reports them."""
    attributes = {"registers": REGISTERS, "local_bytes": LOCAL_BYTES}
    counts = {name: ctypes.c_int() for name in attributes}
    for name, attribute in attributes.items():
        driver("cuFuncGetAttribute", ctypes.byref(counts[name]), attribute, loaded(kernel, device))
    return {name: count.value for name, count in counts.items()}
