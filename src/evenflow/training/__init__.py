"""Fit, checkpoints, schedules, resume, populations and sweeps."""

from __future__ import annotations

from .candidates import Axes
from .fit import fit
from .halving import Rules
from .non_finite import NonFiniteLoss
from .optimizers import OPTIMIZERS
from .population import train_population
from .result import Result
from .run_folder import Run
from .schedules import SCHEDULES
from .settings import Settings
from .sweep import Sweep, sweep
from .train import build, read_config, resume, train

__all__ = [
    "OPTIMIZERS",
    "SCHEDULES",
    "Axes",
    "NonFiniteLoss",
    "Result",
    "Rules",
    "Run",
    "Settings",
    "Sweep",
    "build",
    "fit",
    "read_config",
    "resume",
    "sweep",
    "train",
    "train_population",
]
