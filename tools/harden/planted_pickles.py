"""Pickles in the place of every file, and inside the formats that can hold one: none may be executed."""

from __future__ import annotations

import gzip
import io
import pickle
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from harden.fuzz import problem
from harden.read_files import ReadFile, data_files, parquet_files, run_files
from harden.trials import Attack, Trials


class Planted:
    """Unpickled, it creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str, str]]:
        return open, (self.path, "w")


def plant(trials: Trials) -> None:
    """Every form of a pickle in the place of every file."""
    mark = trials.folder / "executed"
    _check_that_it_works(mark)
    for kind, files in (("data", data_files), ("parquet", parquet_files), ("runs", run_files)):
        folder = trials.folder / kind
        folder.mkdir()
        for target in list(files(folder)):
            good = target.path.read_bytes()
            for form, content in forms(target, good, Planted(mark)):
                with trials.trial(f"{target.name}: {form}"):
                    target.path.write_bytes(content)
                    said = problem(target.read)
                    assert not mark.exists(), "it was executed"
                    assert not said, said
                mark.unlink(missing_ok=True)
            target.path.write_bytes(good)


def forms(target: ReadFile, good: bytes, planted: Planted) -> Iterator[tuple[str, bytes]]:
    """The contents that are put in the place of a file, with their names."""
    for protocol in (0, 2, 5):
        yield f"pickle of protocol {protocol}", pickle.dumps(planted, protocol)
    yield "packed pickle", gzip.compress(pickle.dumps(planted))
    for zipped in (True, False):
        buffer = io.BytesIO()
        torch.save({"weight_hh_l0": planted}, buffer, _use_new_zipfile_serialization=zipped)
        yield f"torch.save{'' if zipped else ' of old'}", buffer.getvalue()
    objects = np.array([planted, planted], dtype=object)
    buffer = io.BytesIO()
    np.save(buffer, objects, allow_pickle=True)
    yield "npy of objects", buffer.getvalue()
    if target.path.suffix == ".npz":
        yield from _in_archive(good, buffer.getvalue())
    if target.path.suffix == ".pt":
        yield from _in_state(target.path, good, planted)


def _in_archive(good: bytes, member: bytes) -> Iterator[tuple[str, bytes]]:
    """An npz file with one array after the other replaced by objects."""
    with zipfile.ZipFile(io.BytesIO(good)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    for name in members:
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as archive:
            for each, content in members.items():
                archive.writestr(each, member if each == name else content)
        yield f"objects as {name}", packed.getvalue()


def _in_state(path: Path, good: bytes, planted: Planted) -> Iterator[tuple[str, bytes]]:
    """A file of torch with one more entry."""
    content = torch.load(io.BytesIO(good), weights_only=True)
    packed = io.BytesIO()
    torch.save({**content, "planted": planted}, packed)
    yield "one more entry", packed.getvalue()


def _check_that_it_works(mark: Path) -> None:
    """The pickle does execute where pickles are read."""
    pickle.loads(pickle.dumps(Planted(mark))).close()
    assert mark.exists()
    mark.unlink()
    warnings.simplefilter("ignore")


ATTACKS = (Attack("pickles", "pickles planted in the place of every file, and inside npz and torch files", plant, 0.5),)
