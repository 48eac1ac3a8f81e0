"""A training pass of every system on a CPU, beside torch's layers of the same size.

    python benchmarks/systems_cpu.py [--out benchmarks/results] [--rounds 15]

float32, 2 inputs, 128 units, batch 50, 784 steps, one thread, forward and backward pass with all weight gradients. All
layers take turns within a round; the results are medians of the processor times and of their ratios within a round, so
that other work on the machine changes them little. To systems-cpu.json, which the pages of the systems show.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
from linear_scans import training_pass

import evenflow
from evenflow.lab.bench import hardware

INPUTS, UNITS, ROWS, STEPS = 2, 128, 50, 784
TORCHS = {"torch.nn.RNN": torch.nn.RNN, "torch.nn.GRU": torch.nn.GRU, "torch.nn.LSTM": torch.nn.LSTM}


def measure(rounds: int) -> dict[str, dict[str, float]]:
    """The medians of each layer: milliseconds, and ratios to torch's layers."""
    layers = {name: layer(INPUTS, UNITS) for name, layer in TORCHS.items()}
    layers |= {name: evenflow.create(name, INPUTS, UNITS) for name in evenflow.systems()}
    x = torch.randn(STEPS, ROWS, INPUTS)
    passes = {  # an echo state network has nothing to train
        name: training_pass(layer, x)
        for name, layer in layers.items()
        if any(parameter.requires_grad for parameter in layer.parameters())
    }
    taken: dict[str, list[float]] = {name: [] for name in passes}
    for run in passes.values():  # compiles
        run()
    for number in range(rounds):
        for name, run in passes.items():
            begin = time.process_time()
            run()
            taken[name].append((time.process_time() - begin) * 1e3)
        print(f"round {number + 1} of {rounds}", flush=True)
    return {
        name: {"ms": round(statistics.median(times), 2)}
        | {
            other: round(statistics.median(a / b for a, b in zip(times, taken[other], strict=True)), 3)
            for other in TORCHS
        }
        for name, times in taken.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    result = {
        "hardware": hardware(torch.device("cpu")),
        "settings": {
            "inputs": INPUTS,
            "hidden": UNITS,
            "batch": ROWS,
            "length": STEPS,
            "rounds": options.rounds,
            "threads": 1,
            "clock": "processor time",
        },
        "layers": measure(options.rounds),
    }
    (options.out / "systems-cpu.json").write_text(json.dumps(result, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
