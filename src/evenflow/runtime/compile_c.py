"""Compiles C at first use and loads it through ctypes.

Nothing is compiled at install time and torch's headers are not needed: a source becomes a shared library in
`compile_cache.cache_folder`, once per machine: its name is made from the source, the headers, the compiler and the
processor. ``$CC`` chooses the compiler.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from evenflow.runtime.compile_cache import fingerprint, write_atomically
from evenflow.runtime.cpu_info import cpu_lines

# Not -ffast-math: NaN and infinity must propagate.
FLAGS = "-O3 -march=native -std=gnu11 -ffp-contract=fast -fno-math-errno -fno-trapping-math -shared -fPIC -pthread"
COMPILE_SECONDS = 120


class CompilationFailed(Exception):
    """There is no compiled library; the message says why."""


def load(source: str, headers: Path, folder: Path) -> ctypes.CDLL:
    """The library of a source, read from `folder` or compiled into it; without a file if `folder` is not writable.

    Args:
        source: the text of a C file, which includes only headers of `headers` and the system's. It defines the symbol
            ``evenflow_library``, by which a damaged file is told from a library.
        headers: a folder of ``*.h`` files.
        folder: where libraries are kept.
    """
    command = find_compiler()
    path = folder / library_name(source, headers, command)
    if (library := _open(path)) is not None:
        return library
    try:
        write_atomically(path, lambda target: _compile(command, source, headers, target))
        return _open_compiled(path)
    except OSError:
        with tempfile.TemporaryDirectory(prefix="evenflow-") as temporary:  # a loaded library does not need its file
            path = Path(temporary) / "library.so"
            _compile(command, source, headers, path)
            return _open_compiled(path)


def find_compiler() -> list[str]:
    """$CC, cc, gcc or clang, whichever exists first."""
    if chosen := os.environ.get("CC"):
        words = shlex.split(chosen)
        if words and shutil.which(words[0]):
            return words
        raise CompilationFailed(f"the C compiler named by CC, {chosen!r}, was not found")
    for name in ("cc", "gcc", "clang"):
        if shutil.which(name):
            return [name]
    raise CompilationFailed("no C compiler (cc, gcc or clang) was found")


def library_name(source: str, headers: Path, command: list[str]) -> str:
    """A file name that changes with anything the compiled code depends on."""
    return f"c-{fingerprint(FLAGS, source, *_environment(tuple(command), headers))}.so"


@functools.cache
def _environment(command: tuple[str, ...], headers: Path) -> tuple[str, ...]:
    """The texts that all names depend on: compiler, headers, and the processor, for which -march=native compiles."""
    texts = (path.name + path.read_text(encoding="utf-8") for path in sorted(headers.glob("*.h")))
    processor = cpu_lines("model name", "flags", "Features", "CPU part") or (platform.processor(),)
    return (*command, _run([*command, "--version"]), platform.machine(), *processor, *texts)


def _compile(command: list[str], source: str, headers: Path, target: Path) -> None:
    _run([*command, *FLAGS.split(), f"-I{headers}", "-x", "c", "-", "-lm", "-o", str(target)], source)


def _run(command: list[str], text: str = "") -> str:
    try:
        done = subprocess.run(
            command, input=text, capture_output=True, encoding="utf-8", errors="replace", timeout=COMPILE_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CompilationFailed(f"{command[0]} could not be run ({error})") from error
    if done.returncode:
        message = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip()[:200])
        raise CompilationFailed(f"{command[0]} failed ({message or f'exit code {done.returncode}'})")
    return done.stdout


def _open(path: Path) -> ctypes.CDLL | None:
    """The library at `path`; None where there is no file, or a file that is not such a library."""
    try:
        library = ctypes.CDLL(str(path))
        library.evenflow_library  # noqa: B018  (raises AttributeError where the symbol is missing)
    except (OSError, AttributeError):
        return None
    return library


def _open_compiled(path: Path) -> ctypes.CDLL:
    library = _open(path)
    if library is None:
        raise CompilationFailed(f"what the compiler wrote to {path} cannot be loaded")
    return library
