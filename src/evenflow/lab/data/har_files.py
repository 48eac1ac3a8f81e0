"""Read UCI HAR, windows of smartphone motion labelled with an activity, from any of its three forms."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from evenflow.checks import one_of

from .catalog import SIGNALS
from .guarded import FilePath, cannot_read, read_arrays, read_text
from .number_table import number_table

VERSIONS = ("original", "rebuilt", "subset")
ACTIVITIES = ("walking", "walking upstairs", "walking downstairs", "sitting", "standing", "laying")
STEPS = 128
HERTZ = 50
ORIGINAL = "UCI HAR Dataset"

LabelledWindows = tuple[np.ndarray, np.ndarray]  # windows (N, 128, 9) and labels (N)


class Windows(NamedTuple):
    """Windows of 128 steps at 50 Hz and nine signals (`SIGNALS`: accelerations in g, turning rates in rad/s).

    Shapes:
        x_train, x_test: ``(N, 128, 9)`` float32. y_train, y_test: ``(N,)`` int64, positions in `ACTIVITIES`.

    `note` says how the windows differ from the published ones; it is empty if they do not.
    """

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    note: str


def read_har(folder: FilePath, version: str) -> Windows:
    """Read UCI HAR from a data folder.

    Args:
        folder: the data folder.
        version: "original", the 7,352 + 2,947 windows of the published text files in ``UCI HAR Dataset`` (in the data
            folder or its ``har``); "rebuilt", the same windows cut from the raw recordings (``har/hapt_raw.npz``) at
            the places in ``har/uci_har_index.npz``; "subset", 2,400 + 950 of the published windows with four
            significant digits (``har/uci_har_subset.npz``).

    Raises:
        ValueError: a file is missing or damaged; the message names its path.

    Reference: Anguita et al. 2013; the raw recordings: Reyes-Ortiz et al. 2015.
    """
    one_of("version", version, VERSIONS)
    return {"original": _original, "rebuilt": _rebuilt, "subset": _subset}[version](Path(folder))


def _original(folder: Path) -> Windows:
    places = [place for place in (folder / ORIGINAL, folder / "har" / ORIGINAL, folder) if (place / "train").is_dir()]
    root = places[0] if places else folder / "har" / ORIGINAL

    def part(name: str) -> LabelledWindows:
        path = root / name / f"y_{name}.txt"
        table, _ = number_table(path, read_text(path))
        if table.shape[1] != 1:
            raise cannot_read(path, f"its rows have {table.shape[1]} values, expected 1")
        y = _labels(path, table[:, 0])
        x = np.empty((len(y), STEPS, len(SIGNALS)), np.float32)
        for column, signal in enumerate(SIGNALS):
            path = root / name / "Inertial Signals" / f"{signal}_{name}.txt"
            table, _ = number_table(path, read_text(path))
            if table.shape != x.shape[:2]:
                shape = f"{table.shape[0]} rows of {table.shape[1]} values"
                raise cannot_read(path, f"it has {shape}, expected {len(y)} rows of {STEPS}")
            x[:, :, column] = table
        return x, y

    return Windows(*part("train"), *part("test"), "")


def _subset(folder: Path) -> Windows:
    path = folder / "har" / "uci_har_subset.npz"
    arrays = read_arrays(path, [f"{name}_{part}" for part in ("train", "test") for name in "xy"])

    def part(name: str) -> LabelledWindows:
        x, y = arrays[f"x_{name}"], _labels(path, arrays[f"y_{name}"])
        if x.shape != (len(y), STEPS, len(SIGNALS)) or x.dtype.kind != "f" or not np.isfinite(x).all():
            raise cannot_read(path, f"'x_{name}' is not {len(y)} windows of {STEPS} by {len(SIGNALS)} finite numbers")
        return x.astype(np.float32, copy=False), y

    return Windows(*part("train"), *part("test"), "subset of the published windows, 4 significant digits")


def _rebuilt(folder: Path) -> Windows:
    index = folder / "har" / "uci_har_index.npz"
    arrays = read_arrays(index, [f"{name}_{part}" for part in ("train", "test") for name in ("exp", "start", "y")])
    signals, offsets = _recordings(folder / "har" / "hapt_raw.npz")

    def part(name: str) -> LabelledWindows:
        y, exp, start = _labels(index, arrays[f"y_{name}"]), arrays[f"exp_{name}"], arrays[f"start_{name}"]
        if exp.shape != y.shape or start.shape != y.shape or exp.dtype.kind not in "iu" or start.dtype.kind not in "iu":
            raise cannot_read(index, f"'exp_{name}' and 'start_{name}' must hold {len(y)} whole numbers each")
        first = np.empty(len(y), np.int64)
        for row, (recording, step) in enumerate(zip(exp.tolist(), start.tolist(), strict=True)):
            begin, end = offsets.get(recording, (0, 0))
            if not 0 <= step <= end - begin - STEPS:
                raise cannot_read(index, f"row {row} of 'start_{name}' lies outside recording {recording}")
            first[row] = begin + step
        return signals[first[:, None] + np.arange(STEPS)], y

    return Windows(*part("train"), *part("test"), "rebuilt from raw recordings")


def _recordings(path: Path) -> tuple[np.ndarray, dict[int, tuple[int, int]]]:
    """The nine signals ``(T, 9)`` of all recordings end to end, and where each recording begins and ends.

    Note: the published signals were filtered by a median of 3 steps and a causal Butterworth low pass of order 10 at 20
    Hz. A causal low pass of order 3 at 0.3 Hz gives the gravity in an acceleration, one of order 2 at 0.1 Hz the drift
    of a turning rate; the body's signal is the remainder. `test_har_files` shows that this reproduces the published
    windows to their last printed digit.
    """
    from scipy.signal import butter, medfilt2d, sosfilt

    arrays = read_arrays(path, ["acc", "gyro", "acc_scale", "gyro_scale", "length", "exp"])
    length, exp = arrays["length"], arrays["exp"]
    ends = np.cumsum(length) if length.ndim == 1 and length.dtype.kind in "iu" else np.zeros(0, np.int64)
    whole = exp.shape == length.shape and exp.dtype.kind in "iu" and ends.size > 0 and length.min() > 0
    for name in ("acc", "gyro"):
        scale = arrays[f"{name}_scale"]
        whole &= arrays[name].dtype.kind == "i" and arrays[name].shape == (3, *ends[-1:])
        whole &= scale.shape == () and scale.dtype.kind == "f" and bool(np.isfinite(scale))
    if not whole:
        raise cannot_read(path, "its arrays are not recordings of three accelerations and three turning rates")

    def slow(order: int, hertz: float, x: np.ndarray) -> np.ndarray:
        return sosfilt(butter(order, hertz, fs=HERTZ, output="sos"), x, axis=0)

    signals = np.empty((ends[-1], len(SIGNALS)), np.float32)
    offsets = {}
    for recording, begin, end in zip(exp.tolist(), (ends - length).tolist(), ends.tolist(), strict=True):
        acc, gyro = (
            slow(10, 20, medfilt2d(arrays[name][:, begin:end].T * arrays[f"{name}_scale"], (3, 1)))
            for name in ("acc", "gyro")
        )
        signals[begin:end] = np.concatenate([acc - slow(3, 0.3, acc), gyro - slow(2, 0.1, gyro), acc], 1)
        offsets[recording] = (begin, end)
    return signals, offsets


def _labels(path: Path, labels: np.ndarray) -> np.ndarray:
    """Turn the published labels 1 to 6 into 0 to 5."""
    if labels.ndim != 1 or not len(labels) or not np.isin(labels, range(1, len(ACTIVITIES) + 1)).all():
        raise cannot_read(path, f"labels must be whole numbers from 1 to {len(ACTIVITIES)}")
    return labels.astype(np.int64) - 1
