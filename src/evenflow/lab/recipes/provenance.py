"""Provenance of a run: hardware, versions and date, stored in the run folder for those who read it back later."""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

import evenflow
from evenflow.lab.data.guarded import LARGEST_RECORD, read_text
from evenflow.lab.training import Run, atomic
from evenflow.lab.training.launch import hardware
from evenflow.lab.training.run_folder import CONFIG

from .configs import RecipeJob

FILE, THEN = "origin.json", ", then "


def write(jobs: Sequence[RecipeJob]) -> None:
    """Record hardware and versions in the folders of runs that start or resume now, side by side.

    A run that resumes on other hardware or another version names both.
    """
    for job in jobs:
        job.folder.mkdir(parents=True, exist_ok=True)
        now = current(job)
        before = read(job) if (job.folder / CONFIG).is_file() else now
        for name in ("hardware", "evenflow", "torch"):
            same = now[name] == before[name].split(THEN)[-1]
            now[name] = before[name] if same else before[name] + THEN + now[name]
        atomic.write(job.folder / FILE, json.dumps(now | {"side_by_side": len(jobs)}).encode())


def read(job: RecipeJob) -> dict[str, Any]:
    """Hardware, versions and date of a run; those of this moment if its folder does not say."""
    try:
        table = json.loads(read_text(job.folder / FILE, LARGEST_RECORD))
        texts = {name: str(table[name]) for name in ("hardware", "evenflow", "torch", "date")}
        return texts | {"side_by_side": int(table["side_by_side"])}
    except (ValueError, TypeError, LookupError, OverflowError, RecursionError):
        return current(job) | {"side_by_side": 1}


def current(job: RecipeJob) -> dict[str, Any]:
    """Hardware, versions and date of this moment."""
    return {
        "hardware": hardware(str(job.config["training"].get("device", "auto"))),
        "evenflow": evenflow.__version__,
        "torch": str(torch.__version__),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def machine_seconds(job: RecipeJob) -> float:
    """How long the machine was busy with a run; runs that trained side by side share the time equally."""
    if not (job.folder / CONFIG).is_file():
        return 0.0
    clock = Run(job.folder).metrics.get("seconds", np.zeros(0))
    clock = clock[np.isfinite(clock)]
    # Where the clock goes back, a population was resumed and its clock started again at zero.
    grown = np.diff(clock, prepend=0.0)
    return float(np.where(grown < 0, clock, grown).sum()) / max(1, int(read(job)["side_by_side"]))
