"""What a GPU runs at the same time: multiprocessors, and clusters of blocks by size.

There is room for fewer clusters than the number of multiprocessors suggests: the blocks of a cluster lie in one of the
parts that a GPU is built of, and some parts have fewer multiprocessors than others. Of clusters of 4 an H200 has room
for 33 by count and runs 30; a batch that needs 32 takes twice as long. The driver is asked about an empty kernel that
has a multiprocessor to itself.
"""

from __future__ import annotations

import ctypes
import functools
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch

from evenflow.runtime import compile_cuda
from evenflow.runtime.cuda_libraries import CudaError, block_bytes, context, driver
from evenflow.scan.cuda.tile import Tile

CLUSTER_SIZES = (2, 4, 8, 16)  # blocks of a cluster, in the tables of tiles
# Compute capabilities.
FIRST_WITH_TENSOR_CORES, FIRST_WITH_CLUSTERS, MEASURED = (8, 0), (9, 0), (9, 0)
CLUSTER_ATTRIBUTE = 4  # of a launch, as the driver numbers them
NO_SUCH_CLUSTERS = (1, 801, 912)  # the driver's errors for them: value, support, size


@dataclass(frozen=True)
class GpuCapacity:
    """What a GPU runs at the same time.

    Args:
        multiprocessors: their number.
        clusters: by size how many clusters, each block alone on its multiprocessor; empty where a GPU has no clusters.
        shared_bytes: of shared memory that one block may have.
        tensor_cores: whether its tensor cores multiply halves as the kernels do.
    """

    multiprocessors: int
    clusters: Mapping[int, int]
    shared_bytes: int = 227 * 1024
    tensor_cores: bool = True

    def tiles_at_once(self, tile: Tile) -> int:
        """How many blocks, or clusters of blocks, of a tile run at the same time."""
        blocks = self.multiprocessors if tile.blocks == 1 else self.clusters.get(tile.blocks, 0)
        return blocks * tile.blocks_per_sm

    def runs(self, tile: Tile) -> bool:
        """Return True if the GPU can run this tile."""
        return self.tiles_at_once(tile) > 0 and (self.tensor_cores or not tile.tensor_cores)


# By count there would be 33 clusters of 4 and 8 of 16.
H200 = GpuCapacity(132, MappingProxyType({2: 66, 4: 30, 8: 15, 16: 7}))


@functools.cache
def gpu_capacity(device: torch.device) -> GpuCapacity:
    """The capacity of this GPU; that of an H200 where the device is no GPU. Warns once of a GPU that was not tried."""
    if device.type != "cuda":
        return H200
    multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count
    capability = torch.cuda.get_device_capability(device)
    if capability != MEASURED:
        warnings.warn(
            "the CUDA kernels of evenflow were run on GPUs of compute capability {}.{} only; this one, {}, has {}.{}: "
            "compare one pass with engine='reference'".format(
                *MEASURED, torch.cuda.get_device_name(device), *capability
            ),
            RuntimeWarning,
            stacklevel=2,
        )
    sizes = CLUSTER_SIZES if capability >= FIRST_WITH_CLUSTERS else ()
    counts = {size: max_active_clusters(size, device.index) for size in sizes}
    clusters = {size: count for size, count in counts.items() if count}
    return GpuCapacity(multiprocessors, clusters, block_bytes(device.index), capability >= FIRST_WITH_TENSOR_CORES)


class _LaunchAttribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int), ("gap", ctypes.c_int), ("value", ctypes.c_uint * 16))


class _LaunchConfig(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_uint) for name in ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "memory")),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_LaunchAttribute)),
        ("count", ctypes.c_uint),
    )


@dataclass(frozen=True)
class EmptyKernel:
    """A kernel that does nothing, with `memory` bytes of shared memory, in clusters of `cluster` blocks."""

    memory: int
    cluster: int
    function = "nothing"
    threads = 32

    def blocks(self, batch: int) -> int:
        return batch

    def source(self) -> str:
        return 'extern "C" __global__ void run() {}\n'


@functools.cache
def max_active_clusters(size: int, device: int) -> int:
    """Clusters of `size` blocks, each block alone on its multiprocessor; 0 where the GPU has none of this size."""
    cluster = _LaunchAttribute(CLUSTER_ATTRIBUTE, 0, (ctypes.c_uint * 16)(size, 1, 1))
    count = ctypes.c_int()
    with torch.cuda.device(device):
        driver("cuCtxSetCurrent", context(device))  # a new thread has no context yet
        kernel = EmptyKernel(block_bytes(device), size)
        config = _LaunchConfig(size, 1, 1, kernel.threads, 1, 1, kernel.memory, None, ctypes.pointer(cluster), 1)
        try:
            function = compile_cuda.loaded(kernel, device)
            driver("cuOccupancyMaxActiveClusters", ctypes.byref(count), function, ctypes.byref(config))
        except CudaError as error:
            if error.status not in NO_SUCH_CLUSTERS:  # a passing error, such as full memory, is not cached
                raise
            return 0
    return count.value
