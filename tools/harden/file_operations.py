"""Every change that this process makes to files, seen and stopped one by one: a shim over `open` and `os`."""

from __future__ import annotations

import builtins
import io
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Operation:
    """A change of the file system that is about to be made.

    Attributes:
        kind: create, truncate, write, fsync, rename, unlink, mkdir or rmdir.
        path: what it changes, as a full path; of a rename, what it moves.
        target: where a rename moves it.
        offset, data: of a write; the new size of a truncate is its offset.
    """

    kind: str
    path: str
    target: str = ""
    offset: int = 0
    data: bytes = b""


def watch_files(before: Callable[[Operation, Callable[[bytes], object]], object]) -> None:
    """Call `before` with every operation of this process, from now on to its end.

    Its second argument writes to the file of a write, for an observer that ends the process in the middle of one.
    """

    def full(path: Any, folder: int | None = None) -> str:
        base = "" if folder is None else os.readlink(f"/proc/self/fd/{folder}")
        return os.path.abspath(os.path.join(base, os.fsdecode(path)))

    def nothing(_: bytes) -> None:
        return

    class WatchedFile(io.FileIO):
        def write(self, data: Any) -> int:
            content = bytes(data)
            offset = os.fstat(self.fileno()).st_size if "a" in self.mode else self.tell()
            before(Operation("write", full(self.name), offset=offset, data=content), super().write)
            return super().write(content) or 0

        def truncate(self, size: int | None = None) -> int:
            before(Operation("truncate", full(self.name), offset=self.tell() if size is None else size), nothing)
            return super().truncate(size)

    plain_open = io.open

    def watched_open(file: Any, mode: str = "r", buffering: int = -1, *args: Any, **options: Any) -> Any:
        if isinstance(file, int) or not set(mode) & set("wax+"):
            return plain_open(file, mode, buffering, *args, **options)
        path, raw_mode = full(file), mode.replace("b", "").replace("t", "")
        if path.startswith(("/dev/", "/proc/")) and not path.startswith("/dev/shm/"):
            return plain_open(file, mode, buffering, *args, **options)
        if not os.path.exists(path):
            before(Operation("create", path), nothing)
        elif "w" in mode:
            before(Operation("truncate", path), nothing)
        raw = WatchedFile(file, raw_mode)
        if buffering == 0:
            return raw
        buffered: Any = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, *args, **options)

    io.open = builtins.open = watched_open

    def watched(name: str, kind: str) -> None:
        plain = getattr(os, name)

        def call(path: Any, *args: Any, **options: Any) -> Any:
            folder = options.get("dir_fd", options.get("src_dir_fd"))
            if kind == "fsync":
                operation = Operation(kind, os.readlink(f"/proc/self/fd/{path}"))
            elif kind == "rename":
                operation = Operation(kind, full(path, folder), full(args[0], options.get("dst_dir_fd")))
            else:
                operation = Operation(kind, full(path, folder))
            before(operation, nothing)
            return plain(path, *args, **options)

        setattr(os, name, call)

    for name, kind in (
        ("fsync", "fsync"),
        ("rename", "rename"),
        ("replace", "rename"),
        ("unlink", "unlink"),
        ("remove", "unlink"),
        ("mkdir", "mkdir"),
        ("rmdir", "rmdir"),
    ):
        watched(name, kind)
