"""The memory of a training step over a million time steps on a CPU: T = 1,000,000, B = 1, 128 inputs, 128 units.

    python benchmarks/million_steps.py [--out benchmarks/results] [--only NAME ...]

float32, one thread, each system in a process of its own: forward pass, mean square of all outputs as the loss, backward
pass and an update by Adam. Its peak in GB, with torch, the process and the 0.5 GB of the input, and the seconds of the
step. Recurrences with a dense matrix keep every hundredth state (checkpoint_every=100). To million-steps-cpu.json.
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

STEPS, WIDTH = 1_000_000, 128
MOST = 16 << 30  # bytes of address space, so that a system that needs more does not take the machine's memory
LINEAR = ("lru", "s4d", "s5", "linoss", "rotrnn", "mingru", "minlstm", "rglru")
DENSE = ("rnn", "sgornn", "gru", "lstm")


def step(name: str) -> dict[str, float]:
    """Here and now."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    options: dict[str, Any] = {"checkpoint_every": 100} if name in DENSE else {}
    layer = create(name, WIDTH, WIDTH, **options)
    optimizer = torch.optim.Adam(layer.parameters(), 1e-4)
    layer(torch.randn(3, 1, WIDTH))[0].sum().backward()  # compiled code is found
    x = torch.randn(STEPS, 1, WIDTH)
    resource.setrlimit(resource.RLIMIT_AS, (MOST, resource.RLIM_INFINITY))
    begin = time.perf_counter()
    optimizer.zero_grad()
    loss = layer(x)[0].square().mean()
    loss.backward()
    optimizer.step()
    seconds = time.perf_counter() - begin
    assert all(bool(p.isfinite().all()) for p in layer.parameters())
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e9
    return {"GB": round(peak, 2), "seconds": round(seconds, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--only", nargs="+", default=[*LINEAR, *DENSE], help="these systems")
    parser.add_argument("--one", help=argparse.SUPPRESS)  # in a process of its own
    options = parser.parse_args()
    if options.one:
        print(json.dumps(step(options.one)))
        return
    found: dict[str, Any] = {"hardware": hardware(torch.device("cpu"))}
    for name in options.only:
        ran = subprocess.run([sys.executable, __file__, "--one", name], capture_output=True, encoding="utf-8")
        found[name] = json.loads(ran.stdout) if ran.returncode == 0 else ran.stderr.splitlines()[-1]
        print(name, found[name], flush=True)
    (options.out / "million-steps-cpu.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
