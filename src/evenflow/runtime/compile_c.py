"""Compiles C at first use and loads it.

Nothing is compiled at install time and torch's headers are not needed: a source becomes a shared library in
``$XDG_CACHE_HOME/evenflow`` (``~/.cache/evenflow``), under a name made from its text, the headers beside this file, the
compiler and the processor: once per machine. Where there is no working compiler the torch operations take over, and one
warning says so. ``EVENFLOW_NATIVE=0`` leaves the C sources aside without a word. ``$CC`` chooses the compiler.

Denormal numbers count as zero inside the compiled code, in its own threads and for the length of a call in the
caller's: a vanishing gradient is full of them and each costs a hundred times a normal number.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
import threading
import warnings
from pathlib import Path

import torch
from torch import Tensor

SOURCES = Path(__file__).parents[1] / "scan" / "c"
PRODUCTS = SOURCES / "products.c"  # what needs no step: products over all steps at once
# Not -ffast-math: NaN and infinity must come out where they went in.
FLAGS = "-O3 -march=native -std=gnu11 -ffp-contract=fast -fno-math-errno -fno-trapping-math -shared -fPIC -pthread"
SUFFIXES = {torch.float32: "float", torch.float64: "double"}
COMPILE_SECONDS = 120

_lock = threading.Lock()


class Missing(Exception):
    """There is no compiled library; the message says why."""


def compiled_code_allowed() -> bool:
    """Return False where the environment has ``EVENFLOW_NATIVE=0``: no compiled code, no kernels."""
    return os.environ.get("EVENFLOW_NATIVE", "1") != "0"


def takes(*tensors: Tensor | None) -> bool:
    """Whether compiled code can take these tensors: all on a CPU, of one dtype it knows."""
    given = [t for t in tensors if t is not None]
    return all(t.device.type == "cpu" and t.dtype in SUFFIXES and t.dtype == given[0].dtype for t in given)


def runs(*tensors: Tensor | None) -> bool:
    """Whether the library of products can take these tensors, and exists."""
    return takes(*tensors) and library() is not None


def library(source: str | None = None) -> ctypes.CDLL | None:
    """A compiled source, made on its first call in a process; None, and one warning, where it cannot be had.

    Args:
        source: its text; the library of products if None.
    """
    with _lock:  # two threads must not compile, or warn, at the same time
        return _library(source)


@functools.cache
def _library(source: str | None) -> ctypes.CDLL | None:
    if not compiled_code_allowed():
        return None
    if source is not None and _library(None) is None:  # said already
        return None
    try:
        return load(cache_folder(), source)
    except Missing as why:
        warnings.warn(
            f"evenflow runs its recurrences on torch operations, several times slower than its compiled ones: {why}",
            RuntimeWarning,
            stacklevel=2,
        )
        return None


def cache_folder() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "evenflow"


def load(folder: Path, source: str | None = None) -> ctypes.CDLL:
    """The library of a source from `folder`, compiled into it when it is not there yet, or elsewhere if that fails."""
    command = compiler()
    text = _products() if source is None else source
    name = f"{'products' if source is None else 'step'}-{fingerprint(command, text)}.so"
    if (found := _open(folder / name)) is not None:
        return found
    try:
        folder.mkdir(parents=True, exist_ok=True)
        built = build(command, text, folder)
    except OSError:
        with tempfile.TemporaryDirectory(prefix="evenflow-") as temporary:  # once loaded, the file may go
            return _fresh(build(command, text, Path(temporary)))
    try:
        os.replace(built, folder / name)  # atomic, so that of several processes each finds a whole file
    except OSError:
        return _fresh(built)
    return _fresh(folder / name)


@functools.cache
def _products() -> str:
    return PRODUCTS.read_text(encoding="utf-8")


def compiler() -> list[str]:
    """$CC, cc, gcc or clang, whichever exists first."""
    if chosen := os.environ.get("CC"):
        words = shlex.split(chosen)
        if words and shutil.which(words[0]):
            return words
        raise Missing(f"the C compiler named by CC, {chosen!r}, was not found")
    for name in ("cc", "gcc", "clang"):
        if shutil.which(name):
            return [name]
    raise Missing("no C compiler (cc, gcc or clang) was found")


def fingerprint(command: list[str], source: str) -> str:
    """Twenty hexadecimal digits that change with anything the compiled code depends on."""
    return hashlib.sha256("\0".join([FLAGS, source, *_machine(tuple(command))]).encode()).hexdigest()[:20]


@functools.cache
def _machine(command: tuple[str, ...]) -> tuple[str, ...]:
    """What is the same for all sources: the compiler, the processor and the headers."""
    headers = (path.name + path.read_text(encoding="utf-8") for path in sorted(SOURCES.glob("*.h")))
    return (*command, _output([*command, "--version"]), platform.machine(), processor(), *headers)


def processor() -> str:
    """The model of the processor and what it can do, which is what -march=native looks at."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    wanted = ("model name", "flags", "Features", "CPU part")
    return "\n".join(sorted({line for line in lines if line.startswith(wanted)}))


