"""record.json: what a run of a recipe measured, on what, when and with which settings."""

from __future__ import annotations

import datetime
import json
import math
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import evenflow
from evenflow.training import atomic

if TYPE_CHECKING:
    from .run import Reproduction

FILE, FORMAT = "record.json", 1


def write_record(done: Reproduction) -> Path:
    """Write the record in one move and return its path."""
    done.folder.mkdir(parents=True, exist_ok=True)
    path = done.folder / FILE
    atomic.write(path, json.dumps(table(done), indent=1, ensure_ascii=False, allow_nan=False).encode())
    return path


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
        "ordering": [{"better": p.better, "worse": p.worse, "outcome": p.outcome} for p in done.pairs],
        "notes": [*recipe.notes, *filter(None, [recipe.scale(done.scale).note])],
    }


def _row(done: Reproduction, label: str) -> dict[str, Any]:
    outcomes = done.of(label)
    config = outcomes[0].job.config
    notes = sorted({o.evidence.task.note for o in outcomes if o.evidence is not None and o.evidence.task.note})
    return {
        "label": label,
        # Where the data lay is of no interest to anyone else.
        "settings": {name: {k: v for k, v in part.items() if k != "data"} for name, part in config.items()},
        "seeds": [outcome.job.seed for outcome in outcomes],
        "rates": [outcome.job.rate for outcome in outcomes],
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
    """The machine in words."""
    devices = {str(outcome.job.config["training"].get("device", "auto")).split(":")[0] for outcome in done.outcomes}
    if torch.cuda.is_available() and devices & {"auto", "cuda"}:
        return torch.cuda.get_device_name()
    return f"{_processor()}, {torch.get_num_threads()} of its cores"


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
