"""record.json: what a run of a recipe measured, on what, when and with which settings."""

from __future__ import annotations

import datetime
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import evenflow
from evenflow.lab.report.thinning import means
from evenflow.lab.training import atomic

from . import origin, verdict
from .curves import CURVES

if TYPE_CHECKING:
    from .attempts import Outcome
    from .run import Reproduction

FILE, FORMAT = "record.json", 2
POINTS, ALL_POINTS = 100, 2400  # of a line that a figure draws, and of the lines of all rows


def write_record(done: Reproduction) -> Path:
    """Write the record in one move and return its path.

    Runs of other rows and seeds that an earlier record in the same folder holds are kept among its `runs`.
    """
    done.folder.mkdir(parents=True, exist_ok=True)
    path = done.folder / FILE
    found = table(done)
    now = {(run["row"], run["seed"]) for run in found["runs"]}
    found["runs"] = [run for run in _earlier(path, found) if (run["row"], run["seed"]) not in now] + found["runs"]
    atomic.write(path, json.dumps(found, indent=1, ensure_ascii=False, allow_nan=False).encode())
    return path


def _earlier(path: Path, found: dict[str, Any]) -> list[dict[str, Any]]:
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
        same = all(known.get(key) == found[key] for key in ("format", "recipe", "scale"))
        return list(known["runs"]) if same else []
    except (OSError, ValueError, KeyError, AttributeError):
        return []  # no record yet, or one that says nothing


def table(done: Reproduction) -> dict[str, Any]:
    """The record as JSON can hold it; a number that is infinite or missing is null."""
    recipe = done.recipe
    return {
        "format": FORMAT,
        "recipe": recipe.address,
        "scale": done.scale,
        "title": recipe.title,
        "evenflow": evenflow.__version__,
        "torch": str(torch.__version__),
        "hardware": hardware(done),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "seconds": round(sum(outcome.seconds for outcome in done.outcomes), 1),
        "rows": [_row(done, label) for label in done.labels],
        "runs": [_run(done, outcome) for outcome in done.outcomes],
        "ordering": [{"better": p.better, "worse": p.worse, "outcome": p.outcome} for p in done.pairs],
        "notes": [*recipe.notes, *filter(None, [recipe.scale(done.scale).note])],
    }


def _run(done: Reproduction, outcome: Outcome) -> dict[str, Any]:
    """One row and seed: what came out, of which settings, made where."""
    job, evidence = outcome.job, outcome.evidence
    made = origin.read(job)
    values: dict[str, float | str] = {}
    for column in done.recipe.columns:
        value = outcome.values.get(column.measure)
        if isinstance(value, str):
            values[column.name] = value
        elif value is not None and not math.isnan(value):
            values[column.name] = verdict.NEVER if math.isinf(value) else _digits(value * column.factor, 6)
    return {
        "row": job.row.label,
        "seed": job.seed,
        "lr": job.lr,
        "outcome": _ending(outcome),
        "updates": 0 if evidence is None else int(evidence.status.get("step", 0)),
        "seconds": round(outcome.seconds, 1),
        "values": values,
        "data": "" if evidence is None else evidence.task.note,
        **{name: made[name] for name in ("hardware", "evenflow", "torch", "date")},
        "settings": _settings(job.config),
        "lines": {} if evidence is None else _lines(done, outcome),
    }


def _ending(outcome: Outcome) -> str:
    if outcome.evidence is None:
        return outcome.gap
    if not outcome.evidence.trained:
        return "not trained"
    if outcome.evidence.diverged:
        return verdict.DIVERGED
    return "stopped early" if outcome.evidence.status.get("stopped_early") else "finished"


def _lines(done: Reproduction, outcome: Outcome) -> dict[str, Any]:
    """The lines of the recipe's figures, with few points and digits."""
    evidence, found = outcome.evidence, {}
    assert evidence is not None
    for kind in (name for name in done.recipe.figures if name in CURVES):
        if not evidence.trained and CURVES[kind].trained:
            continue
        x, y = evidence.line(kind)
        kept = np.isfinite(y)
        if kept.any():
            x, y = means(x[kept], y[kept], min(POINTS, ALL_POINTS // len(done.recipe.rows) + 2))
            levels = [_digits(level, 4) for level in evidence.levels(kind) if math.isfinite(level)]
            found[kind] = {
                "levels": levels,
                "x": [round(v) for v in x.tolist()],
                "y": [_digits(v, 4) for v in y.tolist()],
            }
    return found


def _settings(config: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    # Where the data lay is of no interest to anyone else.
    return {name: {k: v for k, v in part.items() if k != "data"} for name, part in config.items()}


def _digits(value: float, digits: int) -> float:
    return float(f"{value:.{digits}g}")


def _row(done: Reproduction, label: str) -> dict[str, Any]:
    outcomes = done.of(label)
    config = outcomes[0].job.config
    notes = sorted({o.evidence.task.note for o in outcomes if o.evidence is not None and o.evidence.task.note})
    return {
        "label": label,
        "settings": _settings(config),
        "seeds": [outcome.job.seed for outcome in outcomes],
        "lrs": [outcome.job.lr for outcome in outcomes],
        "seconds": [round(outcome.seconds, 1) for outcome in outcomes],
        "data": notes,
        "columns": {
            column.name: {
                "values": [v if isinstance(v, str) else _finite(v) for v in cell.values],
                "mean": _finite(cell.mean),
                "spread": _finite(cell.spread),
                "measured": cell.measured_text(),
                "gaps": cell.gaps,
                "published": cell.published,
                "published_spread": cell.row.spread.get(column.name),
                "verdict": cell.verdict,
                "reason": cell.reason,
            }
            for column in done.recipe.columns
            for cell in [done.cells[label, column.name]]
        },
    }


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else value


def hardware(done: Reproduction) -> str:
    """The machines that its runs were made on, in words."""
    return "; ".join(dict.fromkeys(str(origin.read(outcome.job)["hardware"]) for outcome in done.outcomes))
