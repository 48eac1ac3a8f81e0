"""How time and memory of a training update grow with T, H, B, the number of models and the number of layers.

    python benchmarks/scaling.py [--device cpu] [--axis H] [--seconds 5] [--out benchmarks/results]
    python benchmarks/scaling.py --figures [--device cpu]

One axis grows, the others stay as in BASE. An update is forward pass, loss on the last output, backward pass and a step
of Adam, in float32 with TF32 off; evenflow's layers beside torch's own, which on a GPU is cuDNN. Several models are one
`Population`, and torch's are trained one after the other.

Every line is a process of its own with one thread. On a CPU a time is processor time, the least of some repetitions,
because other work on the machine lengthens the time on the clock; on a GPU it is the clock's, up to one wait for the
device, after the warm-up in which layers are captured as CUDA graphs. Memory is the peak during updates beyond what the
process held before it made the model. A line ends before the case that would take more than --seconds an update or
--gigabytes, by the last case and the sizes; the record says so. To scaling-DEVICE.json; --figures draws
docs/scale-AXIS-DEVICE.svg from it.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

RESULTS, DOCS = Path(__file__).parent / "results", Path(__file__).parents[1] / "docs"
INPUT, REPEATS, WARM = 2, 3, {"cpu": 1, "cuda": 12}
LEAST, MOST = 0.1, 5.0  # seconds of repetitions: at least, and with fewer than REPEATS of them at most
LAYERS = ("RNN, exponential", "torch.nn.RNN", "LSTM", "torch.nn.LSTM")
NAMES = {"T": "steps T", "H": "units H", "B": "sequences B", "M": "models M", "L": "layers L"}
# Other sizes than those of an axis; small enough for the largest case of the axis.
BASE = {
    "T": {"H": 32, "B": 1, "M": 1, "L": 1},
    "H": {"T": 50, "B": 16, "M": 1, "L": 1},
    "B": {"T": 50, "H": 64, "M": 1, "L": 1},
    "M": {"T": 50, "H": 32, "B": 8, "L": 1},
    "L": {"T": 100, "H": 64, "B": 16, "M": 1},
}
VALUES = {
    "T": (100, 1000, 10_000, 100_000, 1_000_000),
    "H": (16, 32, 64, 128, 256, 512, 1024, 2048, 4096),
    "B": (1, 4, 16, 64, 256, 1024, 4096),
    "M": (1, 2, 4, 8, 16, 32, 64, 128, 256),
    "L": (1, 2, 4, 8),
}
# What the time is expected to grow with, at most: products with an H x H matrix take H^2, its exponential H^3.
POWER = {"T": 1, "H": 2, "B": 1, "M": 1, "L": 1}


def made(layer: str, size: dict[str, int], device: str) -> tuple[list[Any], Callable[[], object]]:
    """The models of a case, and an update of all of them."""
    import torch
    from torch import nn

    from evenflow import LSTM, RNN, SequenceModel
    from evenflow.models.population import Population

    torch.manual_seed(0)

    def model() -> SequenceModel:
        arguments = (INPUT, size["H"], size["L"])
        made = {
            "RNN, exponential": lambda: RNN(*arguments, map="exponential", activation="relu"),
            "torch.nn.RNN": lambda: nn.RNN(*arguments, nonlinearity="relu"),
            "LSTM": lambda: LSTM(*arguments),
            "torch.nn.LSTM": lambda: nn.LSTM(*arguments),
        }[layer]()
        return SequenceModel(made, 1).to(device)

    models = [model() for _ in range(size["M"])]
    x = torch.randn(size["T"], size["B"], INPUT, device=device)
    parameters = [p for each in models for p in each.parameters()]
    capturable = {"capturable": True} if device == "cuda" else {}
    optimizer = torch.optim.Adam(parameters, 1e-6, **capturable)
    together = Population(models) if size["M"] > 1 and not layer.startswith("torch") else None
    inputs = x.expand(size["M"], *x.shape)

    def update() -> None:
        optimizer.zero_grad()
        if together is not None:
            together(inputs)[0].square().mean((1, 2)).sum().backward()
        else:
            for each in models:
                each(x)[0].square().mean().backward()
        optimizer.step()

    return models, update


def measure(layer: str, size: dict[str, int], device: str) -> dict[str, float]:
    """Seconds and gigabytes of an update, here and now."""
    small = dict.fromkeys(NAMES, 2)
    made(layer, small | {"M": min(2, size["M"]), "L": size["L"]}, device)[1]()  # compiled code is there before
    clock = time.process_time if device == "cpu" else time.perf_counter
    before = reset_peak(device)
    _, update = made(layer, size, device)
    for _ in range(WARM[device]):
        update()
    wait(device)
    times: list[float] = []
    while not times or sum(times) < LEAST or (len(times) < REPEATS and sum(times) < MOST):
        begin = clock()
        update()
        wait(device)
        times.append(clock() - begin)
    return {"seconds": min(times), "gigabytes": (peak(device) - before) / 1e9}


def wait(device: str) -> None:
    import torch

    if device == "cuda":
        torch.cuda.synchronize()


def reset_peak(device: str) -> int:
    """Forget the peak of memory so far, and return the bytes in use."""
    import torch

    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    ctypes.CDLL(None).malloc_trim(0)  # glibc keeps what earlier cases have freed
    Path("/proc/self/clear_refs").write_text("5")
    return peak(device)


def peak(device: str) -> int:
    """The most bytes in use since `reset_peak`."""
    import torch

    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    line = next(row for row in Path("/proc/self/status").read_text().splitlines() if row.startswith("VmHWM"))
    return 1024 * int(line.split()[1])


def predicted(axis: str, layer: str, before: dict[str, Any], factor: float) -> tuple[float, float]:
    """Seconds and gigabytes of the next case, at most."""
    power = 3 if axis == "H" and "exponential" in layer else POWER[axis]
    return before["seconds"] * factor**power, before["gigabytes"] * factor ** min(power, 2)


def line(axis: str, layer: str, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The cases of one layer along an axis, as far as they are affordable, here and now."""
    import torch

    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    before: dict[str, Any] | None = None
    for value in VALUES[axis]:
        if before is not None:
            seconds, memory = predicted(axis, layer, before, value / before[axis])
            if seconds > options.seconds or memory > options.gigabytes:
                yield {axis: value, "left_out": f"up to {seconds:.0f} s and {memory:.0f} GB an update"}
                return
        try:
            before = {axis: value} | measure(layer, BASE[axis] | {axis: value}, options.device)
        except (RuntimeError, ValueError) as error:
            yield {axis: value, "left_out": str(error).splitlines()[0][:200]}
            return
        yield before


