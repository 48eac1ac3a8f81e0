"""Check which files of a data set are in the data folder, and download those that are missing."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evenflow.checks import unknown

from .catalog import CATALOG
from .guarded import GZIP_MAGIC, FilePath, cannot_read, read_bytes, read_gzip
from .source import File, Source

TIMEOUT = 30  # seconds without a byte
BAR_AFTER = 2.0  # seconds of a download before a progress bar appears
CHUNK = 1 << 16
GZIP_LENGTH = 4  # the last bytes of a gzip file hold the size of its content


class Unreachable(Exception):
    """A file could not be downloaded; the message says where to put it by hand."""


@dataclass(frozen=True)
class State:
    """Whether a data set is in the data folder.

    Args:
        word: "present", "missing" or "damaged".
        reason: what is missing or wrong, in a few words; empty if the set is present.
    """

    word: str
    reason: str = ""


def get(name: str, folder: FilePath, progress: bool = True) -> list[Path]:
    """Check the files of a data set that are in the folder, and download the others.

    A downloaded file appears complete and with the right checksum, or not at all. A file that is already in the folder
    is never replaced.

    Args:
        name: a key of `CATALOG`.
        folder: the data folder; it is created if necessary.
        progress: show a bar for downloads longer than two seconds, if standard error is a terminal.

    Returns:
        The paths of the files.

    Raises:
        ValueError: the data set is unknown, a file is damaged, or a file has no address and must be put there by hand.
        Unreachable: a file could not be downloaded.
    """
    if name not in CATALOG:
        raise ValueError(unknown("data set", name, CATALOG))
    return get_source(CATALOG[name], Path(folder), progress)


def get_source(source: Source, folder: Path, progress: bool = True) -> list[Path]:
    """`get` for a source, which need not be in the catalogue."""
    for files in (source.files, *source.layouts):
        if _state(files, folder, verify=True).word == "present":
            return [folder / _present(file, folder).path for file in files]
    return [_get_file(file, source, folder, progress) for file in source.files]


def state(source: Source, folder: Path, verify: bool = False) -> State:
    """Whether a data set is in the folder.

    Args:
        source: an entry of `CATALOG`.
        folder: the data folder.
        verify: compare the SHA-256 of the files, not only their sizes.
    """
    states = [_state(files, folder, verify) for files in (source.files, *source.layouts)]
    present = [state for state in states if state.word == "present"]
    damaged = [state for state in states if state.word == "damaged"]
    return (present or damaged or states)[0]


def _state(files: tuple[File, ...], folder: Path, verify: bool) -> State:
    """The state of several files: damaged if one of them is, else missing if one of them is."""
    missing = ""
    for file in files:
        file_or_alternative = _present(file, folder)
        path = folder / file_or_alternative.path
        if not os.path.exists(path):
            missing = missing or f"no {file.path}"
        elif fault := _fault(file_or_alternative, path, verify):
            return State("damaged", f"{file_or_alternative.path}: {fault}")
    return State("missing", missing) if missing else State("present")


def _present(file: File, folder: Path) -> File:
    """The first of a file and its alternatives that is in the folder; the file itself if none is."""
    return next((choice for choice in file.choices if os.path.exists(folder / choice.path)), file)


def _fault(file: File, path: Path, verify: bool) -> str:
    """What is wrong with a file, or an empty text."""
    try:
        size = path.stat().st_size
        if path.is_dir():
            return "it is a folder"
        if size == 0:
            return "it is empty"
        if file.size is not None and (size := _packed_size(path) if file.packed else size) != file.size:
            return f"it has {size:,} bytes, not {file.size:,}"
        if verify and file.sha256 is not None:
            limit = (file.size or 1 << 30) + 1  # one byte more than expected shows that a file is too long
            content = read_gzip(path, limit) if file.packed else read_bytes(path, limit)
            if hashlib.sha256(content).hexdigest() != file.sha256:
                return "its SHA-256 is another"
    except ValueError as error:
        return str(error).rpartition(": ")[2]
    except OSError as error:
        return error.strerror or "it cannot be read"
    return ""


def _packed_size(path: Path) -> int:
    """The size of the content of a gzip file, according to its last bytes."""
    with path.open("rb") as stream:
        if stream.read(len(GZIP_MAGIC)) != GZIP_MAGIC:
            raise cannot_read(path, "it is not a gzip file")
        stream.seek(-min(GZIP_LENGTH, path.stat().st_size), os.SEEK_END)
        return int.from_bytes(stream.read(), "little")


def _get_file(file: File, source: Source, folder: Path, progress: bool) -> Path:
    present = _present(file, folder)
    path = folder / present.path
    if os.path.exists(path):
        if fault := _fault(present, path, verify=True):
            raise ValueError(
                f"{str(path)!r} is not the file that {source.name} has ({fault}); move it away and get it again"
            )
        return path
    if file.url is None:
        others = f" and the {len(source.files) - 1} other files" if len(source.files) > 1 else ""
        raise ValueError(f"{source.name} cannot be fetched: put {str(path)!r}{others} in place by hand ({source.note})")
    with _created(path.parent):
        _download(file, path, progress)
    return path


def _download(file: File, path: Path, progress: bool) -> None:
    import pooch
    from requests.exceptions import ChunkedEncodingError, RequestException

    bar = _Bar(file.path, progress and sys.stderr.isatty())
    downloader = pooch.HTTPDownloader(progressbar=bar, chunk_size=CHUNK, timeout=TIMEOUT)
    try:
        with _no_log_lines(pooch.get_logger()):
            pooch.retrieve(file.url, f"sha256:{file.sha256}", path.name, path.parent, downloader=downloader)
        path.chmod(0o644)  # pooch renames a temporary file, which only its owner may read
    except RequestException as error:
        if error.response is not None:
            why = f"the server answered {error.response.status_code}"
        else:
            broken = isinstance(error, ChunkedEncodingError)
            why = "the connection broke off" if broken else "the server could not be reached"
        raise Unreachable(
            f"{file.path} was not fetched because {why}; put the file from {file.url} at {str(path)!r} by hand"
        ) from error
    except ValueError:
        raise ValueError(
            f"what {file.url} gave is not {file.path} (its SHA-256 is not {file.sha256}); nothing was kept"
        ) from None
    except OSError as error:
        raise ValueError(f"cannot write {str(path)!r}: {error.strerror or error}") from None
    finally:
        bar.close()


class _Bar:
    """A progress bar for one file, with the attribute and the three methods that pooch uses."""

    def __init__(self, name: str, shown: bool) -> None:
        self.total = 0  # bytes; set by pooch when the server has sent the size
        self._name, self._done, self._progress = name, 0, None
        self._appears = time.monotonic() + BAR_AFTER if shown else float("inf")

    def update(self, size: int) -> None:
        """Add `size` bytes."""
        self._done += size
        if self._progress is None and time.monotonic() >= self._appears:
            self._progress = self._start()
        if self._progress is not None:
            self._progress.update(self._task, completed=min(self._done, self.total or self._done))

    def reset(self) -> None:
        """Start again at zero bytes."""
        self._done = 0

    def close(self) -> None:
        """Remove the bar."""
        self._appears = float("inf")
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def _start(self) -> Any:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

        columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn()
        progress = Progress(*columns, console=Console(stderr=True), transient=True)
        progress.start()
        self._task = progress.add_task(self._name, total=self.total or None)
        return progress


@contextlib.contextmanager
def _created(folder: Path) -> Iterator[None]:
    """Create a folder; if the block fails, remove what was created and is still empty."""
    new = [parent for parent in (folder, *folder.parents) if not os.path.exists(parent)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"cannot make the folder {str(folder)!r}: {error.strerror}") from None
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            for parent in new:
                parent.rmdir()
        raise


@contextlib.contextmanager
def _no_log_lines(logger: logging.Logger) -> Iterator[None]:
    """Silence the log lines of a download, which the bar or an error replaces."""
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)
