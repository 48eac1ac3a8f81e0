"""Whether two folders hold the same runs to the last bit, in everything but times."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch

from evenflow.lab.training import Run, atomic, checkpoint
from evenflow.lab.training.run_folder import METRICS

BYTES = ("config.toml", "bundle.json", "probes.npz", "answers.npz", "checkpoint/best.safetensors")
TIMES = ("seconds", "began", "hardware", "minutes", "date", "when", "started", "ended")  # keys of records
TIMED = (".html",)  # pages that show times


def assert_same_folders(one: Path, other: Path, but: str = "") -> None:
    """All runs below two folders, `but` this one, and the records beside them are equal; no temporary file is left."""
    runs = [sorted(str(path.parent.relative_to(top)) for path in top.rglob("config.toml")) for top in (one, other)]
    assert runs[0] == runs[1], f"runs {runs[0]} and {runs[1]}"
    for name in runs[0]:
        if name != but:
            assert_same_run(one / name, other / name)
    files = [_records(top, runs[0]) for top in (one, other)]
    assert files[0].keys() == files[1].keys(), f"files {sorted(files[0])} and {sorted(files[1])}"
    for name, content in files[0].items():
        assert content == files[1][name], f"{name} differs"


def assert_same_run(one: Path, other: Path, but: str = "") -> None:
    """Weights, optimiser, metrics but seconds, probes, best weights, answers, status are equal, all `but` one file."""
    states = []
    for folder in (one, other):
        version = checkpoint.find(folder / "checkpoint")
        assert version is not None, f"{folder.name} has no checkpoint"
        saved = checkpoint.load(folder / "checkpoint", version)
        saved.state.pop("seconds")
        states.append((saved.step, saved.weights, saved.state))
    assert_same(states[0], states[1], f"{one.name}: checkpoint")
    first, second = Run(one), Run(other)
    assert first.status == second.status, f"{first.status} and {second.status}"
    if but != METRICS:
        rows = [[line.rsplit(",", 1)[0] for line in run.metric_lines()] for run in (first, second)]
        assert rows[0] == rows[1], f"{one.name}: metrics.csv {_first_difference(*rows)}"
    for name in BYTES:
        assert name == but or _content(one / name) == _content(other / name), f"{one.name}: {name} differs"
    kept = [sorted(path.name for path in folder.iterdir() if path.name != but) for folder in (one, other)]
    assert kept[0] == kept[1], f"{one.name}: {kept[0]} and {kept[1]}"
    orphans = [path.name for path in other.rglob(f"{atomic.TEMPORARY}*")]
    assert not orphans, f"{one.name}: {orphans} were left"


def assert_same(one: Any, other: Any, where: str) -> None:
    """Two nested values of tensors, numbers and text are equal; nan equals nan."""
    assert type(one) is type(other), where
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype, where
        assert np.array_equal(one.numpy(), other.numpy(), equal_nan=True), where
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for key in one:
            assert_same(one[key], other[key], f"{where}/{key}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), where
        for index, (a, b) in enumerate(zip(one, other, strict=True)):
            assert_same(a, b, f"{where}/{index}")
    else:
        assert one == other or (one != one and other != other), f"{where}: {one!r} and {other!r}"


def _first_difference(one: list[str], other: list[str]) -> str:
    pairs = [f"{a!r} and {b!r}" for a, b in zip(one, other, strict=False) if a != b]
    return pairs[0] if pairs else f"{len(one)} and {len(other)} rows"


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def _records(top: Path, runs: list[str]) -> dict[str, Any]:
    """The files of a folder that belong to none of its runs, without times."""
    found: dict[str, Any] = {}
    for path in sorted(top.rglob("*")):
        inside = any(run == "." or path.is_relative_to(top / run) for run in runs)
        if not path.is_file() or inside or path.suffix in TIMED:
            continue
        content = path.read_bytes()
        found[str(path.relative_to(top))] = _timeless(json.loads(content)) if path.suffix == ".json" else content
    return found


def _timeless(table: Any) -> Any:
    if isinstance(table, dict):
        return {key: _timeless(value) for key, value in table.items() if not re.search("|".join(TIMES), key)}
    return [_timeless(value) for value in table] if isinstance(table, list) else table
