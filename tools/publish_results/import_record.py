"""record.json of run folders, as `evenflow reproduce --scale full` leaves them, on the way into the committed ones."""

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

# Settings that are no change of the recipe: which run it is, where it runs, and what it writes down.
FREE = ("seed", "device", "data", "checkpoint_every", "log_every", "tensorboard")
ENDED = ("finished", "stopped early", "diverged", "not trained")


def find(place: Path) -> list[Path]:
    """The record of a run folder or of a sweep, or all records below a folder, or a record itself."""
    if place.is_file():
        return [place]
    found: list[Path] = []
    for name in (FILE, SWEEP):
        own = place / name
        found += [own] if own.is_file() else sorted(place.rglob(name))
    if not found:
        raise ValueError(
            f"folder {str(place)!r} holds neither {FILE} nor {SWEEP}: `evenflow reproduce NAME --scale full` writes "
            f"the one and `evenflow sweep TASK` the other"
        )
    return found


def take(path: Path) -> tuple[StoredRecord, list[str]]:
    """What a record.json holds, and a sentence for each reason why runs are left out: nothing was measured."""
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
    left: dict[str, list[str]] = {}
    try:
        for run in table["runs"]:
            if run["outcome"] in ENDED:
                runs.append(_entry(recipe, run))
                lines += [StoredLine(run["row"], run["seed"], kind, **line) for kind, line in run["lines"].items()]
            else:
                left.setdefault(run["outcome"], []).append(f"{run['row']}, seed {run['seed']}")
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"record {str(path)!r} cannot be read: a run lacks {error}") from error
    sentences = [
        f"Left out, {recipe.address}, {of[0]}{f', and {len(of) - 1} more' * (len(of) > 1)}: {outcome}."
        for outcome, of in left.items()
    ]
    return StoredRecord(recipe).merged(runs, lines), sentences


def _entry(recipe: Recipe, run: dict[str, Any]) -> StoredRun:
    own = _plain(config_of(recipe, recipe.row(run["row"]), "full"))
    theirs = _plain(run["settings"])
    names = [(table, key) for table in own for key in {**own[table], **theirs.get(table, {})} if key not in FREE]
    if run["lr"] is not None:
        names = [name for name in names if name != ("training", "lr")]
    changed = {
        f"{table}.{key}": theirs.get(table, {}).get(key)
        for table, key in names
        if theirs.get(table, {}).get(key) != own[table].get(key)
    }
    kept = ("row", "seed", "lr", "outcome", "updates", "seconds", "values", "hardware", "evenflow", "torch", "date")
    return StoredRun(
        **{name: run[name] for name in kept}, recipe=digest(recipe, run["row"]), changed=changed, data=run["data"]
    )


def digest(recipe: Recipe, label: str) -> str:
    """Eight letters that change when the recipe's settings for a row do."""
    own = _plain(config_of(recipe, recipe.row(label), "full"))
    kept = {table: {k: v for k, v in part.items() if k not in FREE} for table, part in own.items()}
    return f"{zlib.crc32(json.dumps([kept, recipe.lrs], sort_keys=True).encode()):08x}"


def _plain(config: Any) -> dict[str, dict[str, Any]]:
    """A config as JSON would give it back."""
    return dict(json.loads(json.dumps(config)))


def gather(places: Iterable[Path]) -> tuple[list[StoredRecord], list[StoredSweep], list[str]]:
    """All that is found, read and checked before anything is written, and a sentence for each thing left out."""
    records: list[StoredRecord] = []
    sweeps: list[StoredSweep] = []
    left: list[str] = []
    for path in (path for place in places for path in find(place)):
        if path.name == SWEEP:
            found = import_sweep.take(path)
            if isinstance(found, str):
                left.append(found)
            else:
                sweeps.append(found)
        else:
            record, sentences = take(path)
            records.append(record)
            left += sentences
    return records, sweeps, left
