"""How long a batch takes beside the training step that uses it.

    python benchmarks/data_time.py [--device cuda] [--data FOLDER] [--out benchmarks/results]

Pixel MNIST (784 steps, batch 50) and adding (1,000 steps, batch 50). A batch is drawn as training draws it, and a step
is one update of torch.nn.RNN (relu, 128 units; cuDNN on a GPU) with Adam on a batch that stays the same. Medians over
rounds of many; on a GPU each round ends with one wait for the device.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from evenflow.lab.tasks import Position, Task, make
from evenflow.lab.training.batch_source import BatchSource
from evenflow.models.sequence_model import SequenceModel

BATCH, HIDDEN = 50, 128


def median(run: Callable[[int], object], device: torch.device, rounds: int, each: int) -> float:
    """Milliseconds of one call, the median of rounds of `each` calls."""
    times = []
    for turn in range(rounds + 1):
        wait(device)
        begin = time.perf_counter()
        for index in range(each):
            run(turn * each + index)
        wait(device)
        times.append((time.perf_counter() - begin) / each * 1e3)
    return statistics.median(times[1:])  # the first warms up


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure(task: Task, device: torch.device, rounds: int, each: int) -> dict[str, float]:
    drawing = BatchSource(task, BATCH, torch.Generator(device), lambda step: step, device.type == "cuda")

    def draw(step: int) -> object:
        return drawing.batch(Position(step, 10**6))

    begin = time.perf_counter()
    batch = drawing.batch(Position(0, 10**6))
    wait(device)
    ready = time.perf_counter() - begin
    layer = nn.RNN(task.input_size, HIDDEN, nonlinearity="relu")
    with torch.no_grad():
        layer.weight_hh_l0.copy_(torch.eye(HIDDEN))
    model = SequenceModel(layer, task.output_size).to(device)
    optimizer = torch.optim.Adam(model.parameters(), 1e-6)

    def update(_: int) -> None:
        optimizer.zero_grad()
        task.loss(model(batch.inputs)[0], batch.targets).backward()
        optimizer.step()

    drawn, stepped = median(draw, device, rounds, 10 * each), median(update, device, rounds, each)
    return {"ready_s": ready, "batch_ms": drawn, "step_ms": stepped, "share": drawn / stepped}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--data", default=None, help="the data folder")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--each", type=int, default=20, help="updates in a round; ten times as many batches")
    options = parser.parse_args()
    device = torch.device(options.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    results: dict[str, object] = {"hardware": name, "threads": torch.get_num_threads(), "torch": torch.__version__}
    print(f"{name}, {torch.get_num_threads()} threads")
    torch.set_flush_denormal(True)
    folder = {} if options.data is None else {"data": options.data}
    for task in (make("mnist", **folder), make("adding", length=1000)):
        found = measure(task, device, options.rounds, options.each)
        results[task.name] = found
        print(
            f"{task.name}: ready in {found['ready_s']:.2f} s, batch {found['batch_ms']:.3f} ms, "
            f"step {found['step_ms']:.2f} ms, share {found['share']:.1%}"
        )
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / f"data-{device.type}.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
