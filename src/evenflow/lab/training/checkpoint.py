"""Checkpoints that survive a crash at any moment.

    checkpoint/latest                 the name of the version to resume from
    checkpoint/step-000001000/        one version: weights.safetensors, state.pt, manifest.json
    checkpoint/best.safetensors       the weights with the best validation so far

A version is written under a temporary name, flushed, renamed, and only then named in `latest`. The manifest holds the
SHA-256 of both files, which detects damage. state.pt also says of which step the version is, the config of the run and
the versions of evenflow and torch; name, manifest and state must agree on the step. The version before the latest is
kept and used if the latest is damaged: the run then repeats some steps and ends with the same numbers.

The best weights are written before the version that refers to them, so they may belong to a later step. Their file
holds its own step and SHA-256, from which `recovery` tells newer weights from damaged ones. The SHA-256 stands in
state.pt too, and so does that of the run's first best weights, which later files repeat: weights of another run are
refused.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from evenflow.lab.data.torch_file import read_torch_file
from evenflow.models.model_weights import load_weights as load_weights
from evenflow.models.model_weights import read_weights_file, weights_file
from evenflow.models.model_weights import weights_of as weights_of
from evenflow.version import VERSION as EVENFLOW

from . import atomic

LATEST, BEST = "latest", "best.safetensors"
WEIGHTS, STATE, MANIFEST = "weights.safetensors", "state.pt", "manifest.json"  # the files of a version
ORIGIN = "origin"  # key of the state: step, config and versions
AGAIN = "-again"  # suffix of a version that a run has gone back to
VERSION = re.compile(rf"step-(\d{{9,}})({AGAIN})?")
KEEP = 2
LONGEST_MANIFEST = 1 << 16  # characters that are read; it has a few hundred
LONGEST_NAME = 100  # bytes of `latest` that are read


@dataclass(frozen=True)
class Checkpoint:
    """The weights and the rest of the state of a run after `step` updates.

    Attributes:
        config: the tables of the run's config.toml; None in checkpoints of older versions.
        versions: of evenflow and of torch, by which it was written; empty in checkpoints of older versions.
    """

    step: int
    weights: dict[str, Tensor]
    state: dict[str, Any]
    config: dict[str, Any] | None = None
    versions: dict[str, str] = field(default_factory=dict)


def save(folder: Path, checkpoint: Checkpoint, mark: str = "") -> str:
    """Write a version, point `latest` at it and return its name, which ends with `mark`.

    If `latest` names an intact version of this step already, nothing is written.
    """
    folder.mkdir(exist_ok=True)
    name = f"step-{checkpoint.step:09d}{mark}"
    if _pointed_at(folder) == name and intact(folder / name):
        return name
    buffer = io.BytesIO()
    origin = {"step": checkpoint.step, "config": checkpoint.config, "versions": versions_now()}
    torch.save({**checkpoint.state, ORIGIN: origin}, buffer)
    files = {WEIGHTS: safetensors.torch.save(checkpoint.weights), STATE: buffer.getvalue()}
    digests = {file: hashlib.sha256(content).hexdigest() for file, content in files.items()}
    files[MANIFEST] = json.dumps({"format": 2, "step": checkpoint.step, "sha256": digests}).encode()
    temporary = folder / (atomic.TEMPORARY + name)
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        with atomic.named(folder / name):
            temporary.mkdir()
            for file, content in files.items():
                atomic.write_flushed(temporary / file, content)
            atomic.flush_folder(temporary)
            if (folder / name).exists():
                shutil.rmtree(folder / name)
            os.rename(temporary, folder / name)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    atomic.flush_folder(folder)
    atomic.write(folder / LATEST, (name + "\n").encode())
    for old in [version for version in versions(folder) if version != name][KEEP - 1 :]:
        shutil.rmtree(folder / old, ignore_errors=True)
    return name


def go_back(folder: Path, older: Checkpoint) -> str:
    """Make an older version the latest in one step, remove the versions after it, and return its name."""
    name = save(folder, older, AGAIN)
    for version in versions(folder):
        if version > name:
            shutil.rmtree(folder / version, ignore_errors=True)
    return name


def rewind(folder: Path, step: int) -> None:
    """Make the newest intact version of at most `step` updates the latest, and remove the versions after it."""
    for version in versions(folder):
        if step_of(version) <= step and intact(folder / version):
            if _pointed_at(folder) != version:
                atomic.write(folder / LATEST, (version + "\n").encode())
            break
    for version in versions(folder):
        if step_of(version) > step:
            shutil.rmtree(folder / version, ignore_errors=True)


def find(folder: Path) -> str | None:
    """The version to resume from, or None before the first; a ValueError if every version is damaged.

    Without the file `latest` it is the newest intact version. A warning says when it is not the one that was asked for.
    """
    name = _pointed_at(folder)
    if name is None and not versions(folder):
        return None
    if name and intact(folder / name):
        return name
    if name is None:
        what = f"file {folder / LATEST}, which names the checkpoint, is missing"
    else:
        what = f"checkpoint {folder / name}" if name else f"file {folder / LATEST}, which names the checkpoint,"
        what += " is damaged"
    for other in versions(folder):
        if other != name and intact(folder / other):
            warnings.warn(f"{what}, resuming from {other}", stacklevel=2)
            return other
    others = "older one" if name else "good version"
    raise ValueError(f"{what} and there is no {others}, so the run cannot be resumed")


def load(folder: Path, name: str) -> Checkpoint:
    """Read a version that `find` returned.

    Raises:
        ValueError: its content is not that of a checkpoint, or of another step. Nothing in it is run.
    """
    version = folder / name
    try:
        state = dict(read_torch_file(version / STATE))
        weights = safetensors.torch.load_file(version / WEIGHTS)
        origin = dict(state.pop(ORIGIN, {"step": step_of(name)}))
        step, config, made_by = origin["step"], origin.get("config"), dict(origin.get("versions", {}))
        if config is not None:
            config = {table: dict(values) for table, values in dict(config).items()}
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"checkpoint {version} cannot be read: {_first_line(error)}") from error
    if step != step_of(name):
        raise ValueError(f"checkpoint {version} cannot be used: its content is that of step {step}")
    return Checkpoint(step, weights, state, config, made_by)


def versions_now() -> dict[str, str]:
    """The versions that a checkpoint names."""
    return {"evenflow": EVENFLOW, "torch": str(torch.__version__)}


def save_best(folder: Path, weights: Mapping[str, Tensor], step: int, first: str | None = None) -> str:
    """Replace the best weights by those of `step` and return their SHA-256.

    Args:
        first: SHA-256 of the first best weights of the run, by which its files are told from those of other runs; None
            if these are the first.
    """
    folder.mkdir(exist_ok=True)
    content, digest = weights_file(weights, step=step, first=first)
    atomic.write(folder / BEST, content)
    return digest


@dataclass(frozen=True)
class BestWeights:
    """The best weights, their step, their SHA-256 and that of the run's first best weights.

    The step and the first are None in files of older versions.
    """

    weights: dict[str, Tensor]
    step: int | None
    digest: str
    first: str | None


def load_best(folder: Path) -> BestWeights | None:
    """The best weights, or None before the first validation; a ValueError if the file is damaged."""
    path = folder / BEST
    if not path.is_file():
        return None
    weights, notes, digest = read_weights_file(path, "best weights")
    return BestWeights(weights, notes.get("step"), digest, (notes["first"] or digest) if "first" in notes else None)


def _pointed_at(folder: Path) -> str | None:
    """The version that `latest` names; "" if it names none, None without the file."""
    try:
        with (folder / LATEST).open("rb") as file:
            name = file.read(LONGEST_NAME).decode("ascii", "replace").strip()
    except FileNotFoundError:
        return None
    except OSError:
        return ""
    return name if VERSION.fullmatch(name) else ""


def versions(folder: Path) -> list[str]:
    """All complete versions, newest first, damaged or not."""
    return sorted((entry.name for entry in folder.glob("step-*") if VERSION.fullmatch(entry.name)), reverse=True)


def step_of(version: str) -> int:
    """The step in the name of a version."""
    return int(version.split("-")[1])


def intact(version: Path) -> bool:
    """Whether both files of a version have the content that was written, for the step in its name."""
    try:
        with (version / MANIFEST).open(encoding="utf-8") as file:
            manifest = json.loads(file.read(LONGEST_MANIFEST))
        return manifest["step"] == step_of(version.name) and all(
            _digest(version / name) == manifest["sha256"][name] for name in (WEIGHTS, STATE)
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _first_line(error: Exception) -> str:
    return (str(error).strip() or repr(error)).splitlines()[0]
