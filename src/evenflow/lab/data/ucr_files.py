"""Read sets of the UCR archive of labelled time series, in the archive's own formats or as npz."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from evenflow.checks import unknown

from .guarded import FilePath, cannot_read, read_arrays, read_text
from .number_table import number_rows, number_table

ENDINGS = ("", ".txt", ".tsv", ".ts")
LARGEST_LABEL = 1_000_000

LabelledSeries = tuple[np.ndarray, list[int] | list[str]]  # series (N, T) and labels (N)


class UcrSeries(NamedTuple):
    """One set of univariate series of equal length.

    Shapes:
        x_train, x_test: ``(N, T)`` float32. y_train, y_test: ``(N,)`` int64, positions in `labels`.

    `labels` are the archive's own, sorted. The test arrays are None if the set has no test part.
    """

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray | None
    y_test: np.ndarray | None
    labels: tuple[int, ...] | tuple[str, ...]


def names(folder: FilePath) -> list[str]:
    """The names of the sets in a data folder, sorted."""
    root = Path(folder) / "ucr"
    available = {path.stem for path in root.glob("*.npz")}
    for ending in ENDINGS:
        for path in (*root.glob(f"*_TRAIN{ending}"), *root.glob(f"*/*_TRAIN{ending}")):
            name = path.name.removesuffix(f"_TRAIN{ending}")
            if path.parent in (root, root / name):
                available.add(name)
    return sorted(available)


def read_ucr(folder: FilePath, name: str) -> UcrSeries:
    """One set of the UCR archive from a data folder.

    The reader looks for ``ucr/NAME.npz`` with arrays x_train, y_train, x_test, y_test, then, in ``ucr/NAME`` and in
    ``ucr``, for the archive's files ``NAME_TRAIN`` and ``NAME_TEST`` without ending, with ``.txt`` or ``.tsv`` (one
    series per line, its label first, separated by commas, tabs or blanks) or with ``.ts`` (lines that start with @,
    then one series per line, its label last, after a colon). Missing values, several dimensions and series of different
    lengths are errors.

    Args:
        folder: the data folder.
        name: the name of the set as the archive spells it; see `names`.

    Raises:
        ValueError: there is no such set, or a file is damaged; the message names its path and line.

    Reference: Dau et al. 2018.
    """
    root = Path(folder) / "ucr"
    if name not in (available := names(folder)):
        message = unknown("UCR set", name, available) if available else f"there are no UCR sets in {str(root)!r}"
        raise ValueError(message)
    if (path := root / f"{name}.npz").exists():
        train, test = _from_npz(path)
    else:
        places = [(place, end) for place in (root / name, root) for end in ENDINGS]
        place, ending = next((p, end) for p, end in places if (p / f"{name}_TRAIN{end}").exists())
        path = place / f"{name}_TRAIN{ending}"
        read = _from_ts if ending == ".ts" else _from_text
        train, test = read(path), None
        if (test_path := place / f"{name}_TEST{ending}").exists():
            path, test = test_path, read(test_path)
    if test is not None and test[0].shape[1] != train[0].shape[1]:
        raise cannot_read(path, f"its series have {test[0].shape[1]} steps, those to train on {train[0].shape[1]}")
    return _series(train, test)


def _series(train: LabelledSeries, test: LabelledSeries | None) -> UcrSeries:
    """Turn labels into positions. They are sorted as whole numbers if all of them are, else as text."""
    values: set = {*train[1], *(test[1] if test is not None else [])}
    try:
        spelled: dict[Any, Any] = {value: int(value) for value in values}
    except ValueError:
        spelled = {value: str(value) for value in values}
    labels = tuple(sorted(set(spelled.values())))
    order = {label: position for position, label in enumerate(labels)}

    def positions(part: LabelledSeries) -> np.ndarray:
        return np.array([order[spelled[label]] for label in part[1]], np.int64)

    x_test, y_test = (None, None) if test is None else (test[0], positions(test))
    return UcrSeries(train[0], positions(train), x_test, y_test, labels)


def _from_npz(path: Path) -> tuple[LabelledSeries, LabelledSeries | None]:
    arrays = read_arrays(path, ["x_train", "y_train"], optional=["x_test", "y_test"])

    def part(name: str) -> LabelledSeries:
        x, y = arrays[f"x_{name}"], arrays[f"y_{name}"]
        if x.ndim != 2 or not x.size or x.dtype.kind != "f" or y.shape != x.shape[:1] or y.dtype.kind not in "iu":
            raise cannot_read(path, f"'x_{name}' and 'y_{name}' are not (N, T) real and (N,) whole numbers")
        with np.errstate(over="ignore"):
            x = x.astype(np.float32, copy=False)
        if not (fine := np.isfinite(x).all(1)).all():
            raise cannot_read(path, f"row {int(fine.argmin())} of 'x_{name}' holds something else than finite numbers")
        return x, y.tolist()

    if "x_test" not in arrays and "y_test" not in arrays:
        return part("train"), None
    if missing := [name for name in ("x_test", "y_test") if name not in arrays]:
        raise cannot_read(path, f"it has no array {missing[0]!r}")
    return part("train"), part("test")


def _from_text(path: Path) -> LabelledSeries:
    table, lines = number_table(path, read_text(path))
    if table.shape[1] < 2:
        raise cannot_read(path, f"line {lines[0]} has a label and no series")
    labels = table[:, 0]
    wrong = (labels % 1 != 0) | (abs(labels) > LARGEST_LABEL)
    if wrong.any():
        row = int(wrong.argmax())
        raise cannot_read(path, f"line {lines[row]} has label {labels[row]:g}, and labels are whole numbers")
    return table[:, 1:].astype(np.float32), labels.astype(np.int64).tolist()


def _from_ts(path: Path) -> LabelledSeries:
    rows: list[tuple[int, str]] = []
    labels: list[str] = []
    in_data = False
    for line, row in enumerate(read_text(path).split("\n"), 1):
        text = row.strip()
        if not text or text.startswith("#"):
            continue
        if not in_data:
            if not text.startswith("@"):
                raise cannot_read(path, f"line {line} comes before @data and does not start with @")
            in_data = text.lower() == "@data"
            if text.lower().split()[:2] in (["@classlabel", "false"], ["@targetlabel", "true"]):
                raise cannot_read(path, f"line {line} says that its series have no classes")
            continue
        series, *rest = text.split(":")
        if len(rest) != 1:
            raise cannot_read(path, f"line {line} has {len(rest)} dimensions and a label, expected 1")
        if not (label := rest[0].strip()):
            raise cannot_read(path, f"line {line} has no label")
        rows.append((line, series))
        labels.append(label)
    if not in_data:
        raise cannot_read(path, "it has no line @data")
    return number_rows(path, rows, ",").astype(np.float32), labels
