"""Checkpoints that survive a crash at any moment.

    checkpoint/latest                 the name of the version to resume from
    checkpoint/step-000001000/        one version: weights.safetensors, state.pt, manifest.json
    checkpoint/best.safetensors       the weights with the best validation so far

A version is written under a temporary name, flushed, renamed, and only then named in `latest`. The manifest holds the
SHA-256 of both files, which detects damage. The version before the latest is kept and used if the latest is damaged:
the run then repeats some steps and ends with the same numbers.

The best weights are written before the version that refers to them, so they may belong to a later step. Their file
holds its own step and SHA-256, from which `recovery` tells newer weights from damaged ones.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from evenflow.models.model_weights import load_weights as load_weights
from evenflow.models.model_weights import read_weights_file, weights_file
from evenflow.models.model_weights import weights_of as weights_of

from . import atomic

LATEST, BEST = "latest", "best.safetensors"
WEIGHTS, STATE, MANIFEST = "weights.safetensors", "state.pt", "manifest.json"  # the files of a version
AGAIN = "-again"  # suffix of a version that a run has gone back to
VERSION = re.compile(rf"step-(\d{{9,}})({AGAIN})?")
KEEP = 2


@dataclass(frozen=True)
class Checkpoint:
    """The weights and the rest of the state of a run after `step` updates."""

    step: int
    weights: dict[str, Tensor]
    state: dict[str, Any]


def save(folder: Path, checkpoint: Checkpoint, mark: str = "") -> str:
    """Write a version, point `latest` at it and return its name, which ends with `mark`.

    If `latest` names an intact version of this step already, nothing is written.
    """
    folder.mkdir(exist_ok=True)
    name = f"step-{checkpoint.step:09d}{mark}"
    if _pointed_at(folder) == name and intact(folder / name):
        return name
    buffer = io.BytesIO()
    torch.save(checkpoint.state, buffer)
    files = {WEIGHTS: safetensors.torch.save(checkpoint.weights), STATE: buffer.getvalue()}
    digests = {file: hashlib.sha256(content).hexdigest() for file, content in files.items()}
    files[MANIFEST] = json.dumps({"format": 1, "step": checkpoint.step, "sha256": digests}).encode()
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
    """The version to resume from, or None before the first; a ValueError if every version is damaged."""
    name = _pointed_at(folder)
    if name is None:
        return None
    if name and intact(folder / name):
        return name
    what = f"checkpoint {folder / name}" if name else f"file {folder / LATEST}, which names the checkpoint,"
    for other in versions(folder):
        if other != name and intact(folder / other):
            warnings.warn(f"{what} is damaged, resuming from {other}", stacklevel=2)
            return other
    others = "older one" if name else "good version"
    raise ValueError(f"{what} is damaged and there is no {others}, so the run cannot be resumed")


def load(folder: Path, name: str) -> Checkpoint:
    """Read a version that `find` returned."""
    step = json.loads((folder / name / MANIFEST).read_text(encoding="utf-8"))["step"]
    state = torch.load(folder / name / STATE, map_location="cpu", weights_only=True)
    return Checkpoint(step, safetensors.torch.load_file(folder / name / WEIGHTS), state)


def save_best(folder: Path, weights: Mapping[str, Tensor], step: int) -> None:
    """Replace the best weights by those of `step`."""
    folder.mkdir(exist_ok=True)
    atomic.write(folder / BEST, weights_file(weights, step=step))


@dataclass(frozen=True)
class BestWeights:
    """The best weights and their step; the step is None in files of older versions."""

    weights: dict[str, Tensor]
    step: int | None


def load_best(folder: Path) -> BestWeights | None:
    """The best weights, or None before the first validation; a ValueError if the file is damaged."""
    path = folder / BEST
    if not path.is_file():
        return None
    weights, notes = read_weights_file(path, "best weights")
    return BestWeights(weights, notes.get("step"))


def _pointed_at(folder: Path) -> str | None:
    """The version that `latest` names; "" if it names none, None without the file."""
    try:
        name = (folder / LATEST).read_bytes().decode("ascii", "replace").strip()
    except FileNotFoundError:
        return None
    return name if VERSION.fullmatch(name) else ""


def versions(folder: Path) -> list[str]:
    """All complete versions, newest first, damaged or not."""
    return sorted((entry.name for entry in folder.glob("step-*") if VERSION.fullmatch(entry.name)), reverse=True)


def step_of(version: str) -> int:
    """The step in the name of a version."""
    return int(version.split("-")[1])


def intact(version: Path) -> bool:
    """Whether both files of a version have the content that was written."""
    try:
        manifest = json.loads((version / MANIFEST).read_text(encoding="utf-8"))
        return all(
            hashlib.sha256((version / file).read_bytes()).hexdigest() == manifest["sha256"][file]
            for file in (WEIGHTS, STATE)
        )
    except (OSError, ValueError, KeyError, TypeError):
        return False
