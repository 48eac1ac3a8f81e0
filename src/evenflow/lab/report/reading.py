"""Run folders → records, with names that tell them apart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from evenflow.lab import tasks
from evenflow.lab.report.record import Record, flatten
from evenflow.lab.training.metrics import COLUMNS
from evenflow.lab.training.run_folder import Run

NO_PROBES = "No gradient probes were recorded in this run."


def read(folders: Sequence[Path], notes: Sequence[str] | None = None) -> list[Record]:
    """One record per folder, in order, labelled so that no two labels are the same."""
    if not folders:
        raise ValueError("folders must name at least one run folder, got none")
    if notes is not None and len(notes) != len(folders):
        raise ValueError(f"notes must hold one note per run folder, got {len(notes)} for {len(folders)} folders")
    records = [read_one(Path(folder)) for folder in folders]
    for record, label in zip(records, labels(records), strict=True):
        record.label = label
    for record, note in zip(records, notes or [], strict=False):
        record.note = note
    return records


def read_one(folder: Path) -> Record:
    """The record of one run folder, not labelled yet."""
    if not folder.is_dir():
        raise ValueError(f"folders must be run folders, and there is no folder {str(folder)!r}")
    run = Run(folder)
    tables = {name: table for name, table in run.config.items() if isinstance(table, dict)}
    loose = {name: value for name, value in run.config.items() if not isinstance(value, dict)}
    columns = run.metrics
    rows = {name: ~np.isnan(columns[name]) for name in COLUMNS}
    for index, line in enumerate(run.metric_lines()[: len(columns["step"])]):
        if "nan" in line:  # measured, and not an empty cell
            for name, cell in zip(COLUMNS, line.split(","), strict=True):
                rows[name][index] = bool(cell)
    record = Record(folder, tables | ({"run": loose} if loose else {}), columns, rows, status=run.status)
    record.task = _task(tables.get("task", {}))
    _probes(run, record)
    return record


def _probes(run: Run, record: Record) -> None:
    """Fill in the probes, in the order of updates; where there are none that can be drawn, say why."""
    record.probe_gap = NO_PROBES
    try:
        arrays = run.probes
        if arrays is None:
            return
        step, norm = arrays["step"], np.asarray(arrays["gradient_norm"], dtype=np.float64)
    except (ValueError, KeyError, EOFError):
        # A page without its heat map is better than no page.
        record.probe_gap = "The gradient probes of this run cannot be read: probes.npz is damaged."
        return
    if norm.ndim != 2 or step.shape != norm.shape[:1]:
        record.probe_gap = f"The gradient probes have shapes {step.shape} and {norm.shape}, expected (K,) and (K, T)."
    elif norm.size:
        order = np.unique(step, return_index=True)[1]
        record.probe_step, record.probe_norm, record.probe_gap = step[order].astype(float), norm[order], ""
        _more_probes(arrays, order, record)


def _more_probes(arrays: dict[str, np.ndarray], order: np.ndarray, record: Record) -> None:
    """The arrays that older runs do not have; one of another shape than it should have is left out."""
    assert record.probe_norm is not None
    T = record.probe_norm.shape[1]

    def found(name: str, *shape: int | None) -> np.ndarray | None:
        array = arrays.get(name)
        if array is None or array.ndim != len(shape) or array.dtype.kind != "f" or len(array) != len(arrays["step"]):
            return None
        fits = all(wanted in (None, size) for wanted, size in zip(shape, array.shape, strict=True))
        return array[order].astype(np.float64) if fits and array.size else None

    names = arrays.get("matrix", np.array([], dtype=str))
    record.matrices = [str(name) for name in names.ravel()]
    record.layer_norm = found("layer_norm", None, None, T)
    record.jacobian = found("jacobian_norm", None, T)
    record.singular = found("singular_values", None, len(record.matrices), 4)
    record.band = found("band", None, 2)
    components = arrays.get("component_norm")
    if components is not None and components.shape == (T,) and components.dtype.kind == "f":
        record.components = components.astype(np.float64)


def _task(options: dict[str, Any]) -> tasks.Task | None:
    options = dict(options)
    try:
        return tasks.make(options.pop("name", ""), **options)
    except (TypeError, ValueError):
        # A task of another version of the library: curves and tables need no more than its name.
        return None


def labels(records: Sequence[Record]) -> list[str]:
    """System names; where two are the same, with the settings that differ; where that is not enough, numbered."""
    names = [r.system for r in records]
    doubled = {name for name in names if names.count(name) > 1}
    flat = [flatten(r.settings) for r in records]
    for name in doubled:
        same = [i for i, n in enumerate(names) if n == name]
        keys = [k for k in flat[same[0]] if len({repr(flat[i].get(k)) for i in same}) > 1]
        for i in same:
            told = ", ".join(f"{k.rpartition('.')[2].replace('_', ' ')} {flat[i].get(k)}" for k in keys[:3])
            names[i] = f"{name}, {told}" if told else name
    names = [
        f"{n} ({r.folder.resolve().name})" if names.count(n) > 1 else n for n, r in zip(names, records, strict=True)
    ]
    if len(set(names)) < len(names):
        names = [f"{i + 1}: {name}" for i, name in enumerate(names)]
    return names