def build(command: list[str], source: str, folder: Path) -> Path:
    """Compile into a new file of `folder`."""
    handle, path = tempfile.mkstemp(suffix=".so", dir=folder)
    os.close(handle)
    try:
        _output([*command, *FLAGS.split(), f"-I{SOURCES}", "-x", "c", "-", "-lm", "-o", path], source)
    except Missing:
        Path(path).unlink(missing_ok=True)
        raise
    return Path(path)


def _output(command: list[str], text: str = "") -> str:
    try:
        done = subprocess.run(
            command, input=text, capture_output=True, encoding="utf-8", errors="replace", timeout=COMPILE_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Missing(f"{command[0]} could not be run ({error})") from error
    if done.returncode:
        said = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip()[:200])
        raise Missing(f"{command[0]} failed ({said or f'exit code {done.returncode}'})")
    return done.stdout


def _open(path: Path) -> ctypes.CDLL | None:
    """The library at `path`, or None where there is none or it is not one."""
    try:
        loaded = ctypes.CDLL(str(path))
        loaded.evenflow_library  # noqa: B018  (raises AttributeError in a library that is not ours)
    except (OSError, AttributeError):
        return None
    return loaded


def _fresh(path: Path) -> ctypes.CDLL:
    loaded = _open(path)
    if loaded is None:
        raise Missing(f"what the compiler wrote to {path} cannot be loaded")
    return loaded


def structure(name: str, **fields: str) -> type[ctypes.Structure]:
    """A C struct from its fields in order, each keyword a type and its names: ``int64="rows in"``, and so on.

    A trailing underscore in a keyword is dropped, so that one type can appear more than once.
    """
    types = {"int64": ctypes.c_int64, "double": ctypes.c_double, "pointer": ctypes.c_void_p}
    listed = [(field, types[kind.rstrip("_")]) for kind, names in fields.items() for field in names.split()]
    return type(name, (ctypes.Structure,), {"_fields_": listed})


def call(function: str, job: type[ctypes.Structure], dtype: torch.dtype, **values: Tensor | float | None) -> None:
    """Fill in a job of the library of products and run it; tensors go by address, and what is not named is NULL."""
    loaded = library()
    assert loaded is not None
    filled = job(threads=torch.get_num_threads())
    for field, value in values.items():
        if isinstance(value, Tensor):
            assert value.stride(-1) == 1 or value.shape[-1] <= 1, field
            setattr(filled, field, value.data_ptr())
        elif value is not None:
            setattr(filled, field, value)
    run(loaded, f"{function}_{SUFFIXES[dtype]}", filled)


def run(loaded: ctypes.CDLL, function: str, job: ctypes.Structure) -> None:
    if getattr(loaded, function)(ctypes.byref(job)):
        raise MemoryError(f"{function} found no memory for its threads")
