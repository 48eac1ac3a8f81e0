"""The most memory that one training step on a long sequence takes on a CPU, kept whole, in part, or in half precision.

    python benchmarks/memory_cpu.py [--out benchmarks/results]

One layer or four, float32, H = 128, B = 16, one thread, each in a process of its own: its peak in GB, torch and the
process included, and the seconds of the first step. To memory-cpu.json.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from evenflow import create
from evenflow.lab.bench import hardware

HIDDEN, BATCH = 128, 16
SHORT, LONG = 20_000, 100_000
ASKED: list[tuple[str, int, str, dict[str, Any]]] = [
    *(
        (name, SHORT, "output", options)
        for name in ("rnn", "gru", "lstm")
        for options in ({}, {"checkpoint_every": 1}, {"checkpoint_every": 150}, {"storage": "bfloat16"})
    ),
    *(("lstm", SHORT, "output", {"num_layers": 4} | options) for options in ({}, {"storage": "bfloat16"})),
    ("rnn", LONG, "output", {"checkpoint_every": 300}),
    ("rnn", LONG, "h_n", {"checkpoint_every": 300}),
]


def step(name: str, steps: int, loss: str, options: dict[str, Any]) -> dict[str, float]:
    """Here and now."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    layer = create(name, 2, HIDDEN, **options)
    create(name, 2, 8)(torch.randn(3, 1, 2))[0].sum().backward()  # compiled code is found
    x = torch.randn(steps, BATCH, 2)
    begin = time.perf_counter()
    output, state = layer(x)
    h = state[0] if isinstance(state, tuple) else state
    (output[-1] if loss == "output" else h).float().sum().backward()
    seconds = time.perf_counter() - begin
    return {"GB": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e9, "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--one", help=argparse.SUPPRESS)  # in a process of its own
    options = parser.parse_args()
    if options.one:
        print(json.dumps(step(*json.loads(options.one))))
        return
    torch.set_num_threads(1)  # as each step has it
    found: dict[str, Any] = {"hardware": hardware(torch.device("cpu"))}
    for asked in ASKED:
        name, steps, loss, given = asked
        label = ", ".join([name, f"T={steps}", loss, *(f"{key}={value}" for key, value in given.items())])
        ran = subprocess.run([sys.executable, __file__, "--one", json.dumps(asked)], capture_output=True, check=True)
        found[label] = json.loads(ran.stdout)
        print(label, found[label], flush=True)
    (options.out / "memory-cpu.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
