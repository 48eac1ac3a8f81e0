"""One time step without gradients, layers and cells against torch: its cells on a CPU, its layers on a GPU.

    python benchmarks/streaming.py [--device cuda] [--out benchmarks/results] [--rounds 60]

float32, as many inputs as units, one thread. All cases take turns, thirty steps each time; the results are the medians
in microseconds, and the median over the rounds of the ratio to the torch cell, or on a GPU the torch layer, of the same
kind. To streaming-cpu.json or streaming-cuda.json.
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
KINDS = ("RNN", "GRU", "LSTM")
WARM_UP = 4  # steps, in which a CPU compiles and a GPU captures


def kind(name: str, device: str) -> str:
    """The cell or layer of torch that a case is compared with."""
    found = next((each for each in ("GRU", "LSTM") if each in name.upper()), "RNN")
    return f"torch.nn.{found}" if device == "cuda" else f"torch.nn.{found}Cell"


def cases(units: int, rows: int, device: str) -> dict[str, Callable[[], Any]]:
    """Functions that take one step, by name."""
    x = torch.randn(rows, units, device=device)
    found: dict[str, Callable[[], Any]] = {}

    def add(name: str, cell: Callable[..., Any], state: Any) -> None:
        found[name] = lambda: cell(x, state)

    def add_layer(name: str, layer: evenflow.Recurrent) -> None:
        state = tuple(torch.zeros(layer.num_layers, rows, size, device=device) for size in layer.state_sizes)
        add(name, layer.to(device).eval().step, state if len(state) > 1 else state[0])

    def add_torch(layer: torch.nn.Module, name: str) -> None:
        layer, step = layer.to(device), x.unsqueeze(0)
        state = layer(step)[1]
        found[name] = lambda: layer(step, state)

    zeros = torch.zeros(rows, units, device=device)
    for each in KINDS:
        state = (zeros, zeros) if each == "LSTM" else zeros
        if device == "cuda":
            add_torch(getattr(torch.nn, each)(units, units), f"torch.nn.{each}")
        add(f"torch.nn.{each}Cell", getattr(torch.nn, f"{each}Cell")(units, units).to(device), state)
        add(f"evenflow.{each}Cell", getattr(evenflow, f"{each}Cell")(units, units).to(device), state)
    for name in SYSTEMS:
        add_layer(name, evenflow.create(name, units, units))
    add_layer("cornn", evenflow.Recurrent(CELLS["cornn"](), units, units))
    return found


def measure(units: int, rows: int, rounds: int, device: str) -> list[dict[str, Any]]:
    steps = cases(units, rows, device)
    taken: dict[str, list[float]] = {name: [] for name in steps}
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    for step in steps.values():
        for _ in range(WARM_UP):
            step()
    for _ in range(rounds):
        for name, step in steps.items():
            step()
            wait()
            begin = time.perf_counter()
            for _ in range(STEPS):
                step()
            wait()
            taken[name].append((time.perf_counter() - begin) / STEPS * 1e6)
    return [
        {
            "case": name,
            "hidden": units,
            "batch": rows,
            "us": round(statistics.median(times), 2),
            "against": kind(name, device),
            "ratio": round(statistics.median(a / b for a, b in zip(times, taken[kind(name, device)], strict=True)), 3),
        }
        for name, times in taken.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with torch.no_grad():
        rows = [row for size in SIZES for row in measure(*size, options.rounds, options.device)]
    for row in rows:
        print(f"H={row['hidden']} B={row['batch']} {row['case']:20} {row['us']:8.1f} us {row['ratio']:6.2f}")
    result = {
        "hardware": hardware(torch.device(options.device)),
        "settings": {"steps": STEPS, "rounds": options.rounds},
        "rows": rows,
    }
    (options.out / f"streaming-{options.device}.json").write_text(json.dumps(result, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
