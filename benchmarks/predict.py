"""Prediction of many windows beside the bare forward passes of the same model, and the memory of a long file.

    python benchmarks/predict.py [--device cuda] [--out benchmarks/results] [--windows 100000] [--threads 1]

sgornn, 128 units, windows of 128 steps of 9 numbers, classification. Prediction reads an array in the user's units,
scales it, runs the model and answers with labels. The bare passes are those of the model alone, on inputs that are
scaled, time first and on the device already, in batches of several sizes; the fastest size counts. On a CPU every 2,000
windows are predicted in all ways, which take turns in being the first; medians over these parts in seconds, of the
clock and of the processor. A GPU takes all windows at once, in seven rounds, and also makes bare passes whose batches
are copied from the memory of the CPU; seconds are those of the clock. The memory, measured on a CPU, is the largest
resident set, in MB, of `evenflow predict` with CSV files of two lengths. To predict-DEVICE.json.
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
from evenflow.lab.bench import find_device, hardware
from evenflow.models import DataColumn, DataSchema, Predictor

STEPS, INPUTS, UNITS, LABELS = 128, 9, 128, 6
BATCHES = {"cpu": (64, 128, 256, 512), "cuda": (256, 1024, 4096, 16384)}
PART = 2000  # on a CPU
ROUNDS = 7  # on a GPU
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
def bare(model: SequenceModel, scaled: torch.Tensor, batch: int, device: torch.device, copied: bool) -> Seconds:
    """The forward passes; each batch is made time first before, and copied to the device before or in between."""
    batches = [part.transpose(0, 1).contiguous() for part in scaled.split(batch)]
    batches = batches if copied else [part.to(device) for part in batches]

    def work() -> None:
        for part in batches:
            model(part.to(device))
        wait(device)

    wait(device)
    return timed(work)


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


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
    parser.add_argument("--device", default="cpu", choices=tuple(BATCHES))
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--windows", type=int, default=100_000)
    parser.add_argument("--threads", type=int, default=1, help="of the CPU; with a GPU all of them")
    options = parser.parse_args()
    device = find_device(options.device)
    cpu = device.type == "cpu"
    torch.set_flush_denormal(True)
    if cpu:
        torch.set_num_threads(options.threads)
    made = predictor().to(device)
    part = PART if cpu else options.windows
    kinds = {f"bare, batches of {batch}": (batch, False) for batch in BATCHES[device.type]}
    if not cpu:
        kinds |= {f"bare, copied, batches of {batch}": (batch, True) for batch in BATCHES[device.type]}
    taken: dict[str, list[Seconds]] = {way: [] for way in ("predict", *kinds)}
    ways = list(taken)
    warm_up = 1 if cpu else 2  # rounds: kernels are compiled, memory is allocated
    for turn in range(warm_up + (options.windows // PART if cpu else ROUNDS)):
        x = windows(part)
        scaled = made.schema.scale_inputs(torch.from_numpy(x)).float()
        for way in ways:
            if way == "predict":
                seconds = timed(lambda x=x: made.predict(x))
            else:
                seconds = bare(made.model, scaled, kinds[way][0], device, kinds[way][1])
            if turn >= warm_up:
                taken[way].append(seconds)
        ways.append(ways.pop(0))
    found: dict[str, object] = {
        "hardware": hardware(device),
        "windows": options.windows,
        "windows in a part": part,
        "T, I, H": [STEPS, INPUTS, UNITS],
    }
    for place, name in enumerate(("seconds", "processor seconds") if cpu else ("seconds",)):
        medians = {way: statistics.median(times[place] for times in parts) for way, parts in taken.items()}
        found[name] = medians
        for bare_name in ("bare", "bare, copied") if not cpu else ("bare",):
            fastest = min(value for way, value in medians.items() if way.startswith(f"{bare_name}, batches"))
            found[f"ratio of {name}, predict / {bare_name}"] = medians["predict"] / fastest
    if cpu:
        with tempfile.TemporaryDirectory() as folder:
            found["MB for a file of rows"] = {str(rows): round(peak(rows, Path(folder))) for rows in ROWS}
    print(json.dumps(found, indent=1))
    (options.out / f"predict-{device.type}.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
