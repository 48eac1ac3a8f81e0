"""Run folders on shared storage, any that fsspec knows: a folder, an object store."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from evenflow.lab.training import atomic


class Store(Protocol):
    """Keeps the files of run folders by the key of the folder and the name of the file in it."""

    def names(self, key: str) -> list[str]:
        """The files of a folder."""

    def read(self, key: str, name: str) -> bytes | None:
        """The content of a file; None if there is none."""

    def write(self, key: str, name: str, content: bytes) -> None:
        """Replace a file: a reader sees the old content or the new one."""

    def remove(self, key: str, names: Sequence[str]) -> None:
        """Remove files."""


class RunStore:
    """A store at an address of fsspec.

    Args:
        address: a path, or a URL such as ``"s3://bucket/runs"``. A missing package or a place that cannot be written
            raises a ValueError.
    """

    def __init__(self, address: str) -> None:
        import fsspec

        self.address = address
        try:
            self._files, root = fsspec.core.url_to_fs(address)
        except (ImportError, ValueError) as error:
            raise ValueError(f"storage {address!r} cannot be used: {_first_line(error)}") from error
        self._root = root.rstrip("/") + "/"
        self._local = "file" in _protocols(self._files)

    def check(self) -> None:
        """Raise a ValueError if nothing can be written or read here."""
        name = atomic.TEMPORARY + "check"
        try:
            self.write("", name, b"evenflow")
            readable = self.read("", name) == b"evenflow"
            self.remove("", [name])
        except Exception as error:  # each file system of fsspec has errors of its own
            raise ValueError(f"storage {self.address!r} cannot be used: {_first_line(error)}") from error
        if not readable:
            raise ValueError(f"storage {self.address!r} cannot be used: what is written there cannot be read")

    def names(self, key: str) -> list[str]:
        self._files.invalidate_cache()
        try:
            found: list[Any] = self._files.find(self._path(key, ""))
        except FileNotFoundError:
            return []
        start = len(self._path(key, ""))
        return [str(path)[start:].lstrip("/") for path in found]

    def read(self, key: str, name: str) -> bytes | None:
        try:
            return bytes(self._files.cat_file(self._path(key, name)))
        except FileNotFoundError:
            return None

    def write(self, key: str, name: str, content: bytes) -> None:
        path = self._path(key, name)
        if self._local:  # an object store replaces an object in one step
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            atomic.write(Path(path), content)
        else:
            self._files.pipe_file(path, content)

    def remove(self, key: str, names: Sequence[str]) -> None:
        for name in names:
            if self._files.exists(path := self._path(key, name)):
                self._files.rm_file(path)

    def _path(self, key: str, name: str) -> str:
        return self._root + "/".join(part for part in (key, name) if part)


def _protocols(files: Any) -> tuple[str, ...]:
    return (files.protocol,) if isinstance(files.protocol, str) else tuple(files.protocol)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
