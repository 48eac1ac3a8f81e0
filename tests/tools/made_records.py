"""Records of recipes as a full-scale reproduction would leave them, with numbers that were never measured."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evenflow.lab.recipes import Recipe, load
from evenflow.lab.recipes.configs import config_of


def run(recipe: Recipe, row: str, seed: int, values: Mapping[str, Any], /, **changes: Any) -> dict[str, Any]:
    """One run of record.json."""
    lr = recipe.lrs[0] if recipe.lrs else None
    kinds = [name for name in recipe.figures if name in ("metric", "loss", "train-loss")]
    line = {"levels": [0.2], "x": [100, 200, 300], "y": [0.3, 0.1, 0.02]}
    return {
        "row": row,
        "seed": seed,
        "lr": lr,
        "outcome": "finished",
        "updates": 300,
        "seconds": 12.5,
        "values": dict(values),
        "data": "",
        "hardware": "an H200",
        "evenflow": "0.1.0",
        "torch": "2.13.0",
        "date": "2026-11-15",
        "settings": config_of(recipe, recipe.row(row), "full", seed=seed, lr=lr),
        "lines": dict.fromkeys(kinds, line),
    } | changes


def write(folder: Path, name: str, *runs: dict[str, Any], **changes: Any) -> Path:
    """A run folder with nothing but its record.json."""
    folder.mkdir(parents=True, exist_ok=True)
    table = {"format": 2, "recipe": load(name).address, "scale": "full", "runs": list(runs)} | changes
    (folder / "record.json").write_text(json.dumps(table))
    return folder
