"""A run folder as a report shows it: label, task, curves, probes and outcome."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from evenflow.lab import tasks
from evenflow.lab.training import Run
from evenflow.lab.training.loggers import flatten
from evenflow.models import pretrained
from evenflow.runtime.import_path import short_name

NO_PROBES = "No gradient probes were recorded in this run."


class RunRecord(Run):
    """A run with what a report adds to it.

    Args:
        folder: the run folder.

    Attributes:
        label: name of the run on the page.
        note: a sentence for the run's card.
        settings: the tables of the config; values outside of a table form the table "run".
        task: the run's task; None if this version of evenflow does not know it.
        probe_step, probe_norm: updates (K,) and gradient norms (K, T) of the probes in order, or None.
        probe_gap: why there are no probes.
        layer_norm (K, L, T), jacobian (K, T), singular (K, N, 4), band (K, 2), components (T,): other arrays of
            probes.npz, each None if it is missing or damaged.
        matrices: names of the N matrices.
        seeds: the runs that differ from this one in their seed alone, and this one; see `read_groups`.
    """

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            shipped = " (the trained model of this name ships without its run)" if str(folder) in pretrained() else ""
            raise ValueError(f"folders must be run folders, and there is no folder {str(folder)!r}{shipped}")
        super().__init__(folder)
        self.label = self.note = ""
        self.seeds: list[RunRecord] = [self]
        self.settings: dict[str, dict[str, Any]] = {k: v for k, v in self.config.items() if isinstance(v, dict)}
        loose = {name: value for name, value in self.config.items() if not isinstance(value, dict)}
        if loose:
            self.settings["run"] = loose
        self.task = _make_task(self.settings.get("task", {}))
        self.metrics  # noqa: B018  a damaged file raises its error now
        self.matrices: list[str] = []
        self.probe_step: np.ndarray | None = None
        self.probe_norm: np.ndarray | None = None
        self.layer_norm: np.ndarray | None = None
        self.jacobian: np.ndarray | None = None
        self.singular: np.ndarray | None = None
        self.band: np.ndarray | None = None
        self.components: np.ndarray | None = None
        self.probe_gap = self._read_probes()

    def _read_probes(self) -> str:
        """Fill in the probes; return why there are none that can be drawn. A page without heat map beats no page."""
        try:
            arrays = self.probes
            if arrays is None:
                return NO_PROBES
            step, norm = arrays["step"], np.asarray(arrays["gradient_norm"], dtype=np.float64)
        except (ValueError, KeyError, EOFError):
            return "The gradient probes of this run cannot be read: probes.npz is damaged."
        if norm.ndim != 2 or step.shape != norm.shape[:1]:
            return f"The gradient probes have shapes {step.shape} and {norm.shape}, expected (K,) and (K, T)."
        if not norm.size:
            return NO_PROBES
        order, length = np.unique(step, return_index=True)[1], norm.shape[1]
        self.probe_step, self.probe_norm = step[order].astype(float), norm[order]

        def array(name: str, *shape: int | None) -> Any:
            """An array of this shape in the order of the updates; None if it is missing or has another shape."""
            values = arrays.get(name)
            if values is None or values.ndim != len(shape) or values.dtype.kind != "f" or len(values) != len(step):
                return None
            fits = all(expected in (None, size) for expected, size in zip(shape, values.shape, strict=True))
            return values[order].astype(np.float64) if fits and values.size else None

        self.matrices = [str(name) for name in arrays.get("matrix", np.array([], dtype=str)).ravel()]
        self.layer_norm = array("layer_norm", None, None, length)
        self.jacobian = array("jacobian_norm", None, length)
        self.singular = array("singular_values", None, len(self.matrices), 4)
        self.band = array("band", None, 2)
        components = arrays.get("component_norm")
        if components is not None and components.shape == (length,) and components.dtype.kind == "f":
            self.components = components.astype(np.float64)
        return ""

    @property
    def seed(self) -> Any:
        """Its seed."""
        return self.settings.get("training", {}).get("seed", 0)

    @property
    def system(self) -> str:
        return short_name(str(self.settings.get("system", {}).get("name", self.folder.name)))

    @property
    def task_name(self) -> str:
        return short_name(str(self.settings.get("task", {}).get("name", "an unnamed task")))

    @property
    def metric_name(self) -> str:
        return "metric" if self.task is None else self.task.metric_name

    @cached_property
    def metric_is_loss(self) -> bool:
        """Whether the metric equals the loss, as the squared error of the adding task does."""
        loss, metric = self.curve("valid_loss", nan=True)[1], self.curve("valid_metric", nan=True)[1]
        return loss.shape == metric.shape and np.allclose(loss, metric, rtol=1e-4, equal_nan=True)

    @property
    def updates(self) -> int:
        """Updates that the run has made."""
        step = self.metrics["step"]
        return int(step[-1]) if len(step) else 0

    @property
    def planned(self) -> int | None:
        """Updates that the run should make."""
        steps = self.settings.get("training", {}).get("steps")
        return steps if isinstance(steps, int) else None

    @property
    def parameters(self) -> int | None:
        value = self.status.get("parameters")
        return value if isinstance(value, int) else None

    @property
    def data_note(self) -> str:
        """What a reader should know about the data; empty if nothing."""
        return str(self.status.get("data_note", "" if self.task is None else self.task.note))

    @property
    def test(self) -> tuple[float, float] | None:
        """Loss and metric of the best weights on the test part; None if there was no test."""
        loss, metric = self.status.get("test_loss"), self.status.get("test_metric")
        if not isinstance(loss, int | float) or not isinstance(metric, int | float):
            return None
        return float(loss), float(metric)

    @property
    def layers(self) -> list[str]:
        """A name for each layer and direction of `layer_norm`."""
        count = 0 if self.layer_norm is None else self.layer_norm.shape[1]
        if self.settings.get("system", {}).get("bidirectional") and count % 2 == 0:
            return [f"layer {i // 2 + 1}, {('forward', 'backward')[i % 2]}" for i in range(count)]
        return [f"layer {i + 1}" for i in range(count)]

    @cached_property
    def baseline(self) -> float | None:
        try:
            return None if self.task is None else self.task.baseline
        except ValueError:  # the data set is not on this machine
            return None

    def final(self, name: str) -> float | None:
        """The last value of a column, which may be nan; None if there is none."""
        values = self.curve(name, nan=True)[1]
        return float(values[-1]) if len(values) else None

    def best_value(self, name: str) -> float | None:
        """The best finite value of a column: the smallest, or the largest of a metric if higher is better."""
        higher = name == "valid_metric" and self.task is not None and self.task.higher_is_better
        value = self.best(name, higher)
        return None if np.isnan(value) else value

    @property
    def diverged_at(self) -> int | None:
        """The last update if its loss, gradient norm or validation loss is not finite."""
        for name in ("loss", "gradient_norm", "valid_loss"):
            step, value = self.curve(name, nan=True)
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


def read_runs(folders: Sequence[Path], notes: Sequence[str] | None = None) -> list[RunRecord]:
    """One record per folder, in order, with different labels."""
    if not folders:
        raise ValueError("folders must name at least one run folder, got none")
    if notes is not None and len(notes) != len(folders):
        raise ValueError(f"notes must hold one note per run folder, got {len(notes)} for {len(folders)} folders")
    records = [RunRecord(Path(folder)) for folder in folders]
    for record, label in zip(records, _labels(records), strict=True):
        record.label = label
    for record, note in zip(records, notes or [], strict=False):
        record.note = note
    return records


def read_groups(
    folders: Sequence[Path], notes: Sequence[str] | None = None, labels: Sequence[str] | None = None
) -> list[RunRecord]:
    """One record for each group of runs that differ in their seed alone: its first run, whose `seeds` holds them all.

    Args:
        folders: run folders.
        notes, labels: one for each folder; those of the first run of a group count. Default: labels are made of what
            differs.
    """
    if labels is not None and len(labels) != len(folders):
        raise ValueError(f"labels must hold one label per run folder, got {len(labels)} for {len(folders)} folders")
    groups: dict[str, RunRecord] = {}
    for i, record in enumerate(read_runs(folders, notes)):
        kind, seed = f"{labels and labels[i]}, {_without_seed(record)}", record.seed
        # A second run with the same seed is a run of its own, and so is one of a model that no config describes.
        first = groups.get(kind)
        if first is None or "system" not in record.settings or seed in [one.seed for one in first.seeds]:
            groups[kind if first is None else f"{kind}, {i}"] = record
        else:
            first.seeds.append(record)
    firsts = list(groups.values())
    if labels is None:
        for record, label in zip(firsts, _labels(firsts), strict=True):
            record.label = label
    else:
        for record in firsts:
            record.label = labels[[Path(folder) for folder in folders].index(record.folder)]
    return firsts


def _without_seed(record: RunRecord) -> str:
    """All settings but the seed and those that do not change what is computed."""
    free = ("training.seed", "training.device", "training.logger", "task.data")
    return repr(sorted((name, value) for name, value in flatten(record.settings).items() if name not in free))


def _make_task(options: dict[str, Any]) -> tasks.Task | None:
    options = dict(options)
    try:
        task = tasks.make(options.pop("name", ""), **options)
        task.metric_name  # noqa: B018  what a file of the user's own says, if it is still there
    except (TypeError, ValueError):
        # A task of another version of evenflow, or data that are gone: curves and tables need its name alone.
        return None
    return task


def _labels(records: Sequence[RunRecord]) -> list[str]:
    """System names; equal names are followed by settings that differ, by folder names, or preceded by numbers."""
    names = [r.system for r in records]
    flat = [flatten(r.settings) for r in records]
    for name in {name for name in names if names.count(name) > 1}:
        same = [i for i, n in enumerate(names) if n == name]
        keys = [k for k in flat[same[0]] if len({repr(flat[i].get(k)) for i in same}) > 1]
        for i in same:
            differing = ", ".join(f"{k.rpartition('.')[2].replace('_', ' ')} {flat[i].get(k)}" for k in keys[:3])
            names[i] = f"{name}, {differing}" if differing else name
    names = [f"{n} ({r.name})" if names.count(n) > 1 else n for n, r in zip(names, records, strict=True)]
    return names if len(set(names)) == len(names) else [f"{i}: {name}" for i, name in enumerate(names, 1)]
