"""Compiles the kernels beside this file at first use, keeps them on disk, and launches them.

What was compiled lies in the cache folder of `native`, under a name made from the text of the kernel, the options, the
GPU's architecture and the versions of NVRTC and the driver, so that it is compiled once per machine. T, B and the
number of models are arguments of a kernel; H and the tile are compiled in.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from evenflow.runtime import compile_c as native
from evenflow.runtime.cuda_libraries import (
    OPTIONS,
    CudaError,
    architectures,
    compiled,
    context,
    driver,
    driver_version,
    nvrtc_version,
)

SOURCES = Path(__file__).parents[1] / "scan" / "cuda"
SHARED = (
    "tile.cuh",
    "fp16_split.cuh",
    "exchange.cuh",
    "fragments.cuh",
    "tensor_core_product.cuh",
    "scatter_product.cuh",
    "functions.cuh",
)  # what every kernel is made with, in this order
# Attributes of a function, as the driver numbers them.
LOCAL_BYTES, REGISTERS, MOST_SHARED_BYTES, LARGE_CLUSTERS = 3, 4, 8, 14
PORTABLE_CLUSTER, PLAIN_SHARED_BYTES = 8, 48 * 1024

_lock = threading.Lock()


class Launched(Protocol):
    """What is compiled and launched here: a recurrence, or the product after it."""

    @property
    def function(self) -> str: ...
    @property
    def threads(self) -> int: ...
    @property
    def memory(self) -> int: ...
    @property
    def cluster(self) -> int: ...
    def blocks(self, batch: int) -> int: ...
    def entry(self, name: str) -> str: ...
    def text(self, machine: str = ...) -> str: ...
    def __hash__(self) -> int: ...


@functools.cache
def read(file: str) -> str:
    return (SOURCES / file).read_text(encoding="utf-8") + "\n"


def filled(job: type[ctypes.Structure], **values: Tensor | float | None) -> ctypes.Structure:
    """A job with its fields filled in; tensors go by address, and what is not named is zero or NULL."""
    made = job()
    for field, value in values.items():
        if isinstance(value, Tensor):
            assert value.is_contiguous(), field
            setattr(made, field, value.data_ptr())
        elif value is not None:
            setattr(made, field, value)
    return made


def launch(kernel: Launched, job: ctypes.Structure, like: Tensor, models: int, batch: int) -> None:
    """Run a kernel on the GPU of `like`, after what is already in its current stream."""
    if models * batch == 0:  # a grid of nothing is an error to the driver
        return
    with torch.cuda.device(like.device):
        driver("cuCtxSetCurrent", context(like.device.index))  # a new thread has none yet
        function = loaded(kernel, like.device.index)
        arguments = (ctypes.c_void_p * 1)(ctypes.addressof(job))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        grid, threads = (kernel.blocks(batch), models, 1), (kernel.threads, 1, 1)
        driver("cuLaunchKernel", function, *grid, *threads, kernel.memory, stream, arguments, None)


def loaded(kernel: Launched, device: int) -> ctypes.c_void_p:
    """The kernel on one GPU, from memory, from disk or freshly compiled."""
    with _lock:  # two threads must not compile the same kernel
        return _loaded(kernel, device)


@functools.cache
def _loaded(kernel: Launched, device: int) -> ctypes.c_void_p:
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    try:
        driver("cuModuleLoadData", ctypes.byref(module), code(kernel, device))
    except CudaError:
        place(kernel, device).unlink(missing_ok=True)  # a spoilt file: compile once more
        driver("cuModuleLoadData", ctypes.byref(module), code(kernel, device))
    driver("cuModuleGetFunction", ctypes.byref(function), module, b"run")
    if kernel.memory > PLAIN_SHARED_BYTES:
        driver("cuFuncSetAttribute", function, MOST_SHARED_BYTES, kernel.memory)
    if kernel.cluster > PORTABLE_CLUSTER:
        driver("cuFuncSetAttribute", function, LARGE_CLUSTERS, 1)
    return function


def code(kernel: Launched, device: int) -> bytes:
    """The kernel's machine code for one GPU, from disk or freshly compiled."""
    return cached(place(kernel, device), lambda: compiled(kernel.text(), _architecture(device)))


def place(kernel: Launched, device: int) -> Path:
    """Where its machine code is kept."""
    made_of = kernel.text(), _architecture(device), str(nvrtc_version()), str(driver_version())
    return native.cache_folder() / f"{kernel.function}-{fingerprint(*made_of)}.cubin"


def _architecture(device: int) -> str:
    return "sm_{}{}".format(*torch.cuda.get_device_capability(device))


@functools.cache
def missing(device: int) -> str | None:
    """Why nothing can be compiled for, or started on, this GPU; None where it can."""
    try:
        driver_version()
        known = architectures()
    except CudaError as why:
        return str(why)
    wanted = _architecture(device)
    return None if int(wanted[3:]) in known else f"NVRTC {'.'.join(map(str, nvrtc_version()))} does not know {wanted}"


def resources(kernel: Launched, device: int) -> dict[str, int]:
    """Registers and bytes of local memory per thread, as the driver reports them."""
    found = {}
    for name, attribute in (("registers", REGISTERS), ("local_bytes", LOCAL_BYTES)):
        number = ctypes.c_int()
        driver("cuFuncGetAttribute", ctypes.byref(number), attribute, loaded(kernel, device))
        found[name] = number.value
    return found


def fingerprint(*made_of: str) -> str:
    """Twenty hexadecimal digits that change with anything the machine code depends on."""
    return hashlib.sha256("\0".join((*OPTIONS, *made_of)).encode()).hexdigest()[:20]


def cached(path: Path, make: Callable[[], bytes]) -> bytes:
    """What lies at `path`, made and put there when it is missing; a folder that cannot be written to is no error."""
    try:
        if code := path.read_bytes():
            return code
    except OSError:
        pass
    code = make()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(code)
        os.replace(temporary, path)  # atomic, so that of several processes each finds a whole file
    except OSError:
        pass
    return code
