"""A training pass of linear recurrences on a CPU: compiled C, all pieces at once, and the loop, beside `torch.nn.GRU`.

    python benchmarks/linear_scans.py [--out benchmarks/results] [--rounds 7]

float32, as many inputs as units, one thread, forward and backward pass. Engines: "c", what a layer takes on a CPU;
"pieces", torch operations over all pieces of the sequences at once, which a layer takes where there is no compiled
code; "loop", the step called T times in torch. All cases of one size take turns; the results are medians of the times
and of the ratios within a round. To linear-scans-cpu.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import evenflow
from evenflow.lab.bench import hardware

SIZES = ((256, 16, 64), (1000, 16, 64), (4000, 4, 128), (16_000, 1, 128))  # T, B, H
SYSTEMS = ("mingru", "minlstm", "rglru", "lru", "s5", "linoss", "rotrnn")
ENGINES = {"c": "auto", "pieces": "torch", "loop": "reference"}
GRU = "torch.nn.GRU"


def training_pass(layer: torch.nn.Module, x: torch.Tensor) -> Callable[[], None]:
    """A function that runs one forward and one backward pass."""

    def run() -> None:
        for parameter in layer.parameters():
            parameter.grad = None
        layer(x)[0].square().mean().backward()

    return run


def measure(steps: int, rows: int, units: int, rounds: int) -> list[dict[str, Any]]:
    x = torch.randn(steps, rows, units)
    passes = {(GRU, "torch"): training_pass(torch.nn.GRU(units, units), x)}
    for name in SYSTEMS:
        for engine, option in ENGINES.items():
            passes[name, engine] = training_pass(evenflow.create(name, units, units, engine=option), x)
    taken: dict[tuple[str, str], list[float]] = {case: [] for case in passes}
    for run in passes.values():  # compiles
        run()
    for _ in range(rounds):
        for case, run in passes.items():
            begin = time.perf_counter()
            run()
            taken[case].append((time.perf_counter() - begin) * 1e3)

    def ratio(case: tuple[str, str], other: tuple[str, str]) -> float:
        return round(statistics.median(a / b for a, b in zip(taken[case], taken[other], strict=True)), 3)

    return [
        {
            "case": name,
            "engine": engine,
            "steps": steps,
            "batch": rows,
            "hidden": units,
            "ms": round(statistics.median(times), 2),
            "to_gru": ratio((name, engine), (GRU, "torch")),
            "to_loop": None if name == GRU else ratio((name, engine), (name, "loop")),
        }
        for (name, engine), times in taken.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows = []
    for size in SIZES:
        for row in measure(*size, options.rounds):
            rows.append(row)
            at = f"T={row['steps']} B={row['batch']} H={row['hidden']}"
            loop = "" if row["to_loop"] is None else f"{row['to_loop']:8.3f} of the loop"
            print(f"{at:20} {row['case']:14} {row['engine']:7} {row['ms']:9.2f} ms {row['to_gru']:8.3f} of GRU{loop}")
    result = {
        "hardware": hardware(torch.device("cpu")),
        "settings": {"rounds": options.rounds, "dtype": "float32", "threads": 1},
        "rows": rows,
    }
    (options.out / "linear-scans-cpu.json").write_text(json.dumps(result, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
