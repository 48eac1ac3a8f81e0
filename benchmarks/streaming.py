"""One time step without gradients on a CPU, layers and cells against the cells of torch.

    python benchmarks/streaming.py [--out benchmarks/results] [--rounds 60]

float32, as many inputs as units, one thread. All cases take turns, thirty steps each time; the results are the medians
in microseconds, and the median over the rounds of the ratio to the torch cell of the same kind. To
streaming-cpu.json.
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
from own_cells import CELLS

import evenflow
from evenflow.lab.bench import hardware

SIZES = ((128, 1), (128, 8), (512, 1))  # H, B
STEPS = 30
SYSTEMS = (
    "rnn", "gru", "lstm", "urnn", "exprnn", "ornn", "spectral", "sgornn", "full-urnn", "scrn", "ugru", "lstm-peephole",
    "gated-feedback",
)  # fmt: skip
TORCH = {"RNN": "torch.nn.RNNCell", "GRU": "torch.nn.GRUCell", "LSTM": "torch.nn.LSTMCell"}


def kind(name: str) -> str:
    """The cell of torch that a case is compared with."""
    return next((TORCH[each] for each in ("GRU", "LSTM") if each in name.upper()), TORCH["RNN"])


def cases(units: int, rows: int) -> dict[str, Callable[[], Any]]:
    """Functions that take one step, by name."""
    x = torch.randn(rows, units)
    found: dict[str, Callable[[], Any]] = {}

    def add(name: str, cell: Callable[..., Any], state: Any) -> None:
        found[name] = lambda: cell(x, state)

    def add_layer(name: str, layer: evenflow.Recurrent) -> None:
        add(name, layer.eval().step, layer(x.unsqueeze(0))[1])

    zeros = torch.zeros(rows, units)
    for each, name in TORCH.items():
        state = (zeros, zeros) if each == "LSTM" else zeros
        add(name, getattr(torch.nn, f"{each}Cell")(units, units), state)
        add(f"evenflow.{each}Cell", getattr(evenflow, f"{each}Cell")(units, units), state)
    for name in SYSTEMS:
        add_layer(name, evenflow.create(name, units, units))
    add_layer("cornn", evenflow.Recurrent(CELLS["cornn"](), units, units))
    return found


def measure(units: int, rows: int, rounds: int) -> list[dict[str, Any]]:
    steps = cases(units, rows)
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():  # compiles, and keeps what is kept
        step()
        step()
    for _ in range(rounds):
        for name, step in steps.items():
            step()
            begin = time.perf_counter()
            for _ in range(STEPS):
                step()
            taken[name].append((time.perf_counter() - begin) / STEPS * 1e6)
    return [
        {
            "case": name,
            "hidden": units,
            "batch": rows,
            "us": round(statistics.median(times), 2),
            "against": kind(name),
            "ratio": round(statistics.median(a / b for a, b in zip(times, taken[kind(name)], strict=True)), 3),
        }
        for name, times in taken.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--rounds", type=int, default=60)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with torch.no_grad():
        rows = [row for size in SIZES for row in measure(*size, options.rounds)]
    for row in rows:
        print(f"H={row['hidden']} B={row['batch']} {row['case']:20} {row['us']:8.1f} us {row['ratio']:6.2f}")
    result = {
        "hardware": hardware(torch.device("cpu")),
        "settings": {"steps": STEPS, "rounds": options.rounds},
        "rows": rows,
    }
    (options.out / "streaming-cpu.json").write_text(json.dumps(result, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
