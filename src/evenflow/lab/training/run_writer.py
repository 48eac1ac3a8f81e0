"""Writing a run folder, for one process at a time; `run_folder` reads it."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from evenflow.models.bundle import BUNDLE
from evenflow.runtime.lock_folder import lock_folder

from . import atomic, metrics
from .run_folder import ANSWERS, CHECKPOINT, CONFIG, METRICS, PROBES, STATUS, Run


class RunWriter:
    """Writes a run folder and holds its lock; a second process that opens the folder gets a ValueError."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.checkpoints = folder / CHECKPOINT
        self._lock = lock(folder)
        self._metrics: io.BufferedWriter | None = None
        self._config: dict[str, Any] | None = None

    @classmethod
    def create(cls, folder: str | os.PathLike[str], config: Mapping[str, Any]) -> RunWriter:
        """Start a run in a new or empty folder; a ValueError if it holds a run or cannot be written."""
        path = Path(folder)
        check_unused(path)
        with atomic.writable(path):
            path.mkdir(parents=True, exist_ok=True)
            writer = cls(path)
            writer.keep_until(-1, [])
            writer.config(config)  # last, because a folder with a config counts as a run
            return writer

    def set_data_folder(self, data: str | None) -> None:
        """Write to the config where the data of the run lies from now on."""
        config = Run(self.folder).config
        if data is not None and config["task"].get("data") != data:
            self.config({**config, "task": {**config["task"], "data": data}})

    def config(self, table: Mapping[str, Any]) -> None:
        """Replace the config."""
        atomic.write(self.folder / CONFIG, to_toml(table))
        self._config = None

    def read_config(self) -> dict[str, Any]:
        """The config as it stands in the folder."""
        if self._config is None:
            self._config = Run(self.folder).config
        return self._config

    @classmethod
    def reopen(cls, folder: str | os.PathLike[str]) -> RunWriter:
        """Resume a run."""
        path = Run(folder).folder
        with atomic.writable(path):
            writer = cls(path)
            for place in (path, writer.checkpoints):
                atomic.remove_unfinished(place)
            atomic.write(path / METRICS, (path / METRICS).read_bytes() if (path / METRICS).is_file() else b"")
            return writer

    def bundle(self, text: str) -> None:
        """Replace the description by which `evenflow.load` makes the model again."""
        atomic.write(self.folder / BUNDLE, text.encode())

    def keep_until(self, step: int, lines: Sequence[str]) -> list[str]:
        """Drop the rows after `step`, written before a crash and about to be computed again; return those kept."""
        self.close_metrics()
        kept = [line for line in lines if metrics.step_of(line) <= step]
        atomic.write(self.folder / METRICS, "".join(line + "\n" for line in (metrics.HEADER, *kept)).encode())
        self._metrics = open(self.folder / METRICS, "ab")  # noqa: SIM115  held open for the length of the run
        return kept

    def append(self, line: str) -> None:
        """Add a row to the metrics."""
        assert self._metrics is not None
        with atomic.named(self.folder / METRICS):
            self._metrics.write((line + "\n").encode())
            self._metrics.flush()

    def flush(self) -> None:
        """Wait until all rows are on disk."""
        assert self._metrics is not None
        with atomic.named(self.folder / METRICS):
            os.fsync(self._metrics.fileno())

    def probes(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Replace the probes."""
        self._arrays(PROBES, arrays)

    def answers(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Replace the answers of the finished run."""
        self._arrays(ANSWERS, arrays)

    def _arrays(self, file: str, arrays: Mapping[str, np.ndarray]) -> None:
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)  # type: ignore[arg-type]  # no array is called allow_pickle
        atomic.write(self.folder / file, buffer.getvalue())

    def status(self, state: str, **details: Any) -> None:
        """Replace the status; details that are None are left out."""
        path, content = self.folder / STATUS, to_toml({"state": state, **details})
        try:
            atomic.write(path, content)
        except OSError:
            # On a full disk there is no space for a second file, but the old file can be overwritten.
            if not _overwrite(path, content):
                raise

    def close_metrics(self) -> None:
        if self._metrics is not None:
            # All rows are flushed but one that did not fit on a full disk, which raised an error then.
            with suppress(OSError):
                self._metrics.close()
            self._metrics = None

    def close(self) -> None:
        """Close the files and let another process write."""
        self.close_metrics()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def check_unused(folder: str | os.PathLike[str]) -> None:
    """Raise a ValueError if `folder` holds a run already or is not a folder."""
    path = Path(folder)
    try:
        used, blocked = (path / CONFIG).exists(), path.exists() and not path.is_dir()
    except OSError as error:
        raise ValueError(f"folder {str(path)!r} cannot be read: {error.strerror or error}") from error
    if used:
        raise ValueError(f"folder {str(path)!r} holds a run already: resume it or choose another folder")
    if blocked:
        raise ValueError(f"folder {str(path)!r} is a file, a run needs a folder")


def to_toml(table: Mapping[str, Any]) -> bytes:
    """A table as TOML, without values that are None."""
    import tomli_w  # imported here, so that runs in memory do not need it

    return tomli_w.dumps({key: value for key, value in table.items() if value is not None}).encode()


def _overwrite(path: Path, content: bytes) -> bool:
    """Overwrite a file in place, in one write; return whether that succeeded."""
    try:
        with open(path, "r+b", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            # Blank lines fill the rest, so that a crash before the truncation leaves a readable file.
            if file.write(content.ljust(size, b"\n")) < len(content):
                return False
            file.truncate(len(content))
    except OSError:
        return False
    return True


def lock(folder: Path) -> int | None:
    """`lock_folder` for a folder of runs: a ValueError if another process writes there."""
    try:
        return lock_folder(folder)
    except BlockingIOError:
        raise ValueError(f"folder {str(folder)!r} is being written by another process") from None


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Lock a folder of many runs, made if it does not exist; a ValueError if another process holds the lock.

    Of processes that run together (torchrun) the first holds it for all.
    """
    if int(os.environ.get("RANK", "0")):
        yield
        return
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"folder {str(folder)!r} is a file, and runs need a folder")
    with atomic.writable(folder):
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = lock(folder)
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)
