"""Two libraries of CUDA through ctypes: NVRTC, which compiles CUDA C++ and comes with torch, and the driver."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

OPTIONS = ("--std=c++17",)
BLOCK_BYTES = 97  # an attribute of a device, as the driver numbers them


class CudaError(RuntimeError):
    """An error of the driver or of NVRTC.

    Args:
        message: the sentence to show.
        status: the driver's number of the error.
    """

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


def compile_source(source: str, architecture: str) -> bytes:
    """The machine code of a CUDA source, compiled by NVRTC."""
    rtc = _nvrtc()
    program = ctypes.c_void_p()

    def read(size_of: Any, content_of: Any) -> ctypes.Array[ctypes.c_char]:
        size = ctypes.c_size_t()
        _check_nvrtc(size_of(program, ctypes.byref(size)))
        content = ctypes.create_string_buffer(size.value)
        _check_nvrtc(content_of(program, content))
        return content

    _check_nvrtc(rtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"evenflow.cu", 0, None, None))
    try:
        options = [o.encode() for o in (*OPTIONS, f"--gpu-architecture={architecture}")]
        if rtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options)):
            log = read(rtc.nvrtcGetProgramLogSize, rtc.nvrtcGetProgramLog).value.decode()
            raise CudaError(f"NVRTC could not compile a kernel for {architecture}: {log}")
        return read(rtc.nvrtcGetCUBINSize, rtc.nvrtcGetCUBIN).raw
    finally:
        rtc.nvrtcDestroyProgram(ctypes.byref(program))


def nvrtc_version() -> tuple[int, int]:
    """The major and the minor version of NVRTC."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    _check_nvrtc(_nvrtc().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
    return major.value, minor.value


def supported_architectures() -> list[int]:
    """Compute capabilities, times ten, that NVRTC compiles for."""
    count = ctypes.c_int()
    _check_nvrtc(_nvrtc().nvrtcGetNumSupportedArchs(ctypes.byref(count)))
    numbers = (ctypes.c_int * count.value)()
    _check_nvrtc(_nvrtc().nvrtcGetSupportedArchs(numbers))
    return list(numbers)


def driver(function: str, *arguments: Any) -> None:
    """Call a function of the driver; its errors become `CudaError`."""
    library = _cuda()
    status = getattr(library, function)(*arguments)
    if status:
        message = ctypes.c_char_p()
        library.cuGetErrorString(status, ctypes.byref(message))
        raise CudaError(f"{function} failed: {(message.value or b'error %d' % status).decode()}", status)


def driver_version() -> int:
    """The version of CUDA that the driver supports, such as 13000."""
    version = ctypes.c_int()
    driver("cuDriverGetVersion", ctypes.byref(version))
    return version.value


@functools.cache
def context(device: int) -> ctypes.c_void_p:
    """The context that torch uses on this GPU."""
    number, context = ctypes.c_int(), ctypes.c_void_p()
    driver("cuDeviceGet", ctypes.byref(number), device)
    driver("cuDevicePrimaryCtxRetain", ctypes.byref(context), number)
    return context


def block_bytes(device: int) -> int:
    """The most bytes of shared memory that a block may have on this GPU."""
    number, size = ctypes.c_int(), ctypes.c_int()
    driver("cuDeviceGet", ctypes.byref(number), device)
    driver("cuDeviceGetAttribute", ctypes.byref(size), BLOCK_BYTES, number)
    return size.value


@functools.cache
def _nvrtc() -> ctypes.CDLL:
    major = (torch.version.cuda or "").split(".")[0]  # torch has loaded the library of this version
    if os.name == "nt":
        return _first_library((f"nvrtc64_{major}0_0.dll",), "NVRTC")
    names = (f"libnvrtc.so.{major}",) if major else (*_libraries_of_wheels("libnvrtc.so.*"), "libnvrtc.so")
    return _first_library(names, "NVRTC")


def _libraries_of_wheels(pattern: str) -> list[str]:
    """Files of NVIDIA's packages. torch for CPUs does not load them; kernels can then be compiled and not run."""
    spec = find_spec("nvidia")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    return [str(file) for folder in folders for file in sorted(Path(folder).glob(f"cu*/lib/{pattern}"))]


@functools.cache
def _cuda() -> ctypes.CDLL:
    return _first_library(("libcuda.so.1",) if os.name != "nt" else ("nvcuda.dll",), "the CUDA driver")


def _first_library(names: Sequence[str], title: str) -> ctypes.CDLL:
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise CudaError(f"{title} ({' or '.join(names)}) cannot be loaded")


def _check_nvrtc(status: int) -> None:
    if status:
        error_string = _nvrtc().nvrtcGetErrorString
        error_string.restype = ctypes.c_char_p
        raise CudaError(f"NVRTC says: {error_string(status).decode()}")
