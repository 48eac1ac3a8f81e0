"""The C of the folder ``scan/c``, compiled at first use: which tensors it takes, and calls of its functions.

Where there is no working compiler torch operations take over, and one warning says so; ``EVENFLOW_NATIVE=0`` turns the
compiled code off without a warning. Denormal numbers count as zero inside the compiled code, in its own threads and
for the length of a call in the caller's: a vanishing gradient is full of them and each costs a hundred times a normal
number.
"""

from __future__ import annotations

import ctypes
import warnings
from pathlib import Path

import torch
from torch import Tensor

from evenflow.runtime import compile_c
from evenflow.runtime.compile_cache import cache_folder, compile_once

HEADERS = Path(__file__).parent / "c"
PRODUCTS = HEADERS / "products.c"  # needs no step: products over all steps at once
SUFFIXES = {torch.float32: "float", torch.float64: "double"}


def runs(*tensors: Tensor | None) -> bool:
    """Return True if compiled code exists and takes these tensors: all on a CPU, of one dtype it knows."""
    present = [t for t in tensors if t is not None]
    accepted = all(t.device.type == "cpu" and t.dtype in SUFFIXES and t.dtype == present[0].dtype for t in present)
    return accepted and library() is not None


@compile_once
def library(source: str | None = None) -> ctypes.CDLL | None:
    """A compiled source, by default that of the products; None, after one warning, where it cannot be compiled."""
    if not compile_c.compiled_code_allowed():
        return None
    if source is not None and library() is None:  # a warning has said why
        return None
    try:
        return compile_c.load(
            PRODUCTS.read_text(encoding="utf-8") if source is None else source, HEADERS, cache_folder()
        )
    except compile_c.CompilationFailed as error:
        warnings.warn(
            f"evenflow runs its recurrences on torch operations, several times slower than its compiled ones: {error}",
            RuntimeWarning,
            stacklevel=2,
        )
        return None


def structure(name: str, **fields: str) -> type[ctypes.Structure]:
    """A C struct from its fields in order, each keyword a type and its names: ``int64="rows in"``, and so on."""
    types = {"int64": ctypes.c_int64, "pointer": ctypes.c_void_p}
    listed = [(field, types[kind]) for kind, names in fields.items() for field in names.split()]
    return type(name, (ctypes.Structure,), {"_fields_": listed})


def call(function: str, job: type[ctypes.Structure], dtype: torch.dtype, **values: Tensor | float | None) -> None:
    """Call a function of the products with a struct of these values; tensors by address, missing ones as NULL."""
    products = library()
    assert products is not None
    filled = job(threads=torch.get_num_threads())
    for field, value in values.items():
        if isinstance(value, Tensor):
            assert value.stride(-1) == 1 or value.shape[-1] <= 1, field
            setattr(filled, field, value.data_ptr())
        elif value is not None:
            setattr(filled, field, value)
    run(products, f"{function}_{SUFFIXES[dtype]}", filled)


def run(loaded: ctypes.CDLL, function: str, job: ctypes.Structure) -> None:
    """Call a function of a library with the struct `job`."""
    if getattr(loaded, function)(ctypes.byref(job)):
        raise MemoryError(f"{function} found no memory for its threads")
