"""Where and when a run was made: kept in its folder, so that whoever reads it back later tells the same."""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

import evenflow
from evenflow.lab.training import Run, atomic
from evenflow.lab.training.run_folder import CONFIG
from evenflow.runtime.cpu_info import cpu_name

from .configs import Job

FILE, THEN = "origin.json", ", then "


def write(jobs: Sequence[Job]) -> None:
    """Note in the folders of runs that start, or go on, now and side by side, what they do so on."""
    for job in jobs:
        job.folder.mkdir(parents=True, exist_ok=True)
        now = here(job)
        before = read(job) if (job.folder / CONFIG).is_file() else now  # a run that has begun
        for what in ("hardware", "evenflow", "torch"):
            same = now[what] == before[what].split(THEN)[-1]
            now[what] = before[what] if same else before[what] + THEN + now[what]
        atomic.write(job.folder / FILE, json.dumps(now | {"side_by_side": len(jobs)}).encode())


def read(job: Job) -> dict[str, Any]:
    """Hardware, versions and date of a run; those of this moment where its folder has no note."""
    try:
        return dict(json.loads((job.folder / FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return here(job) | {"side_by_side": 1}


def here(job: Job) -> dict[str, Any]:
    return {
        "hardware": hardware([str(job.config["training"].get("device", "auto"))]),
        "evenflow": evenflow.__version__,
        "torch": str(torch.__version__),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def machine_seconds(job: Job) -> float:
    """How long the machine was busy with a run: of runs side by side each has its share."""
    if not (job.folder / "config.toml").is_file():
        return 0.0
    shown = Run(job.folder).metrics.get("seconds", np.zeros(0))
    shown = shown[np.isfinite(shown)]
    # Where the clock goes back, a population was resumed and its clock began anew.
    grown = np.diff(shown, prepend=0.0)
    return float(np.where(grown < 0, shown, grown).sum()) / max(1, int(read(job)["side_by_side"]))


def hardware(devices: Sequence[str]) -> str:
    """The machine in words, for runs that asked for these devices."""
    if torch.cuda.is_available() and any(device.split(":")[0] in ("auto", "cuda") for device in devices):
        return torch.cuda.get_device_name()
    return f"{cpu_name()}, {torch.get_num_threads()} of its cores"
