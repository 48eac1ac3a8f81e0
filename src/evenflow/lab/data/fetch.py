"""Looks at what is in the data folder, and fetches what is not."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from evenflow.checks import unknown

from .catalog import CATALOG
from .download_bar import DownloadBar
from .guarded import GZIP_MAGIC, cannot_read, read_bytes, read_gzip
from .source import File, Source

PATIENCE = 30  # seconds without a byte before a server counts as gone
CHUNK = 1 << 16
GZIP_LENGTH = 4  # the last bytes of a gzip file say how long its content is


class Unreachable(Exception):
    """A file could not be fetched; the message says which one to put where."""


@dataclass(frozen=True)
class State:
    """Whether a data set is there.

    Args:
        word: "present", "missing" or "damaged".
        reason: what is missing or wrong, in a few words; empty if nothing is.
    """

    word: str
    reason: str = ""


def get(name: str, folder: str | os.PathLike[str], progress: bool = True) -> list[Path]:
    """Bring a data set into the folder: check the files that are there, fetch the others.

    Every file appears whole and with the right checksum, or not at all. A file that is there and is not the right one
    is left alone.

    Args:
        name: in `CATALOG`.
        folder: the data folder, made if need be.
        progress: show a bar for files that take longer than two seconds.

    Returns:
        Where the files are.

    Raises:
        ValueError: no such data set; a file is damaged, or has no address and must be put there by hand.
        Unreachable: a file could not be fetched.
    """
    if name not in CATALOG:
        raise ValueError(unknown("data set", name, CATALOG))
    return get_source(CATALOG[name], Path(folder), progress)


def get_source(source: Source, folder: Path, progress: bool = True) -> list[Path]:
    """`get` for a source that need not be in the catalogue."""
    for files in (source.files, *source.layouts):
        if state_of(files, folder, verify=True).word == "present":
            return [folder / _found(file, folder).path for file in files]
    return [_get_file(file, source, folder, progress) for file in source.files]


def state(source: Source, folder: Path, verify: bool = False) -> State:
    """Whether a data set is in the folder.

    Args:
        source: an entry of `CATALOG`.
        folder: the data folder.
        verify: compare the files' SHA-256, not only their sizes.
    """
    states = [state_of(files, folder, verify) for files in (source.files, *source.layouts)]
    present = [found for found in states if found.word == "present"]
    damaged = [found for found in states if found.word == "damaged"]
    return (present or damaged or states)[0]


def state_of(files: tuple[File, ...], folder: Path, verify: bool = False) -> State:
    """The state of a set of files: damaged if one is, missing if one is."""
    missing = ""
    for file in files:
        if not os.path.exists(folder / (found := _found(file, folder)).path):
            missing = missing or f"no {file.path}"
        elif wrong := _fault(found, folder / found.path, verify):
            return State("damaged", f"{found.path}: {wrong}")
    return State("missing", missing) if missing else State("present")


def _found(file: File, folder: Path) -> File:
    """The file or the first of its alternatives that is there; the file itself if none is."""
    return next((choice for choice in file.choices if os.path.exists(folder / choice.path)), file)


def _fault(file: File, path: Path, verify: bool) -> str:
    """What is wrong with a file that is there, or nothing."""
    try:
        size = path.stat().st_size
        if path.is_dir():
            return "it is a folder"
        if size == 0:
            return "it is empty"
        if file.size is not None and (size := _packed_size(path) if file.packed else size) != file.size:
            return f"it has {size:,} bytes, not {file.size:,}"
        if verify and file.sha256 is not None:
            # A little more than the expected size is enough to see that it is not met.
            limit = (file.size or 1 << 30) + 1
            content = read_gzip(path, limit) if file.packed else read_bytes(path, limit)
            if hashlib.sha256(content).hexdigest() != file.sha256:
                return "its SHA-256 is another"
    except ValueError as error:
        return str(error).rpartition(": ")[2]
    except OSError as error:
        return error.strerror or "it cannot be read"
    return ""


def _packed_size(path: Path) -> int:
    """The size that a gzip file says its content has."""
    with path.open("rb") as stream:
        if stream.read(len(GZIP_MAGIC)) != GZIP_MAGIC:
            raise cannot_read(path, "it is not a gzip file")
        stream.seek(-min(GZIP_LENGTH, path.stat().st_size), os.SEEK_END)
        return int.from_bytes(stream.read(), "little")


def _get_file(file: File, source: Source, folder: Path, progress: bool) -> Path:
    found = _found(file, folder)
    path = folder / found.path
    if os.path.exists(path):
        if wrong := _fault(found, path, verify=True):
            raise ValueError(
                f"{str(path)!r} is not the file that {source.name} has ({wrong}); move it away and get it again"
            )
        return path
    if file.url is None:
        others = f" and the {len(source.files) - 1} other files" if len(source.files) > 1 else ""
        raise ValueError(f"{source.name} cannot be fetched: put {str(path)!r}{others} in place by hand ({source.note})")
    with _made(path.parent):
        _download(file, path, DownloadBar(file.path, progress))
    return path


def _download(file: File, path: Path, bar: DownloadBar) -> None:
    import pooch
    from requests.exceptions import ChunkedEncodingError, RequestException

    downloader = pooch.HTTPDownloader(progressbar=bar, chunk_size=CHUNK, timeout=PATIENCE)
    try:
        with _quiet(pooch.get_logger()):
            pooch.retrieve(file.url, f"sha256:{file.sha256}", path.name, path.parent, downloader=downloader)
        path.chmod(0o644)  # a temporary file, which it was, is for its owner alone
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


@contextlib.contextmanager
def _made(folder: Path) -> Iterator[None]:
    """A folder that exists, and that goes again if what is done in it fails and leaves it empty."""
    new = [place for place in (folder, *folder.parents) if not os.path.exists(place)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"cannot make the folder {str(folder)!r}: {error.strerror}") from None
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            for place in new:
                place.rmdir()
        raise


@contextlib.contextmanager
def _quiet(logger: logging.Logger) -> Iterator[None]:
    """No log lines for what the bar shows."""
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)
