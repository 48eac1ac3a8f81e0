"""Checkpoints that a crash cannot spoil.

    checkpoint/latest                 the name of the version to resume from
    checkpoint/step-000001000/        one version: weights.safetensors, state.pt, manifest.json
    checkpoint/best.safetensors       the weights with the best validation so far

A version is written under a temporary name, flushed, renamed, and only then named in `latest`. The manifest holds the
SHA-256 of both files, so a version that was changed or damaged later is noticed. The version before the latest is kept
and used when the latest is damaged: the run then repeats some steps and ends in the same numbers.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from . import atomic

LATEST, WEIGHTS, STATE, MANIFEST, BEST = (
    "latest",
    "weights.safetensors",
    "state.pt",
    "manifest.json",
    "best.safetensors",
)
KEEP = 2


@dataclass(frozen=True)
class Checkpoint:
    """The weights and the rest of the state of a run after `step` updates."""

    step: int
    weights: dict[str, Tensor]
    state: dict[str, Any]


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """A copy of the model's weights on the CPU, each tensor with its own memory."""
    return {name: tensor.detach().cpu().clone().contiguous() for name, tensor in model.state_dict().items()}


def load_weights(model: nn.Module, weights: Mapping[str, Tensor], origin: object) -> None:
    """Copy `weights` into the model; a ValueError names the first tensor that does not fit."""
    expected = model.state_dict()
    for name in [*expected, *weights]:
        if name not in weights:
            raise ValueError(f"weights in {origin} do not fit the model: {name} is missing")
        if name not in expected:
            raise ValueError(f"weights in {origin} do not fit the model: {name} is not one of the model's")
        if weights[name].shape != expected[name].shape:
            raise ValueError(
                f"weights in {origin} do not fit the model: {name} has shape {tuple(weights[name].shape)}, "
                f"the model needs {tuple(expected[name].shape)}"
            )
    # copy_ in place of load_state_dict: a parametrised tensor is restored bit for bit and never solved for again.
    with torch.no_grad():
        for name, tensor in expected.items():
            tensor.copy_(weights[name])


def save(folder: Path, checkpoint: Checkpoint) -> None:
    """Write one version and point `latest` at it. Saving the step that `latest` names already changes nothing."""
    from safetensors.torch import save as to_bytes

    folder.mkdir(exist_ok=True)
    name = f"step-{checkpoint.step:09d}"
    if _pointed_at(folder) == name and _intact(folder / name):
        return
    buffer = io.BytesIO()
    torch.save(checkpoint.state, buffer)
    files = {WEIGHTS: to_bytes(checkpoint.weights), STATE: buffer.getvalue()}
    digests = {file: hashlib.sha256(content).hexdigest() for file, content in files.items()}
    files[MANIFEST] = json.dumps({"format": 1, "step": checkpoint.step, "sha256": digests}).encode()
    temporary = folder / (atomic.TEMPORARY + name)
    for leftover in (temporary, folder / name):
        if leftover.exists():
            shutil.rmtree(leftover)
    temporary.mkdir()
    for file, content in files.items():
        atomic.write_flushed(temporary / file, content)
    atomic.flush_folder(temporary)
    os.rename(temporary, folder / name)
    atomic.flush_folder(folder)
    atomic.write(folder / LATEST, (name + "\n").encode())
    for old in [version for version in _versions(folder) if version != name][KEEP - 1 :]:
        shutil.rmtree(folder / old, ignore_errors=True)


def find(folder: Path) -> str | None:
    """The version to resume from, or None before the first; a ValueError if every version is damaged."""
    name = _pointed_at(folder)
    if name is None:
        return None
    if _intact(folder / name):
        return name
    for other in _versions(folder):
        if other != name and _intact(folder / other):
            warnings.warn(f"checkpoint {folder / name} is damaged, resuming from {other}", stacklevel=2)
            return other
    raise ValueError(f"checkpoint {folder / name} is damaged and there is no older one, so the run cannot be resumed")


def load(folder: Path, name: str) -> Checkpoint:
    """Read a version that `find` returned."""
    from safetensors.torch import load_file

    step = json.loads((folder / name / MANIFEST).read_text())["step"]
    state = torch.load(folder / name / STATE, map_location="cpu", weights_only=True)
    return Checkpoint(step, load_file(folder / name / WEIGHTS), state)


def save_best(folder: Path, weights: Mapping[str, Tensor]) -> None:
    """Replace the best weights."""
    from safetensors.torch import save as to_bytes

    folder.mkdir(exist_ok=True)
    atomic.write(folder / BEST, to_bytes(dict(weights)))


def load_best(folder: Path) -> dict[str, Tensor] | None:
    """The best weights, or None before the first validation."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(folder / BEST)
    except FileNotFoundError:
        return None
    except SafetensorError as error:
        raise ValueError(f"best weights {folder / BEST} cannot be read: {error}") from error


def _pointed_at(folder: Path) -> str | None:
    try:
        return (folder / LATEST).read_text().strip()
    except FileNotFoundError:
        return None


def _versions(folder: Path) -> list[str]:
    """All complete versions, newest first."""
    return sorted((entry.name for entry in folder.glob("step-*")), reverse=True)


def _intact(version: Path) -> bool:
    try:
        manifest = json.loads((version / MANIFEST).read_text())
        return all(
            hashlib.sha256((version / file).read_bytes()).hexdigest() == manifest["sha256"][file]
            for file in (WEIGHTS, STATE)
        )
    except (OSError, ValueError, KeyError, TypeError):
        return False
