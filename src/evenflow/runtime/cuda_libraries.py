"""CUDA's own libraries, by ctypes: NVRTC, which comes with torch and compiles without a compiler, and the driver."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Sequence
from typing import Any

import torch

OPTIONS = ("--std=c++17",)
BLOCK_BYTES = 97  # an attribute of a device, as the driver numbers them


class CudaError(RuntimeError):
    """The driver or NVRTC refused; the message is theirs, and so is the driver's number for it."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


def compile_source(source: str, architecture: str) -> bytes:
    """Machine code of a source, by NVRTC."""
    rtc = _nvrtc()
    program = ctypes.c_void_p()
    _check_nvrtc(rtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"evenflow.cu", 0, None, None))
    try:
        options = [o.encode() for o in (*OPTIONS, f"--gpu-architecture={architecture}")]
        status = rtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
        if status:
            size = ctypes.c_size_t()
            _check_nvrtc(rtc.nvrtcGetProgramLogSize(program, ctypes.byref(size)))
            log = ctypes.create_string_buffer(size.value)
            _check_nvrtc(rtc.nvrtcGetProgramLog(program, log))
            raise CudaError(f"NVRTC could not compile a recurrence kernel for {architecture}: {log.value.decode()}")
        size = ctypes.c_size_t()
        _check_nvrtc(rtc.nvrtcGetCUBINSize(program, ctypes.byref(size)))
        code = ctypes.create_string_buffer(size.value)
        _check_nvrtc(rtc.nvrtcGetCUBIN(program, code))
        return code.raw
    finally:
        rtc.nvrtcDestroyProgram(ctypes.byref(program))


def nvrtc_version() -> tuple[int, int]:
    major, minor = ctypes.c_int(), ctypes.c_int()
    _check_nvrtc(_nvrtc().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
    return major.value, minor.value


def driver_version() -> int:
    version = ctypes.c_int()
    driver("cuDriverGetVersion", ctypes.byref(version))
    return version.value


@functools.cache
def _nvrtc() -> ctypes.CDLL:
    major = (torch.version.cuda or "").split(".")[0]  # that of torch is in the process already
    names = (f"libnvrtc.so.{major}".rstrip("."), "libnvrtc.so") if os.name != "nt" else (f"nvrtc64_{major}0_0.dll",)
    return _first_library(names, "NVRTC")


@functools.cache
def _cuda() -> ctypes.CDLL:
    return _first_library(("libcuda.so.1",) if os.name != "nt" else ("nvcuda.dll",), "the CUDA driver")


@functools.cache
def context(device: int) -> ctypes.c_void_p:
    """The context that torch works in on this GPU."""
    number, context = ctypes.c_int(), ctypes.c_void_p()
    driver("cuDeviceGet", ctypes.byref(number), device)
    driver("cuDevicePrimaryCtxRetain", ctypes.byref(context), number)
    return context


def _first_library(names: Sequence[str], called: str) -> ctypes.CDLL:
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise CudaError(f"{called} ({' or '.join(names)}) cannot be loaded")


def _check_nvrtc(status: int) -> None:
    if status:
        get = _nvrtc().nvrtcGetErrorString
        get.restype = ctypes.c_char_p
        raise CudaError(f"NVRTC says: {get(status).decode()}")


def driver(function: str, *arguments: Any) -> None:
    """Call the driver, and raise what it complains about."""
    library = _cuda()
    status = getattr(library, function)(*arguments)
    if status:
        said = ctypes.c_char_p()
        library.cuGetErrorString(status, ctypes.byref(said))
        raise CudaError(f"{function} failed: {(said.value or b'error %d' % status).decode()}", status)


def supported_architectures() -> list[int]:
    """Compute capabilities, times ten, that NVRTC compiles for."""
    count = ctypes.c_int()
    _check_nvrtc(_nvrtc().nvrtcGetNumSupportedArchs(ctypes.byref(count)))
    numbers = (ctypes.c_int * count.value)()
    _check_nvrtc(_nvrtc().nvrtcGetSupportedArchs(numbers))
    return list(numbers)


def block_bytes(device: int) -> int:
    """Bytes of shared memory that a block of a GPU may ask for."""
    number, found = ctypes.c_int(), ctypes.c_int()
    driver("cuDeviceGet", ctypes.byref(number), device)
    driver("cuDeviceGetAttribute", ctypes.byref(found), BLOCK_BYTES, number)
    return found.value
