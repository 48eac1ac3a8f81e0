"""TensorBoard logs of a run, through Fabric's logger."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .run_folder import RunWriter
    from .settings import Settings

EVENTS = "tensorboard"  # the folder inside the run folder


def check_events(settings: Settings, folder: str | os.PathLike[str] | None) -> None:
    """A ValueError if TensorBoard logs are asked for and cannot be written."""
    if not settings.tensorboard:
        return
    if folder is None:
        raise ValueError("tensorboard writes into the run folder, got tensorboard true with folder None")
    if importlib.util.find_spec("tensorboard") is None:
        raise ValueError("tensorboard needs the package of that name: pip install 'evenflow[tensorboard]'")


def open_events(settings: Settings, writer: RunWriter | None) -> Callable[[Mapping[str, float | None]], None] | None:
    """A function that logs a row of metrics, each number measured as a scalar at its step; None where that is off.

    After a resume the rows since the last checkpoint come again: TensorBoard is told to drop the first ones.
    """
    if writer is None or not settings.tensorboard:
        return None
    from lightning_fabric.loggers import TensorBoardLogger

    loggers: list[TensorBoardLogger] = []

    def log(row: Mapping[str, float | None]) -> None:
        step = int(row["step"] or 0)
        if not loggers:
            loggers.append(TensorBoardLogger(writer.folder, name="", version=EVENTS, purge_step=step))
        loggers[0].log_metrics({k: v for k, v in row.items() if v is not None and k != "step"}, step)
        loggers[0].save()

    return log