def in_process(axis: str, layer: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The cases of a line, in a process of its own; what it had measured before it was killed counts."""
    limits = ["--seconds", str(options.seconds), "--gigabytes", str(options.gigabytes), "--device", options.device]
    command = [sys.executable, __file__, "--line", layer, "--axis", axis, *limits]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    rows = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as ran:
        for text in ran.stdout or ():
            rows.append(json.loads(text))
            print(axis, layer, rows[-1], flush=True)
    if ran.returncode:
        rows.append({"left_out": f"the process ended with code {ran.returncode}"})
    return rows


def slope(rows: list[dict[str, Any]], axis: str, what: str) -> float | None:
    """The power of the axis with which the second half of a line grows; None for a line without a second half."""
    points = [row for row in rows if row.get(what, 0) > 0]
    first = points[len(points) // 2 - 1] if len(points) > 2 else None
    if first is None:
        return None
    return round(math.log(points[-1][what] / first[what]) / math.log(points[-1][axis] / first[axis]), 2)


def draw(found: dict[str, Any], device: str) -> None:
    """One figure for each axis: time on the left, memory on the right."""
    from evenflow.figures import draw_line, print_figure

    for axis, lines in found["axes"].items():
        with print_figure(2, 420, 300) as (figure, both):
            for axes, what, label in zip(both, ("seconds", "gigabytes"), ("seconds", "GB"), strict=True):
                for index, layer in enumerate(LAYERS):
                    points = [(row[axis], row[what]) for row in lines[layer] if row.get(what, 0) > 0]
                    if points:
                        x, y = zip(*points, strict=True)
                        draw_line(axes, index, x, y, layer, markevery=1)
                axes.set_xscale("log")
                axes.set_yscale("log")
                axes.set_xlabel(NAMES[axis])
                axes.set_ylabel(f"{label} an update")
            both[0].legend()
        path = DOCS / f"scale-{axis}-{device}.svg"
        figure.savefig(path)
        print(f"Written to {path}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--axis", choices=list(NAMES), help="measure this axis alone, and keep the others")
    parser.add_argument("--seconds", type=float, default=5, help="the most that an update may take")
    parser.add_argument("--gigabytes", type=float, default=4, help="the most memory that a case may take")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--figures", action="store_true", help="draw what has been measured")
    parser.add_argument("--line", choices=LAYERS, help=argparse.SUPPRESS)  # in a process of its own
    options = parser.parse_args()
    if options.line:
        for row in line(options.axis, options.line, options):
            print(json.dumps(row), flush=True)
        return
    path = options.out / f"scaling-{options.device}.json"
    found = json.loads(path.read_text()) if path.is_file() else {"axes": {}}
    if options.figures:
        draw(found, options.device)
        return
    import torch

    from evenflow.lab.bench import hardware

    torch.set_num_threads(1)
    found["hardware"] = hardware(torch.device(options.device))
    for axis in [options.axis] if options.axis else NAMES:
        lines = {layer: in_process(axis, layer, options) for layer in LAYERS}
        found["axes"][axis] = lines
        found.setdefault("growth", {})[axis] = {
            what: {layer: slope(rows, axis, what) for layer, rows in lines.items()} for what in ("seconds", "gigabytes")
        }
        path.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
