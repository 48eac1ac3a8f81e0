"""Write a data folder with small random files of every format, to test the tasks on real data without the data.

Shapes and layouts are those of the real sets. The contents come from a fixed seed and have a pattern to learn.
"""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pandas

from evenflow.lab.data.har_files import SIGNALS
from evenflow.lab.tasks import TASKS
from evenflow.lab.tasks.data_set import FileData

WORDS = ["the", "a", "dog", "cat", "sees", "hears", "runs", "sleeps", "<unk>", "and"]


def write(folder: Path) -> Path:
    """Write all sets into `folder`."""
    draw = np.random.RandomState(0)
    for name, count in (("train", 120), ("t10k", 40)):
        _mnist(folder / "mnist", name, draw, count)
        _mnist(folder / "fashion-mnist", name, draw, count)
    _cifar(folder / "cifar-10-batches-bin", draw)
    _treebank(folder / "ptb", draw)
    _har(folder / "har", draw)
    _ucr(folder / "ucr", draw)
    _music(folder / "music", draw)
    _bibtex(folder / "multilabel", draw)
    _own(folder, draw)
    return folder


def small_options(name: str, folder: Path) -> dict[str, str]:
    """The options with which the task called `name` reads from the folder."""
    if name in ("csv", "parquet", "npz"):
        return {"file": str(folder / f"own.{name}")}
    return {"data": str(folder)} if issubclass(TASKS[name], FileData) else {}


def _mnist(folder: Path, name: str, draw: np.random.RandomState, count: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    labels = draw.randint(0, 10, count).astype(np.uint8)
    images = draw.randint(0, 60, (count, 28, 28)).astype(np.uint8)
    images[np.arange(count), labels] = 255  # the label is a bright row
    for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
        heading = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
        (folder / f"{name}-{kind}-ubyte.gz").write_bytes(gzip.compress(heading + array.tobytes()))


def _cifar(folder: Path, draw: np.random.RandomState) -> None:
    folder.mkdir(parents=True)
    for name, count in (*((f"data_batch_{i}", 24) for i in range(1, 6)), ("test_batch", 20)):
        labels = draw.randint(0, 10, count).astype(np.uint8)
        images = draw.randint(0, 60, (count, 3, 32, 32)).astype(np.uint8)
        images[np.arange(count), :, labels] = 255  # the label is a bright row
        (folder / f"{name}.bin").write_bytes(np.concatenate([labels[:, None], images.reshape(count, -1)], 1).tobytes())


def _treebank(folder: Path, draw: np.random.RandomState) -> None:
    folder.mkdir(parents=True)
    for part, lines in (("train", 400), ("valid", 60), ("test", 60)):
        text = "".join(f" {' '.join(draw.choice(WORDS, draw.randint(2, 9)))} \n" for _ in range(lines))
        (folder / f"ptb.{part}.txt").write_text(text)


def _har(folder: Path, draw: np.random.RandomState) -> None:
    counts = {"train": 60, "test": 24}
    for part, count in counts.items():
        labels = np.arange(count) % 6 + 1
        signals = draw.randn(count, 128, 9).astype(np.float32) + labels[:, None, None]
        inertial = folder / "UCI HAR Dataset" / part / "Inertial Signals"
        inertial.mkdir(parents=True)
        for column, signal in enumerate(SIGNALS):
            np.savetxt(inertial / f"{signal}_{part}.txt", signals[..., column], fmt="%.7e")
        np.savetxt(inertial.parent / f"y_{part}.txt", labels, fmt="%d")
        if part == "train":
            train = signals, labels
    np.savez(folder / "uci_har_subset.npz", x_train=train[0], y_train=train[1], x_test=signals, y_test=labels)
    steps = 4000
    np.savez(
        folder / "hapt_raw.npz",
        acc=draw.randint(-700, 700, (3, steps)).astype(np.int16),
        gyro=draw.randint(-700, 700, (3, steps)).astype(np.int16),
        acc_scale=1 / 720,
        gyro_scale=0.001,
        length=np.array([steps]),
        exp=np.array([1]),
    )
    index = {}
    for part, count in counts.items():
        index |= {f"exp_{part}": np.ones(count, np.int64), f"start_{part}": 64 * np.arange(count)}
        index |= {f"y_{part}": np.arange(count) % 6 + 1, f"subject_{part}": np.ones(count, np.int64)}
    np.savez(folder / "uci_har_index.npz", **index)


def _ucr(folder: Path, draw: np.random.RandomState) -> None:
    folder.mkdir(parents=True)
    for name, length, tested in (("ECG5000", 140, True), ("InsectWingbeatSound", 256, False)):
        arrays = {}
        for part, count in (("train", 30), ("test", 20)):
            labels = np.arange(count) % 5 + 1
            arrays[f"x_{part}"] = (draw.randn(count, length) + labels[:, None]).astype(np.float32)
            arrays[f"y_{part}"] = labels.astype(np.int16)
        np.savez(folder / f"{name}.npz", **{key: a for key, a in arrays.items() if tested or "train" in key})


def _music(folder: Path, draw: np.random.RandomState) -> None:
    from scipy.io import savemat

    folder.mkdir(parents=True)
    parts = {}
    for part, count in (("train", 12), ("valid", 5), ("test", 5)):
        cell = np.empty((1, count), dtype=object)
        for piece in range(count):
            cell[0, piece] = (draw.rand(draw.randint(2, 30), 88) < 0.05).astype(np.float64)
        parts[f"{part}data"] = cell
    for name in ("MuseData", "JSB_Chorales", "Nottingham", "Piano_midi"):
        savemat(folder / f"{name}.mat", parts)


def _bibtex(folder: Path, draw: np.random.RandomState) -> None:
    folder.mkdir(parents=True)
    arrays: dict[str, np.ndarray] = {"n_features": np.array(50), "n_labels": np.array(9)}
    for part, count in (("train", 40), ("test", 20)):
        arrays[f"x_{part}"] = np.packbits(draw.rand(count, 50) < 0.2, axis=1)
        arrays[f"y_{part}"] = np.packbits(draw.rand(count, 9) < 0.3, axis=1)
    np.savez(folder / "bibtex.npz", **arrays)


def _own(folder: Path, draw: np.random.RandomState) -> None:
    """A user's own CSV, Parquet and npz files."""
    rows = ["sequence,a,b,target"]
    for number in range(20):
        kind = number % 2
        for _ in range(5 + number % 3):
            a, b = draw.randn(2) + kind
            rows.append(f"s{number},{a:.4f},{b:.4f},{'high' if kind else 'low'}")
    (folder / "own.csv").write_text("\n".join(rows) + "\n")
    pandas.read_csv(folder / "own.csv").to_parquet(folder / "own.parquet")
    x = draw.randn(24, 6, 3)
    np.savez(folder / "own.npz", x=x[:20], y=x[:20].cumsum(1)[..., :2], x_test=x[20:], y_test=x[20:].cumsum(1)[..., :2])
