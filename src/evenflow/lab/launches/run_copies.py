"""Copy run folders to a store and back while they are trained; a copy can be resumed whenever the copying stops.

A copy follows a snapshot of all folders of a launch at one moment. Versions of checkpoints and other files are copied
first, then the names of the latest versions and the states of the runs, and only then are old versions removed. So the
copies of a population hold a common step at any moment.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from evenflow.lab.training import atomic
from evenflow.lab.training.checkpoint import BEST, LATEST
from evenflow.lab.training.run_folder import CHECKPOINT, CONFIG, STATUS

from .run_store import Store

NAMED = f"{CHECKPOINT}/{LATEST}"
LAST = (NAMED, STATUS)  # what says how far a run is: copied after everything else
SNAPSHOTS = 20  # attempts

Stamp = tuple[int, int]


class Sender:
    """Copies what has changed in the folders of a launch to a store.

    Args:
        folders: by their keys in the store.
        held: an empty folder on the same disk, for snapshots.
    """

    def __init__(self, folders: Mapping[str, Path], store: Store, held: Path) -> None:
        self.folders, self.store, self._held = dict(folders), store, held
        self._sent: dict[tuple[str, str], Stamp] = {}

    def send(self) -> None:
        """Bring the store up to date; nothing happens if the runs save too often for a snapshot."""
        try:
            if any(self._snapshot() for _ in range(SNAPSHOTS)):
                self._copy({key: _files(self._held / key) for key in self.folders})
        finally:
            shutil.rmtree(self._held, ignore_errors=True)

    def _copy(self, held: Mapping[str, Sequence[str]]) -> None:
        for last in (False, True):
            for key, names in held.items():
                for name in sorted(names, key=_turn):
                    if (name in LAST) is last:
                        self._write(key, name)
        for key, names in held.items():
            gone = [name for of, name in self._sent if of == key and name not in names]
            self.store.remove(key, gone)
            for name in gone:
                del self._sent[key, name]

    def received(self, key: str, name: str) -> None:
        """Note that a file of a folder is the store's own."""
        self._sent[key, name] = _stamp(self.folders[key] / name)

    def _write(self, key: str, name: str) -> None:
        stamp = _stamp(path := self._held / key / name)
        if self._sent.get((key, name)) != stamp:
            self.store.write(key, name, path.read_bytes())
            self._sent[key, name] = stamp

    def _snapshot(self) -> bool:
        """Link all files of all folders; return whether no run has saved meanwhile."""
        shutil.rmtree(self._held, ignore_errors=True)
        before = self._latest()
        try:
            for key, folder in self.folders.items():
                for name in _files(folder):
                    link = self._held / key / name
                    link.parent.mkdir(parents=True, exist_ok=True)
                    os.link(folder / name, link)
        except FileNotFoundError:  # replaced or removed since
            return False
        return self._latest() == before

    def _latest(self) -> list[bytes | None]:
        return [latest(folder) for folder in self.folders.values()]


def send(folder: Path, key: str, store: Store) -> None:
    """Bring the copy of a run folder, which nothing writes at present, to what the folder is."""
    names = _files(folder)
    for last in (False, True):
        for name in sorted(names, key=_turn):
            if (name in LAST) is last:
                store.write(key, name, (folder / name).read_bytes())
    store.remove(key, [name for name in store.names(key) if _in_version(name) and name not in names])


def fetch(key: str, folder: Path, store: Store) -> list[str]:
    """Bring a run folder to what the store has of it, and return the names of its files.

    Files of the folder that the store does not have stay, but for versions of checkpoints.
    """
    names = sorted((name for name in store.names(key) if atomic.TEMPORARY not in name), key=_turn)
    for name in [name for name in names if name not in LAST] + [name for name in LAST if name in names]:
        if (content := store.read(key, name)) is not None:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            atomic.write(folder / name, content)
    versions = {name.split("/")[1] for name in names if _in_version(name)}
    for path in (folder / CHECKPOINT).glob("step-*") if versions else ():
        if path.name not in versions:
            shutil.rmtree(path, ignore_errors=True)
    return names


def ahead_of(folder: Path, key: str, store: Store) -> bool:
    """Whether a run folder is further than its copy in the store, or has none."""
    if not (folder / CONFIG).is_file():
        return False
    mine, theirs = latest(folder) or b"", store.read(key, NAMED)
    return mine > theirs if theirs is not None else bool(mine) or store.read(key, CONFIG) is None


def latest(folder: Path) -> bytes | None:
    """What names the version from which a run resumes; names of later versions are greater."""
    try:
        return (folder / NAMED).read_bytes()
    except OSError:
        return None


def _files(folder: Path) -> Sequence[str]:
    """The files of a run folder, without unfinished ones."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return [name for name in (path.relative_to(folder).as_posix() for path in paths) if atomic.TEMPORARY not in name]


def _turn(name: str) -> tuple[bool, bool, str]:
    """The order of copying: versions first, then the best weights, which may be newer than the versions, not older."""
    return (not _in_version(name), name != f"{CHECKPOINT}/{BEST}", name)


def _in_version(name: str) -> bool:
    return name.startswith(f"{CHECKPOINT}/step-")


def _stamp(path: Path) -> Stamp:
    status = path.stat()
    return (status.st_mtime_ns, status.st_size)
