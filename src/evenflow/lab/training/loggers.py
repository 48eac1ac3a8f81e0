"""Loggers of a run: TensorBoard, Weights & Biases and MLflow by name, and any logger of Lightning Fabric."""

from __future__ import annotations

import importlib.util
import math
import os
import subprocess
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evenflow.checks import unknown
from evenflow.runtime.import_path import COLON, import_path

if TYPE_CHECKING:
    from lightning_fabric.loggers import Logger

EVENTS = "tensorboard"  # the folder of TensorBoard logs inside the run folder
PLUS = "+"

Folder = str | os.PathLike[str] | None


def tensorboard(run: RunLoggers, _: str | None, step: int) -> Logger:
    """Fabric's TensorBoard logger, in the run folder."""
    from lightning_fabric.loggers import TensorBoardLogger

    assert run.folder is not None
    # A resumed run repeats the rows since its checkpoint: TensorBoard drops the first copies.
    return TensorBoardLogger(run.folder, name="", version=EVENTS, purge_step=step)


def wandb(run: RunLoggers, identifier: str | None, _: int) -> Logger:
    """Weights & Biases; WANDB_MODE=offline keeps everything on this machine, in the run folder."""
    from .tracking_services import WandbRun

    return WandbRun(run, identifier)


def mlflow(run: RunLoggers, identifier: str | None, _: int) -> Logger:
    """MLflow, at the address in MLFLOW_TRACKING_URI."""
    from .tracking_services import MLflowRun

    return MLflowRun(run, identifier)


LOGGERS: dict[str, Callable[[RunLoggers, str | None, int], Logger]] = {
    "tensorboard": tensorboard,
    "wandb": wandb,
    "mlflow": mlflow,
}


def logger_names(logger: str | None) -> list[str]:
    """The names in the setting; a ValueError for an unknown one."""
    names = [] if logger is None else [name.strip() for name in logger.split(PLUS)]
    for name in names:
        if name == "csv":
            raise ValueError("logger 'csv' is not needed: every run folder holds metrics.csv")
        if name not in LOGGERS and COLON not in name:
            raise ValueError(unknown("logger", name, LOGGERS))
    return names


def check_loggers(logger: str | None, given: Sequence[Any], folder: Folder) -> None:
    """Raise a ValueError if a logger needs a package or a folder that is not there, or is not given as an object."""
    paths = [import_path(each) for each in given]
    for name in logger_names(logger):
        if COLON in name and name not in paths:
            raise ValueError(f"logger {name!r} must be given to fit as an object, got its name alone")
        if name == "tensorboard" and folder is None:
            raise ValueError("logger tensorboard writes into the run folder, got folder None")
        if name in LOGGERS and importlib.util.find_spec(name) is None:
            raise ValueError(f"logger {name} needs the package of that name: pip install 'evenflow[{name}]'")


class RunLoggers:
    """The loggers of one run. They get every row of metrics.csv, all settings, the git revision and the outcome.

    A logger that fails is left out from then on, with a warning; the run goes on.

    Args:
        logger: the setting.
        given: the loggers that are objects.
        tables: of config.toml.
        folder: the run folder, or None.
        active: False in all processes but the first.

    Attributes:
        settings: the tables as one: ``{"task.name": "adding", ..., "git_revision": ...}``.
        tags: the names of the task and the system, and the seed.
    """

    def __init__(
        self, logger: str | None, given: Sequence[Any], tables: Mapping[str, Any], folder: Folder, active: bool = True
    ) -> None:
        self._names, self._given = logger_names(logger) if active else [], list(given)
        self._open: dict[str, Logger] = {}
        self._identifiers: dict[str, str] = {}
        self.folder = None if folder is None else Path(folder)
        self.settings = flatten(tables) | {"git_revision": git_revision() if self._names else None}
        parts = (self.settings.get("task.name"), self.settings.get("system.name"))
        self.tags = [*(str(part) for part in parts if part), f"seed {self.settings.get('training.seed', 0)}"]

    @property
    def name(self) -> str:
        """A name for the run: its folder's, or task and system."""
        return "-".join(self.tags[:-1]) if self.folder is None else self.folder.resolve().name

    def start(self, step: int) -> None:
        """Open the loggers, at the present step, and log the settings."""
        objects = {import_path(each): each for each in self._given}
        for name in self._names:
            opened: Any = objects[name] if name in objects else LOGGERS[name](self, self._identifiers.get(name), step)
            self._open[name] = opened
            if identifier := getattr(opened, "identifier", None):
                self._identifiers[name] = identifier
            if name in objects:
                with suppress(NotImplementedError):  # of Fabric's CSVLogger
                    opened.log_hyperparams(self.settings)
            elif name == "tensorboard":
                text = "\n".join(f"    {key} = {value}" for key, value in self.settings.items())
                opened.experiment.add_text("settings", text, step)

    def log(self, row: Mapping[str, float | None]) -> None:
        """Log a row of metrics.csv."""
        values = {name: value for name, value in row.items() if value is not None and name != "step"}
        self._write(values, int(row["step"] or 0))

    def finish(self, outcome: Mapping[str, float], step: int) -> None:
        """Log the outcome of the run and close the loggers."""
        measured = {name: float(value) for name, value in outcome.items() if not math.isnan(value)}
        self._write(measured, step)
        self.close("success")

    def close(self, status: str) -> None:
        """Close the loggers of a run that ended so: success, failed or interrupted."""
        self._each(lambda logger: logger.finalize(status))
        self._open.clear()

    def state(self) -> dict[str, str]:
        """What a checkpoint has to hold: under which identifiers the services know the run."""
        return dict(self._identifiers)

    def restore(self, state: Mapping[str, str]) -> None:
        """Go back to a checkpoint."""
        self._identifiers = dict(state)

    def _write(self, values: Mapping[str, float], step: int) -> None:
        def write(logger: Logger) -> None:
            logger.log_metrics(dict(values), step)
            logger.save()

        self._each(write)

    def _each(self, work: Callable[[Logger], Any]) -> None:
        for name, logger in list(self._open.items()):
            try:
                work(logger)
            except Exception as error:  # a service that cannot be reached must not end the run
                del self._open[name]
                message = (str(error).strip() or type(error).__name__).splitlines()[0]
                warnings.warn(f"logger {name} is left out from here on, it failed: {message}", stacklevel=4)


def flatten(tables: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"task": {"name": "copy"}} → {"task.name": "copy"}."""
    flat: dict[str, Any] = {}
    for key, value in tables.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def git_revision() -> str | None:
    """The commit of the working directory, with "-dirty" if files have changed since; None outside of a repository."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        run = subprocess.run(command, capture_output=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return run.stdout.decode().strip() or None
