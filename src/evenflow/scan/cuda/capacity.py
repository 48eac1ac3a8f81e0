"""How many clusters a GPU runs at once: fewer than it has multiprocessors for.

The blocks of a cluster lie in one of the parts that a GPU is built of, and some parts have fewer multiprocessors than
others. Of clusters of 4 an H200 has room for 33 by count and runs 30; a batch that needs 32 takes twice as long. The
driver is asked about a kernel that does nothing and has a multiprocessor to itself.
"""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass

import torch

from evenflow.runtime import compile_cuda as build
from evenflow.runtime.cuda_libraries import CudaError, block_bytes, context, driver

CLUSTER_SIZE = 4  # an attribute of a launch, as the driver numbers them
REFUSALS = (1, 801, 912)  # its ways to say that there are no such clusters: value, support, size


class _Attribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int), ("gap", ctypes.c_int), ("value", ctypes.c_uint * 16))


class _Launch(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_uint) for name in ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "memory")),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    )


@dataclass(frozen=True)
class Nothing:
    """A kernel that does nothing, in clusters of some size, with all the shared memory of a multiprocessor."""

    memory: int
    cluster: int
    function = "nothing"
    threads = 32

    def blocks(self, batch: int) -> int:
        return batch

    def entry(self, name: str) -> str:
        return f'extern "C" __global__ void {name}() {{}}\n'

    def text(self, machine: str = "") -> str:
        return self.entry("run")


@functools.cache
def clusters_at_once(size: int, device: int) -> int:
    """Clusters of `size` blocks, each block alone on its multiprocessor; 0 where the GPU has none of this size."""
    cluster = _Attribute(CLUSTER_SIZE, 0, (ctypes.c_uint * 16)(size, 1, 1))
    count = ctypes.c_int()
    with torch.cuda.device(device):
        driver("cuCtxSetCurrent", context(device))  # a new thread has none yet
        kernel = Nothing(block_bytes(device), size)
        asked = _Launch(size, 1, 1, kernel.threads, 1, 1, kernel.memory, None, ctypes.pointer(cluster), 1)
        try:
            function = build.loaded(kernel, device)
            driver("cuOccupancyMaxActiveClusters", ctypes.byref(count), function, ctypes.byref(asked))
        except CudaError as error:
            if error.status not in REFUSALS:  # of the moment, as full memory is: nothing to be remembered
                raise
            return 0
    return count.value
