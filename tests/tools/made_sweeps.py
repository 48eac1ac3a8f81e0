"""Folders of sweeps as `evenflow sweep` would leave them, with numbers that were never measured."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

REQUEST = {
    "parameters": None,
    "maps": ["exponential"],
    "cells": ["gated"],
    "activations": ["relu"],
    "hidden": None,
    "optimizers": ["adam"],
    "lrs": [0.01, 0.001],
    "system": {},
    "updates": 3000,
    "first": 100,
    "keep": 0.5,
    "seeds": 2,
    "finalists": 1,
    "finish": "linear",
    "training": {"batch_size": 20, "validate_every": 100, "checkpoint_every": 100, "seed": 0, "precision": "32-true"},
}
OMITTED = {"map": "svd", "cell": "gru", "activation": "own", "hidden_size": 16}


def point(
    *, valid: Sequence[float] = (0.9, 0.94), test: Sequence[float | None] = (0.91, 0.93), **changes: Any
) -> dict[str, Any]:
    """One point of sweep.json, and with it the scores of its seeds in the last round that it was in."""
    scores = [
        {"seed": seed, "updates": 1000, "valid_metric": v, "valid_loss": 1 - v, "test_metric": t, "seconds": 1.0}
        for seed, (v, t) in enumerate(zip(valid, test, strict=True))
    ]
    made = {
        "map": "exponential",
        "cell": "gated",
        "activation": "relu",
        "hidden_size": 128,
        "optimizer": "adam",
        "lr": 0.01,
        "parameters": 9000,
        "system": {"name": "sgornn", "hidden_size": 128},
        "state": "finished",
        "reason": "",
        "updates": 1000,
    } | changes
    words = ("map", "cell", "activation", "hidden_size", "optimizer", "lr")
    return {"name": "-".join(str(made[word]) for word in words), **made, "scores": scores}


def write(
    folder: Path,
    *points: dict[str, Any],
    task: dict[str, Any] | None = None,
    parameters: int | None = None,
    training: dict[str, Any] | None = None,
    **changes: Any,
) -> Path:
    """A folder with nothing but its sweep.json, of points in their order and of two rounds."""
    scores = {each["name"]: each["scores"] for each in points}
    last = [each["name"] for each in points if each["state"] == "finished"]
    kept = [{k: v for k, v in each.items() if k != "scores"} for each in points]
    asked = {"task": task or {"name": "har", "classes": 2}, "parameters": parameters}
    table = {
        "format": 1,
        "state": "finished",
        "evenflow": "0.1.0",
        "torch": "2.13.0",
        "hardware": "an H200",
        "began": "2026-11-15T10:00:00+00:00",
        "seconds": 75.0,
        "judged_by": "accuracy",
        "updates": 3000,
        "request": REQUEST | asked | {"training": REQUEST["training"] | (training or {})},
        "points": [{"rank": rank, **each} for rank, each in enumerate(kept, 1)],
        "omitted": [],
        "rounds": [
            {
                "points": len(points),
                "until": 100,
                "last": False,
                "entrants": list(scores),
                "scores": {name: rows[:1] for name, rows in scores.items()},
            },
            {
                "points": len(last),
                "until": 1000,
                "last": True,
                "entrants": last,
                "scores": {name: scores[name] for name in last},
            },
        ],
    } | changes
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sweep.json").write_text(json.dumps(table))
    return folder
