"""Prediction of many windows beside the bare forward passes of the same model, and the memory of a long file.

    python benchmarks/predict.py [--out benchmarks/results] [--windows 100000] [--threads 1]

sgornn, 128 units, windows of 128 steps of 9 numbers, classification. Prediction reads an array in the user's units,
scales it, runs the model and answers with labels. The bare passes are those of the model alone, on inputs that are
scaled and time first already, in batches of several sizes; the fastest size counts. Every 2,000 windows are predicted
in all ways, which take turns in being the first; medians over these parts in seconds, of the clock and of the
processor. The memory is the largest resident set, in MB, of `evenflow predict` with CSV files of two lengths. To
predict-cpu.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from evenflow import SequenceModel, create, save
from evenflow.lab.bench import hardware
from evenflow.models import DataColumn, DataSchema, Predictor

STEPS, INPUTS, UNITS, LABELS = 128, 9, 128, 6
BATCHES = (64, 128, 256, 512)
PART = 2000
ROWS = (100_000, 400_000)


def predictor() -> Predictor:
    columns = tuple(DataColumn(f"x{i}", mean=10.0 * i, deviation=1.0 + i) for i in range(INPUTS))
    activity = DataColumn("activity", "category", categories=tuple(f"activity {i}" for i in range(LABELS)))
    torch.manual_seed(0)
    model = SequenceModel(create("sgornn", INPUTS, UNITS), LABELS)
    return Predictor(model, DataSchema("classification", "last", columns, (activity,)))


def windows(count: int) -> np.ndarray:
    draw = np.random.default_rng(0)
    scale, shift = 1.0 + np.arange(INPUTS), 10.0 * np.arange(INPUTS)
    return (draw.standard_normal((count, STEPS, INPUTS), np.float32) * scale + shift).astype(np.float32)


Seconds = tuple[float, float]  # of the clock, of the processor


def timed(work: Callable[[], object]) -> Seconds:
    clock, processor = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - clock, time.process_time() - processor


@torch.no_grad()
def bare(model: SequenceModel, scaled: torch.Tensor, batch: int) -> Seconds:
    """The forward passes; each batch is made time first before."""
    batches = [part.transpose(0, 1).contiguous() for part in scaled.split(batch)]
    return timed(lambda: [model(part) for part in batches])


def peak(rows: int, folder: Path) -> float:
    """The largest resident set in MB of `evenflow predict` with a CSV file of so many rows."""
    draw, file = np.random.default_rng(0), folder / "rows.csv"
    with file.open("w") as out:
        out.write(",".join(["sequence", *(f"x{i}" for i in range(INPUTS))]) + "\n")
        for first in range(0, rows, STEPS):
            for row in draw.standard_normal((STEPS, INPUTS), np.float32).tolist():
                out.write(f"{first}," + ",".join(f"{value:.4f}" for value in row) + "\n")
    save(predictor(), folder / "model")
    command = ["predict", str(folder / "model"), str(file), "--out", str(folder / "out.csv"), "-q"]
    code = f"""
from evenflow.lab import cli
try:
    cli.main({command!r})
finally:
    print(next(line for line in open('/proc/self/status') if line.startswith('VmHWM')).split()[1])"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return int(run.stdout.splitlines()[-1]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--windows", type=int, default=100_000)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_flush_denormal(True)
    torch.set_num_threads(options.threads)
    made = predictor()
    made.predict(windows(1000))  # compiles
    taken: dict[str, list[Seconds]] = {"predict": []} | {f"bare, batches of {batch}": [] for batch in BATCHES}
    ways: list[int | None] = [None, *BATCHES]  # None is predict
    for _ in range(0, options.windows, PART):
        x = windows(PART)
        scaled = made.schema.scale_inputs(torch.from_numpy(x)).float()
        for batch in ways:
            if batch is None:
                taken["predict"].append(timed(lambda x=x: made.predict(x)))
            else:
                taken[f"bare, batches of {batch}"].append(bare(made.model, scaled, batch))
        ways.append(ways.pop(0))
    found: dict[str, object] = {
        "hardware": hardware(torch.device("cpu")),
        "threads": options.threads,
        "windows": options.windows,
        "windows in a part": PART,
        "T, I, H": [STEPS, INPUTS, UNITS],
    }
    for place, name in enumerate(("seconds", "processor seconds")):
        medians = {way: statistics.median(times[place] for times in parts) for way, parts in taken.items()}
        fastest = min(value for way, value in medians.items() if way != "predict")
        found[name] = medians
        found[f"ratio of {name}"] = medians["predict"] / fastest
    with tempfile.TemporaryDirectory() as folder:
        found["MB for a file of rows"] = {str(rows): round(peak(rows, Path(folder))) for rows in ROWS}
    print(json.dumps(found, indent=1))
    (options.out / "predict-cpu.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
