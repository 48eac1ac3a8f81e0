"""Training: `fit` a model, `train` a config, `resume` a run folder, or train a population of runs at once."""

from __future__ import annotations

from .callbacks import ActiveRun, Callback
from .config import build, read_config
from .fit import fit, resume, train
from .optimizers import OPTIMIZERS
from .result import Result
from .run_folder import Run
from .schedules import SCHEDULES
from .settings import Settings
from .stopping import NonFiniteLoss
from .train_population import train_population

__all__ = [
    "OPTIMIZERS",
    "SCHEDULES",
    "ActiveRun",
    "Callback",
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
