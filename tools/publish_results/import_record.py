"""Reads record.json files, as `evenflow reproduce --scale full` writes them, for the stored records."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from evenflow.lab.recipes.configs import config_of
from evenflow.lab.recipes.recipe_catalog import load
from evenflow.lab.recipes.recipe_record import FILE, FORMAT
from evenflow.lab.recipes.schema import Recipe
from evenflow.lab.sweep.sweep_record import FILE as SWEEP

from . import import_sweep
from .stored_record import StoredLine, StoredRecord, StoredRun
from .stored_sweep import StoredSweep

# Settings that do not count as changes of the recipe: they change neither model nor data.
FREE = ("seed", "device", "data", "checkpoint_every", "log_every", "tensorboard", "logger")
ENDED = ("finished", "stopped early", "diverged", "not trained")


def find(place: Path) -> list[Path]:
    """The records at a path: a record itself, that of a run folder or sweep, or all records below a folder."""
    if place.is_file():
        return [place]
    paths: list[Path] = []
    for name in (FILE, SWEEP):
        direct = place / name
        paths += [direct] if direct.is_file() else sorted(place.rglob(name))
    if not paths:
        raise ValueError(
            f"folder {str(place)!r} holds neither {FILE} nor {SWEEP}: `evenflow reproduce NAME --scale full` writes "
            f"the one and `evenflow sweep TASK` the other"
        )
    return paths


def read_record(path: Path) -> tuple[StoredRecord, list[str]]:
    """The contents of a record.json, and a sentence for each reason why runs without results are left out."""
    try:
        table = json.loads(path.read_text("utf-8"))
        if not isinstance(table, dict) or "recipe" not in table or "runs" not in table:
            raise ValueError("it is no record of a recipe")
        if table.get("format") != FORMAT:
            raise ValueError(f"its format is {table.get('format')}, and {FORMAT} is known: run the recipe again")
    except (ValueError, OSError) as error:
        raise ValueError(f"record {str(path)!r} cannot be read: {error}") from error
    recipe = load(str(table["recipe"]))
    if table.get("scale") != "full":
        raise ValueError(
            f"record {str(path)!r} is of the {table.get('scale')} scale, and only the full scale is published: "
            f"run `evenflow reproduce {recipe.address} --scale full`"
        )
    runs, lines = [], []
    left_out: dict[str, list[str]] = {}
    try:
        for run in table["runs"]:
            if run["outcome"] in ENDED:
                runs.append(_stored_run(recipe, run))
                lines += [StoredLine(run["row"], run["seed"], kind, **line) for kind, line in run["lines"].items()]
            else:
                left_out.setdefault(run["outcome"], []).append(f"{run['row']}, seed {run['seed']}")
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"record {str(path)!r} cannot be read: a run lacks {error}") from error
    sentences = [
        f"Left out, {recipe.address}, {of[0]}{f', and {len(of) - 1} more' * (len(of) > 1)}: {outcome}."
        for outcome, of in left_out.items()
    ]
    return StoredRecord(recipe).merged(runs, lines), sentences


def _stored_run(recipe: Recipe, run: dict[str, Any]) -> StoredRun:
    expected = _as_json(config_of(recipe, recipe.row(run["row"]), "full", seed=run["seed"]))
    actual = _as_json(run["settings"])
    names = [
        (table, key) for table in expected for key in {**expected[table], **actual.get(table, {})} if key not in FREE
    ]
    if run["lr"] is not None:
        names = [name for name in names if name != ("training", "lr")]
    changed = {
        f"{table}.{key}": actual.get(table, {}).get(key)
        for table, key in names
        if actual.get(table, {}).get(key) != expected[table].get(key)
    }
    fields = ("row", "seed", "lr", "outcome", "updates", "seconds", "values", "hardware", "evenflow", "torch", "date")
    return StoredRun(
        **{name: run[name] for name in fields},
        recipe=digest(recipe, run["row"]),
        changed=changed,
        data=run["data"],
        best_step=run.get("best_step"),
    )


def digest(recipe: Recipe, label: str) -> str:
    """Eight hexadecimal digits that change when the recipe's settings for a row do."""
    config = _as_json(config_of(recipe, recipe.row(label), "full"))
    kept = {table: {k: v for k, v in part.items() if k not in FREE} for table, part in config.items()}
    return f"{zlib.crc32(json.dumps([kept, recipe.row(label).lrs or recipe.lrs], sort_keys=True).encode()):08x}"


def _as_json(config: Any) -> dict[str, dict[str, Any]]:
    """A config after a round trip through JSON."""
    return dict(json.loads(json.dumps(config)))


def gather(places: Iterable[Path]) -> tuple[list[StoredRecord], list[StoredSweep], list[str]]:
    """All records and sweeps below some paths, and a sentence for each run or sweep that is left out."""
    records: list[StoredRecord] = []
    sweeps: list[StoredSweep] = []
    left_out: list[str] = []
    for path in (path for place in places for path in find(place)):
        if path.name == SWEEP:
            sweep = import_sweep.read_sweep(path)
            if isinstance(sweep, str):
                left_out.append(sweep)
            else:
                sweeps.append(sweep)
        else:
            record, sentences = read_record(path)
            records.append(record)
            left_out += sentences
    return records, sweeps, left_out
