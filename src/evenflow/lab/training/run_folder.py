"""Reading a run folder, also of a run that is under way; `run_writer` writes it.

config.toml     the task, the system and the settings
bundle.json     how to make the model again and what its inputs and outputs are, for `evenflow.load`
status.toml     running, finished, failed or interrupted, and why
metrics.csv     a row every few updates
probes.npz      step (K,), gradient_norm (K, T) and more: gradients and matrices during training, see `Probing`
answers.npz     the answers of the best weights on the test or validation part, see `AnswerLog`
checkpoint/     weights, the rest of the state, the best weights
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from evenflow.lab.data.guarded import read_arrays, read_bytes, read_text

from . import checkpoint, metrics
from .stopping import diverged

CONFIG, STATUS, METRICS, PROBES, CHECKPOINT = "config.toml", "status.toml", "metrics.csv", "probes.npz", "checkpoint"
ANSWERS = "answers.npz"
LARGEST_TABLE = 1 << 24  # bytes of a TOML file
LIMIT = 1 << 28  # bytes of arrays; a probe of 1,000 steps has about 12,000, a row of metrics.csv about 80


class Run:
    """A run folder, to read from. A run that is under way or was killed reads as far as it got.

    Each file is read when it is first used and kept; a new `Run` sees what was written since. A file that is damaged
    raises a ValueError that names it.

    Args:
        folder: the run's folder.
        limit: the most bytes of the arrays in a file, and four times those of metrics.csv; None for any number.

    Attributes:
        folder: as a path.
        config: the tables of config.toml: ``task``, ``system``, ``training`` and, for a file of the user's own,
            ``data``.

        >>> result = fit(model, task, steps=20, folder="runs/adding", progress=False)
        >>> run = Run("runs/adding")
        >>> run.status["state"], run.last("valid_metric") == result.valid_metric
        ('finished', True)
    """

    def __init__(self, folder: str | os.PathLike[str], limit: int | None = LIMIT) -> None:
        self.folder, self._limit = Path(folder), limit
        if not (self.folder / CONFIG).is_file():
            raise ValueError(f"folder {str(self.folder)!r} holds no run: it has no {CONFIG}")
        self.config: dict[str, Any] = self._toml(CONFIG)
        if not self.config:
            raise ValueError(f"{CONFIG} of run {str(folder)!r} is damaged: there is nothing in it")
        if plain := [name for name, table in self.config.items() if not isinstance(table, dict)]:
            raise ValueError(f"{CONFIG} of run {str(self.folder)!r} is damaged: {plain[0][:40]!r} is no table")
        if "tensorboard" in (training := self.config.get("training", {})):  # its name until there were other loggers
            training |= {"logger": "tensorboard"} if training.pop("tensorboard") else {}

    @property
    def name(self) -> str:
        """The folder's own name."""
        return self.folder.resolve().name

    @cached_property
    def status(self) -> dict[str, Any]:
        """`state` (running, finished, failed, interrupted), `step`, `message`, and the outcome of a finished run."""
        if not (self.folder / STATUS).is_file():
            return {"state": "running", "step": 0}
        status = self._toml(STATUS)
        if not isinstance(status.get("state"), str):
            raise ValueError(f"{STATUS} of run {str(self.folder)!r} is damaged: it has no state")
        return status

    @property
    def diverged(self) -> bool:
        """Whether the run ended because a number was infinite or not a number. A full disk also fails a run."""
        return diverged(self.status)

    @property
    def ended(self) -> bool:
        """Whether the run needs no more training: it has made all its updates, or it has diverged."""
        return self.diverged or self.status["state"] == "finished"

    @cached_property
    def metrics(self) -> metrics.Metrics:
        """The columns of metrics.csv as arrays ``(N,)``, nan where nothing was measured."""
        return metrics.to_arrays(self.metric_lines())

    @cached_property
    def measured(self) -> dict[str, np.ndarray]:
        """For each column of `metrics` the rows ``(N,)`` that hold a value; that value may be a measured nan."""
        cells = [line.split(",") for line in self.metric_lines()]
        return {name: np.array([bool(row[i]) for row in cells], bool) for i, name in enumerate(metrics.COLUMNS)}

    def curve(self, name: str, nan: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """The steps and the values ``(M,)`` of the rows in which a column was measured, with `nan` also measured nan.

        >>> step, loss = run.curve("valid_loss")
        """
        values = self.metrics[name]
        rows = self.measured[name] if nan else ~np.isnan(values)
        return self.metrics["step"][rows], values[rows]

    def last(self, name: str) -> float:
        """The last number measured in a column; nan if there is none."""
        values = self.curve(name)[1]
        return float(values[-1]) if len(values) else float("nan")

    def best(self, name: str, higher: bool = False) -> float:
        """The smallest finite number in a column, or with `higher` the largest; nan if there is none."""
        values = self.curve(name)[1]
        values = values[np.isfinite(values)]
        return float(values.max() if higher else values.min()) if len(values) else float("nan")

    def best_validation(self, higher: bool) -> tuple[float, float]:
        """Loss and metric of the validation with the best metric, and of equal ones the lowest loss; nan if none."""
        pairs = zip(self.metrics["valid_loss"], self.metrics["valid_metric"], strict=True)
        finite = [(float(loss), float(metric)) for loss, metric in pairs if np.isfinite(loss) and np.isfinite(metric)]
        none = (float("nan"), float("nan"))
        return min(finite, key=lambda pair: (-pair[1] if higher else pair[1], pair[0]), default=none)

    @cached_property
    def probes(self) -> dict[str, np.ndarray] | None:
        """`step` (K,), `gradient_norm` (K, T) and the other arrays of `Probing`, or None if the run was not probed."""
        if not (self.folder / PROBES).is_file():
            return None
        return self._arrays(PROBES)

    @cached_property
    def answers(self) -> dict[str, np.ndarray] | None:
        """What a finished run answered on its test or, if it has none, its validation part; None if it is not known.

        `part` is its name, `kind` that of the data schema, `step` the update of the weights, `sequences` and `answers`
        how many were compared. Of classes there are `labels` (L,), `confusion` (L, L), row by the true label, and the
        sequences of the mistakes that the model was most sure of: `mistake_...` (K,), and their steps end to end in
        `mistake_inputs` (S, I). Of numbers there are `columns` (O,), `errors` (O, 3) with the mean absolute error, the
        root mean squared error and R², and `pairs` (P, 2, O) of true and predicted numbers. Of a model that predicts
        the next step there are also the forecasts of `ForecastLog`, as `forecast_...`.
        """
        if not (self.folder / ANSWERS).is_file():
            return None
        return self._arrays(ANSWERS)

    def probe(self, name: str) -> tuple[np.ndarray, np.ndarray] | None:
        """The steps ``(K,)`` and one array ``(K, ...)`` of `probes`, or None if it was not recorded."""
        if self.probes is None or name not in self.probes or not len(self.probes["step"]):
            return None
        return self.probes["step"], self.probes[name]

    def weights(self, which: str = "last") -> dict[str, Tensor]:
        """The weights of the last checkpoint, or with "best" those of the best validation."""
        folder = self.folder / CHECKPOINT
        saved: checkpoint.BestWeights | checkpoint.Checkpoint | None
        if which == "best":
            saved = checkpoint.load_best(folder)
        elif which == "last":
            version = checkpoint.find(folder)
            saved = None if version is None else checkpoint.load(folder, version)
        else:
            raise ValueError(f"which must be last or best, got {which!r}")
        if saved is None:
            raise ValueError(f"run {str(self.folder)!r} has no {which} weights yet")
        return saved.weights

    def metric_lines(self) -> list[str]:
        """The complete rows of metrics.csv as text."""
        path = self.folder / METRICS
        if not path.is_file() or not path.stat().st_size:  # empty for a moment while a run starts
            return []
        limit = None if self._limit is None else self._limit // 4  # a row takes about ten times its text
        return self._parse(METRICS, lambda: metrics.complete_lines(read_bytes(path, limit)))

    def _arrays(self, file: str) -> dict[str, np.ndarray]:
        """All arrays of a file; `numpy.savez` compresses nothing, so they are never larger than the file."""
        path = self.folder / file
        limit = min(path.stat().st_size, self._limit or path.stat().st_size)
        return self._parse(file, lambda: read_arrays(path, limit=limit))

    def _toml(self, file: str) -> dict[str, Any]:
        return self._parse(file, lambda: tomllib.loads(read_text(self.folder / file, LARGEST_TABLE)))

    def _parse(self, file: str, read: Callable[[], Any]) -> Any:
        try:
            return read()
        except (ValueError, OSError, RecursionError) as error:
            raise ValueError(f"{file} of run {str(self.folder)!r} cannot be read: {error}") from error
