"""Training: fit, update methods, checkpoints, schedules, resume and populations."""

from __future__ import annotations

from .fit import fit
from .non_finite import NonFiniteLoss
from .optimizers import OPTIMIZERS
from .population import train_population
from .result import Result
from .run_folder import Run
from .schedules import SCHEDULES
from .settings import Settings
from .train import build, read_config, resume, train

__all__ = [
    "OPTIMIZERS",
    "SCHEDULES",
    "NonFiniteLoss",
    "Result",
    "Run",
    "Settings",
    "build",
    "fit",
    "read_config",
    "resume",
    "train",
    "train_population",
]
