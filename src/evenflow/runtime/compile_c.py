"""Compiles C at first use and loads it through ctypes.

Nothing is compiled at install time and torch's headers are not needed: a source becomes a shared library in
`compile_cache.cache_folder`, once per machine: its name is made from the source, the headers, the compiler and the
processor. ``$CC`` chooses the compiler; where the system has none, the package ``ziglang`` is one (extra ``compiler``).
Where that folder is full, cannot be written to, is not the user's own or does
not allow programs to run (``noexec``), a temporary folder takes its place.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from evenflow.runtime.compile_cache import fingerprint, keep, read_verified, trusted_folder, unfinished
from evenflow.runtime.cpu_info import cpu_lines

# Not -ffast-math: NaN and infinity must propagate.
FLAGS = "-O3 -march=native -std=gnu11 -ffp-contract=fast -fno-math-errno -fno-trapping-math -shared -fPIC -pthread"
COMPILE_SECONDS = 120
ZIG_FILES = "zig"  # the folder in which zig keeps parts of the C library


class CompilationFailed(Exception):
    """There is no compiled library; the message says why."""


def load(source: str, headers: Path, folder: Path) -> ctypes.CDLL:
    """The library of a source, read from `folder` or compiled into it.

    Args:
        source: the text of a C file, which includes only headers of `headers` and the system's. It defines the symbol
            ``evenflow_library``, by which a damaged file is told from a library.
        headers: a folder of ``*.h`` files.
        folder: where libraries are kept, see `compile_cache.trusted_folder`.

    Raises:
        CompilationFailed: there is no working compiler.
    """
    command = find_compiler()
    path, trusted = folder / library_name(source, headers, command), trusted_folder(folder)
    if trusted and (known := read_verified(path)) is not None:
        with suppress(CompilationFailed):
            return _open(path)
        with suppress(CompilationFailed):
            return _opened_in(None, path.name, lambda copy: copy.write_bytes(known))[0]

    def compile_to(target: Path) -> None:
        # zig keeps parts of the C library; without them each source takes five times as long.
        kept = folder / ZIG_FILES if target.parent.parent == folder else target.parent
        _compile(command, source, headers, target, kept)

    try:
        library, content = _opened_in(folder if trusted else None, path.name, compile_to)
    except CompilationFailed:
        if not trusted:
            raise
        library, content = _opened_in(None, path.name, compile_to)
    if trusted:
        keep(path, content)
    return library


def find_compiler() -> list[str]:
    """$CC, cc, gcc, clang or the zig of the package ziglang, whichever exists first."""
    if chosen := os.environ.get("CC"):
        try:
            words = shlex.split(chosen)
        except ValueError as error:
            raise CompilationFailed(f"the C compiler named by CC, {chosen!r}, cannot be read ({error})") from error
        if words and shutil.which(words[0]):
            return words
        raise CompilationFailed(f"the C compiler named by CC, {chosen!r}, was not found")
    for name in ("cc", "gcc", "clang"):
        if shutil.which(name):
            return [name]
    # The program itself rather than `python -m ziglang`, which would import a ziglang.py of the current folder.
    if (package := importlib.util.find_spec("ziglang")) is not None:
        for folder in package.submodule_search_locations or ():
            if zig := shutil.which("zig", path=folder):
                return [zig, "cc"]
    raise CompilationFailed('no C compiler (cc, gcc or clang) was found; pip install "evenflow[compiler]" installs one')


def library_name(source: str, headers: Path, command: list[str]) -> str:
    """A file name that changes with anything the compiled code depends on."""
    return f"c-{fingerprint(FLAGS, source, *_environment(tuple(command), headers))}.so"


@functools.cache
def _environment(command: tuple[str, ...], headers: Path) -> tuple[str, ...]:
    """The texts that all names depend on: compiler, headers, and the processor, for which -march=native compiles."""
    texts = (path.name + path.read_text(encoding="utf-8") for path in sorted(headers.glob("*.h")))
    processor = cpu_lines("model name", "flags", "Features", "CPU part") or (platform.processor(),)
    return (*command, _version(command), platform.machine(), *processor, *texts)


def _version(command: tuple[str, ...]) -> str:
    """What the compiler says about itself; zig makes its folders even for that."""
    try:
        with unfinished(Path(tempfile.gettempdir())) as folder:
            return _run([*command, "--version"], environment=_folders(folder, folder))
    except OSError as error:
        raise CompilationFailed(f"no file can be written to a temporary folder ({error})") from error


def _folders(temporary: Path, kept: Path) -> dict[str, str]:
    """The environment of a compiler: where it puts temporary files, and where zig keeps parts of the C library."""
    folders = {"TMPDIR": temporary, "ZIG_LOCAL_CACHE_DIR": temporary, "ZIG_GLOBAL_CACHE_DIR": kept}
    return {**os.environ, **{name: str(folder) for name, folder in folders.items()}}


def _compile(command: list[str], source: str, headers: Path, target: Path, kept: Path) -> None:
    """Compile to the file `target`; temporary files are written beside it."""
    options = [*FLAGS.split(), f"-I{headers}", "-x", "c", "-", "-lm", "-o", str(target)]
    _run([*command, *options], source, _folders(target.parent, kept))


def _run(command: list[str], text: str = "", environment: dict[str, str] | None = None) -> str:
    run = functools.partial(subprocess.run, capture_output=True, encoding="utf-8", errors="replace")
    try:
        done = run(command, input=text, env=environment, timeout=COMPILE_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CompilationFailed(f"{command[0]} could not be run ({error})") from error
    if done.returncode:
        message = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip()[:200])
        raise CompilationFailed(f"{command[0]} failed ({message or f'exit code {done.returncode}'})")
    return done.stdout


def _open(path: Path) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(str(path))
        library.evenflow_library  # noqa: B018  (raises AttributeError where the symbol is missing)
    except (OSError, AttributeError) as error:
        raise CompilationFailed(f"what the compiler wrote cannot be loaded ({error})") from error
    return library


def _opened_in(parent: Path | None, name: str, write: Callable[[Path], object]) -> tuple[ctypes.CDLL, bytes]:
    """A library that `write` makes in a temporary folder, in `parent` or where the system has them; and its content."""
    try:
        with unfinished(parent or Path(tempfile.gettempdir())) as folder:  # a loaded library does not need its file
            write(folder / name)
            return _open(folder / name), (folder / name).read_bytes()
    except OSError as error:
        raise CompilationFailed(f"no file can be written to {parent or 'a temporary folder'} ({error})") from error
