"""A run folder as the page needs it: labels, settings, curves, probes, outcome."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from evenflow.lab import tasks


@dataclass
class Record:
    """What one run folder says.

    settings: {"task": {"name": "adding", ...}, "system": {...}, "training": {...}}; columns: the metrics, each (N,),
    NaN in empty cells; rows: for each column which of the N rows hold a value, so that a NaN that was measured is not
    taken for an empty cell; status: how it went, as training left it; probe_step (K,) and probe_norm (K, T), or None,
    and then probe_gap says why. Of the other arrays of probes.npz, each or None: layer_norm (K, L, T), jacobian (K, T),
    singular (K, N, 4) with the names of the N matrices, band (K, 2), components (T).
    """

    folder: Path
    settings: dict[str, dict[str, Any]]
    columns: dict[str, np.ndarray]
    rows: dict[str, np.ndarray]
    label: str = ""
    task: tasks.Task | None = None
    probe_step: np.ndarray | None = None
    probe_norm: np.ndarray | None = None
    probe_gap: str = ""
    layer_norm: np.ndarray | None = None
    jacobian: np.ndarray | None = None
    singular: np.ndarray | None = None
    band: np.ndarray | None = None
    components: np.ndarray | None = None
    matrices: list[str] = field(default_factory=list)
    status: dict[str, Any] = field(default_factory=dict)
    note: str = ""

    def curve(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Updates and values of one column, empty cells left out."""
        rows = self.rows[name]
        return self.columns["step"][rows], self.columns[name][rows]

    @property
    def system(self) -> str:
        return str(self.settings.get("system", {}).get("name", self.folder.name))

    @property
    def task_name(self) -> str:
        return str(self.settings.get("task", {}).get("name", "an unnamed task"))

    @property
    def metric_is_loss(self) -> bool:
        """Whether the metric is the loss under another name, as the squared error of the adding task is."""
        loss, metric = self.curve("valid_loss")[1], self.curve("valid_metric")[1]
        return loss.shape == metric.shape and np.allclose(loss, metric, rtol=1e-4, equal_nan=True)

    @property
    def updates(self) -> int:
        """Updates the run has made."""
        step = self.columns["step"]
        return int(step[-1]) if len(step) else 0

    @property
    def planned(self) -> int | None:
        """Updates the run was asked for."""
        steps = self.settings.get("training", {}).get("steps")
        return steps if isinstance(steps, int) else None

    @property
    def seconds(self) -> float | None:
        values = self.curve("seconds")[1]
        return float(values[-1]) if len(values) else None

    @property
    def parameters(self) -> int | None:
        value = self.status.get("parameters")
        return value if isinstance(value, int) else None

    @property
    def data_note(self) -> str:
        """What everyone who sees a result should know about the data; empty where there is nothing to know."""
        return str(self.status.get("data_note", "" if self.task is None else self.task.note))

    @property
    def test(self) -> tuple[float, float] | None:
        """Loss and metric on the test part, of the best weights; None where there was no test."""
        found = [self.status.get(name) for name in ("test_loss", "test_metric")]
        loss, metric = (float(v) if isinstance(v, int | float) else None for v in found)
        return None if loss is None or metric is None else (loss, metric)

    @property
    def layers(self) -> list[str]:
        """A name for each layer and direction of `layer_norm`."""
        count = 0 if self.layer_norm is None else self.layer_norm.shape[1]
        if self.settings.get("system", {}).get("bidirectional") and count % 2 == 0:
            return [f"layer {i // 2 + 1}, {('forward', 'backward')[i % 2]}" for i in range(count)]
        return [f"layer {i + 1}" for i in range(count)]

    @property
    def baseline(self) -> float | None:
        try:
            return None if self.task is None else self.task.baseline
        except ValueError:  # the data set is not on this machine
            return None

    @property
    def metric_name(self) -> str:
        return "metric" if self.task is None else self.task.metric_name

    def final(self, name: str) -> float | None:
        """The last value of a column; None if there is none."""
        values = self.curve(name)[1]
        return float(values[-1]) if len(values) else None

    def best(self, name: str) -> float | None:
        """The best finite value of a column: the smallest, except for a metric of which more is better."""
        values = self.curve(name)[1]
        values = values[np.isfinite(values)]
        if not len(values):
            return None
        higher = name == "valid_metric" and self.task is not None and self.task.higher_is_better
        return float(values.max() if higher else values.min())

    @property
    def diverged_at(self) -> int | None:
        """The update of the last row if that has a loss, gradient or validation that is not finite."""
        for name in ("loss", "gradient_norm", "valid_loss"):
            step, value = self.curve(name)
            if len(value) and step[-1] == self.updates and not np.isfinite(value[-1]):
                return self.updates
        return None

    @property
    def solved_at(self) -> int | None:
        """The first validated update whose metric solves the task."""
        if self.task is None:
            return None
        for step, metric in zip(*self.curve("valid_metric"), strict=True):
            if np.isfinite(metric) and self.task.solved(float(metric)):
                return int(step)
        return None


def flatten(tables: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"task": {"name": "copy"}} → {"task.name": "copy"}."""
    flat: dict[str, Any] = {}
    for key, value in tables.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
