"""The folder a run lives in, for the one process that writes it and for anyone who reads it.

config.toml     what was asked for
status.toml     how it went: running, finished, failed or interrupted, and why
metrics.csv     a row every few updates
probes.npz      step (K,), gradient_norm (K, T) and more: gradients and matrices as training went on, see `Probing`
checkpoint/     weights, the rest of the state, the best weights
"""

from __future__ import annotations

import io
import os
import tomllib
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from . import atomic, checkpoint, metrics
from .non_finite import diverged

CONFIG, STATUS, METRICS, PROBES, CHECKPOINT = "config.toml", "status.toml", "metrics.csv", "probes.npz", "checkpoint"


class Run:
    """A run folder, to read from. A run that is under way or was killed reads as far as it got.

    Each file is read when it is first used and kept; a new `Run` sees what was written since. A file that is damaged
    raises a ValueError that names it.

    Args:
        folder: the run's folder.

    Attributes:
        folder: as a path.
        config: the tables of config.toml: ``task``, ``system``, ``training`` and, for a file of the user's own,
            ``data``.

        >>> run = Run("runs/adding")
        >>> run.status["state"], run.last("valid_metric")
        ('finished', 0.0128...)
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        if not (self.folder / CONFIG).is_file():
            raise ValueError(f"folder {str(self.folder)!r} holds no run: it has no {CONFIG}")
        self.config: dict[str, Any] = self._toml(CONFIG)

    @property
    def name(self) -> str:
        """The folder's own name."""
        return self.folder.resolve().name

    @cached_property
    def status(self) -> dict[str, Any]:
        """`state` (running, finished, failed, interrupted), `step`, `message`, and the outcome of a finished run."""
        return self._toml(STATUS) if (self.folder / STATUS).is_file() else {"state": "running", "step": 0}

    @property
    def diverged(self) -> bool:
        """Whether the run ended because a number was infinite or not a number. A full disk also fails a run."""
        return diverged(self.status)

    @cached_property
    def metrics(self) -> metrics.Metrics:
        """The columns of metrics.csv as arrays ``(N,)``, nan where nothing was measured."""
        return metrics.to_arrays(self.metric_lines())

    @cached_property
    def measured(self) -> dict[str, np.ndarray]:
        """For each column of `metrics` the rows ``(N,)`` that hold a value; that value may be a measured nan."""
        cells = [line.split(",") for line in self.metric_lines()]
        return {name: np.array([bool(row[i]) for row in cells], bool) for i, name in enumerate(metrics.COLUMNS)}

    def curve(self, name: str, nan: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """The steps and the values ``(M,)`` of the rows in which a column was measured, with `nan` also measured nan.

        >>> step, loss = run.curve("valid_loss")
        """
        values = self.metrics[name]
        rows = self.measured[name] if nan else ~np.isnan(values)
        return self.metrics["step"][rows], values[rows]

    def last(self, name: str) -> float:
        """The last number measured in a column; nan if there is none."""
        values = self.curve(name)[1]
        return float(values[-1]) if len(values) else float("nan")

    def best(self, name: str, higher: bool = False) -> float:
        """The smallest finite number in a column, or with `higher` the largest; nan if there is none."""
        values = self.curve(name)[1]
        values = values[np.isfinite(values)]
        return float(values.max() if higher else values.min()) if len(values) else float("nan")

    @cached_property
    def probes(self) -> dict[str, np.ndarray] | None:
        """`step` (K,), `gradient_norm` (K, T) and the other arrays of `Probing`, or None if the run was not probed."""
        if not (self.folder / PROBES).is_file():
            return None
        return self._parse(PROBES, lambda: dict(np.load(self.folder / PROBES)))

    def probe(self, name: str) -> tuple[np.ndarray, np.ndarray] | None:
        """The steps ``(K,)`` and one array ``(K, ...)`` of `probes`, or None if it was not recorded."""
        if self.probes is None or name not in self.probes or not len(self.probes["step"]):
            return None
        return self.probes["step"], self.probes[name]

    def weights(self, which: str = "last") -> dict[str, Tensor]:
        """The weights of the last checkpoint, or with "best" those of the best validation."""
        folder = self.folder / CHECKPOINT
        if which == "best":
            best = checkpoint.load_best(folder)
            found = None if best is None else best.weights
        elif which == "last":
            version = checkpoint.find(folder)
            found = None if version is None else checkpoint.load(folder, version).weights
        else:
            raise ValueError(f"which must be last or best, got {which!r}")
        if found is None:
            raise ValueError(f"run {str(self.folder)!r} has no {which} weights yet")
        return found

    def metric_lines(self) -> list[str]:
        """The complete rows of metrics.csv as text."""
        path = self.folder / METRICS
        return self._parse(METRICS, lambda: metrics.complete_lines(path.read_bytes())) if path.is_file() else []

    def _toml(self, file: str) -> dict[str, Any]:
        return self._parse(file, lambda: tomllib.loads((self.folder / file).read_text(encoding="utf-8")))

    def _parse(self, file: str, read: Any) -> Any:
        try:
            return read()
        except (ValueError, OSError, zipfile.BadZipFile) as error:
            raise ValueError(f"{file} of run {str(self.folder)!r} cannot be read: {error}") from error


class RunWriter:
    """A run folder, to write to. One process writes at a time; a second one is refused."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.checkpoints = folder / CHECKPOINT
        self._lock = lock(folder)
        self._metrics: io.BufferedWriter | None = None

    @classmethod
    def create(cls, folder: str | os.PathLike[str], config: Mapping[str, Any]) -> RunWriter:
        """Begin a run in a new or empty folder. A folder that holds a run is refused, an unwritable one too."""
        path = Path(folder)
        refuse_used(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            writer = cls(path)
            writer.keep_until(-1, [])
            # Last, because a folder with a config counts as a run.
            atomic.write(path / CONFIG, _toml(config))
        except OSError as error:
            raise ValueError(f"folder {str(path)!r} cannot be written: {error.strerror or error}") from error
        return writer

    def find_data(self, place: str | None) -> None:
        """Note where the data of the run lies from now on."""
        config = Run(self.folder).config
        if place is not None and config["task"].get("data") != place:
            atomic.write(self.folder / CONFIG, _toml({**config, "task": {**config["task"], "data": place}}))

    @classmethod
    def reopen(cls, folder: str | os.PathLike[str]) -> RunWriter:
        """Go on with a run."""
        path = Run(folder).folder
        try:
            writer = cls(path)
            atomic.write(path / METRICS, (path / METRICS).read_bytes() if (path / METRICS).is_file() else b"")
        except OSError as error:
            raise ValueError(f"folder {str(path)!r} cannot be written: {error.strerror or error}") from error
        return writer

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
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)  # type: ignore[arg-type]  # no array is called allow_pickle
        atomic.write(self.folder / PROBES, buffer.getvalue())

    def status(self, state: str, **details: Any) -> None:
        """Replace the status; details that are None are left out."""
        path, content = self.folder / STATUS, _toml({"state": state, **details})
        try:
            atomic.write(path, content)
        except OSError:
            # On a full disk there is no room for a neighbour, but for new words in the room of the old ones.
            if not _overwrite(path, content):
                raise

    def close_metrics(self) -> None:
        if self._metrics is not None:
            # Every row was flushed but one that found the disk full, which was complained about then.
            with suppress(OSError):
                self._metrics.close()
            self._metrics = None

    def close(self) -> None:
        """Close the files and let another process write."""
        self.close_metrics()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def refuse_used(folder: str | os.PathLike[str]) -> None:
    """A ValueError if `folder` holds a run already or is not a folder."""
    path = Path(folder)
    try:
        used, blocked = (path / CONFIG).exists(), path.exists() and not path.is_dir()
    except OSError as error:
        raise ValueError(f"folder {str(path)!r} cannot be read: {error.strerror or error}") from error
    if used:
        raise ValueError(f"folder {str(path)!r} holds a run already: resume it or choose another folder")
    if blocked:
        raise ValueError(f"folder {str(path)!r} is a file, a run needs a folder")


def _toml(table: Mapping[str, Any]) -> bytes:
    import tomli_w

    return tomli_w.dumps({key: value for key, value in table.items() if value is not None}).encode()


def _overwrite(path: Path, content: bytes) -> bool:
    """Put `content` in the place of a file's own, in one write; whether that went well."""
    try:
        with open(path, "r+b", buffering=0) as file:
            room = os.fstat(file.fileno()).st_size
            # Blank lines over the rest, so that a crash before the cut leaves a file that can be read.
            if file.write(content.ljust(room, b"\n")) < len(content):
                return False
            file.truncate(len(content))
    except OSError:
        return False
    return True


def lock(folder: Path) -> int | None:
    """Hold the folder for this process; the system lets go of it when the process ends, however it ends."""
    try:
        import fcntl
    except ImportError:  # not a POSIX system
        return None
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise ValueError(f"folder {str(folder)!r} is being written by another process") from None
    except OSError:  # a file system without locks
        os.close(descriptor)
        return None
    return descriptor
