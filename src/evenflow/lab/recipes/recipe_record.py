"""record.json: what the runs of a recipe measured, with their settings, hardware, versions and dates."""

from __future__ import annotations

import datetime
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch

import evenflow
from evenflow.lab.data.guarded import LARGEST_RECORD, read_text
from evenflow.lab.report.downsample import means
from evenflow.lab.training import atomic

from . import provenance, recipe_cell
from .attempts import RowOutcome
from .recipe_curves import CURVES, read_line
from .reproduction import Reproduction

FILE, FORMAT = "record.json", 2
POINTS, ALL_POINTS = 100, 2400  # most points of one line of a figure, and of the lines of all rows


def write_record(result: Reproduction) -> Path:
    """Write the record in one move and return its path.

    Runs of other rows and seeds in an earlier record of the same folder are kept among its `runs`.
    """
    result.folder.mkdir(parents=True, exist_ok=True)
    path = result.folder / FILE
    record = _table(result)
    record["runs"] = _earlier_runs(path, record) + record["runs"]
    atomic.write(path, json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False).encode())
    return path


def _earlier_runs(path: Path, record: dict[str, Any]) -> list[dict[str, Any]]:
    """The runs of the record before that are not in the new one; none if there was no record, or it is damaged."""
    new = {(run["row"], run["seed"]) for run in record["runs"]}
    try:
        earlier = json.loads(read_text(path, LARGEST_RECORD))
        same = all(earlier.get(key) == record[key] for key in ("format", "recipe", "scale"))
        runs = [run for run in earlier["runs"] if (run["row"], run["seed"]) not in new] if same else []
        json.dumps(runs, allow_nan=False)  # as the record will be written
    except (ValueError, LookupError, AttributeError, TypeError, RecursionError):
        return []
    return runs


def _table(result: Reproduction) -> dict[str, Any]:
    """The record as JSON; a number that is infinite or missing is null."""
    recipe = result.recipe
    return {
        "format": FORMAT,
        "recipe": recipe.address,
        "scale": result.scale,
        "title": recipe.title,
        "evenflow": evenflow.__version__,
        "torch": str(torch.__version__),
        "hardware": result.hardware,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "seconds": round(result.seconds, 1),
        "rows": [_row(result, label) for label in result.labels],
        "runs": [_run(result, outcome) for outcome in result.outcomes],
        "ordering": [{"better": p.better, "worse": p.worse, "outcome": p.outcome} for p in result.pairs],
        "notes": [*recipe.notes, *filter(None, [recipe.scale(result.scale).note])],
    }


def _run(result: Reproduction, outcome: RowOutcome) -> dict[str, Any]:
    """One row and seed."""
    job, data = outcome.job, outcome.data
    origin = provenance.read(job)
    values: dict[str, float | str] = {}
    for column in result.recipe.columns:
        value = outcome.values.get(column.measure)
        if isinstance(value, str):
            values[column.name] = value
        elif value is not None and not math.isnan(value):
            values[column.name] = recipe_cell.NEVER if math.isinf(value) else _digits(value * column.factor, 6)
    return {
        "row": job.row.label,
        "seed": job.seed,
        "lr": job.lr,
        "outcome": _ending(outcome),
        "updates": 0 if data is None else int(data.status.get("step", 0)),
        "best_step": None if data is None else data.status.get("best_step"),
        "seconds": round(outcome.seconds, 1),
        "values": values,
        "data": "" if data is None else data.task.note,
        **{name: origin[name] for name in ("hardware", "evenflow", "torch", "date")},
        "settings": _settings(outcome),
        "lines": _lines(result, outcome),
    }


def _ending(outcome: RowOutcome) -> str:
    if outcome.data is None:
        return outcome.gap
    if not outcome.data.trained:
        return "not trained"
    if outcome.diverged:
        return recipe_cell.DIVERGED
    return "stopped early" if outcome.data.status.get("stopped_early") else "finished"


def _lines(result: Reproduction, outcome: RowOutcome) -> dict[str, Any]:
    """The lines of the recipe's figures, downsampled and rounded."""
    lines: dict[str, Any] = {}
    for kind in (name for name in result.recipe.figures if name in CURVES and outcome.data is not None):
        assert outcome.data is not None
        if not outcome.data.trained and CURVES[kind].trained:
            continue
        line = read_line(outcome.data, kind)
        finite = np.isfinite(line.y)
        if finite.any():
            x, y = means(line.x[finite], line.y[finite], min(POINTS, ALL_POINTS // len(result.recipe.rows) + 2))
            lines[kind] = {
                "levels": [_digits(level, 4) for level in line.levels if math.isfinite(level)],
                "x": [round(v) for v in x.tolist()],
                "y": [_digits(v, 4) for v in y.tolist()],
            }
    return lines


def _settings(outcome: RowOutcome) -> dict[str, dict[str, Any]]:
    """The config without the data folder, which means nothing on another machine."""
    return {name: {k: v for k, v in part.items() if k != "data"} for name, part in outcome.job.config.items()}


def _digits(value: float, digits: int) -> float:
    return float(f"{value:.{digits}g}")


def _row(result: Reproduction, label: str) -> dict[str, Any]:
    outcomes = result.of(label)
    return {
        "label": label,
        "settings": _settings(outcomes[0]),
        "seeds": [outcome.job.seed for outcome in outcomes],
        "lrs": [outcome.job.lr for outcome in outcomes],
        "seconds": [round(outcome.seconds, 1) for outcome in outcomes],
        "data": sorted({o.data.task.note for o in outcomes if o.data is not None and o.data.task.note}),
        "columns": {
            cell.column.name: {
                "values": [v if isinstance(v, str) else _finite(v) for v in cell.values],
                "mean": _finite(cell.mean),
                "spread": _finite(cell.spread),
                "measured": cell.measured_text(),
                "gaps": cell.gaps,
                "published": cell.published,
                "published_spread": cell.published_spread,
                "verdict": cell.verdict,
                "reason": cell.reason,
            }
            for cell in result.row_cells(label)
        },
    }


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else value
