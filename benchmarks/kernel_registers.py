"""Registers, spills and shared memory of the recurrence kernels, as the compiler reports them; needs nvcc, no GPU.

    python benchmarks/kernel_registers.py [--cells elman gru lstm] [--sizes 128 256] [--rows 50] [--architecture sm_90]
    python benchmarks/kernel_registers.py --gradient [--architecture sm_90]

A kernel that spills keeps part of its weights in device memory and is slow: `plan.py` must choose tiles that do not.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from evenflow.scan.cuda import build, elman, gradient, gru, libraries, lstm, patches, plan

SIZES = (32, 64, 100, 128, 192, 256, 384, 512, 768, 1024)
TABLES = {"elman": plan.ELMAN, "gated": plan.ELMAN, "gru": plan.GRU_FORWARD, "lstm": plan.LSTM_FORWARD}


def kernels(cell: str, hidden: int, batch: int) -> Iterator[tuple[str, build.Kernel]]:
    states = torch.empty(1, 1, batch, hidden, device="meta")
    for way in ("forward", "backward"):
        if cell == "elman":
            yield way, elman.kernel(way, states, False, "tanh")
        elif cell == "gated":
            yield way, elman.kernel(way, states, True, "tanh")
        elif cell == "gru":
            yield way, gru.kernel(way, states)
        else:
            yield way, lstm.kernel(way, states, 4, True, False)


def report(kernel: build.Launched, architecture: str) -> tuple[int, int]:
    """Registers per thread and bytes spilled, by the compiler's own account."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.cu"
        source.write_text(kernel.text())
        command = ["nvcc", *libraries.OPTIONS, f"-arch={architecture}", "-cubin", "-Xptxas", "-v"]
        done = subprocess.run([*command, str(source), "-o", f"{folder}/out"], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    registers = re.search(r"Used (\d+) registers", done.stderr)
    spills = re.findall(r"(\d+) bytes (?:stack frame|spill stores|spill loads)", done.stderr)
    assert registers is not None, done.stderr
    return int(registers[1]), sum(map(int, spills))


def gradients(architecture: str) -> None:
    """The weight gradient's kernel, for each patch, with copies of four numbers and of one."""
    print("| patch | warps | together | copies | registers | spilled bytes | shared KB |", flush=True)
    print("|---|---|---|---|---|---|---|", flush=True)
    for p in patches.PATCHES:
        for by_4 in (True, False):
            registers, spilled = report(gradient.Kernel(p, by_4, by_4), architecture)
            numbers = (p.together, 4 if by_4 else 1, registers, spilled, f"{p.memory / 1024:.0f}")
            print(f"| {p.tall} x {p.wide} | {p.down} x {p.across} |", " | ".join(map(str, numbers)), "|", flush=True)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--cells", nargs="+", default=list(TABLES), choices=list(TABLES))
    options.add_argument("--sizes", nargs="+", type=int, default=SIZES)
    options.add_argument("--rows", type=int, default=50)
    options.add_argument("--architecture", default="sm_90")
    options.add_argument("--gradient", action="store_true", help="the weight gradient's kernel alone")
    given = options.parse_args()
    if given.gradient:
        gradients(given.architecture)
        return
    print("| | H | C KS JT R | threads | weights | in registers | registers | spilled bytes | shared KB |", flush=True)
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    for cell in given.cells:
        for hidden in given.sizes:
            if not plan.covers(TABLES[cell], hidden):
                continue
            for way, kernel in kernels(cell, hidden, given.rows):
                tile = kernel.tile
                weights = tile.weights(hidden, kernel.out, kernel.into)
                held = tile.in_registers(hidden, kernel.out, kernel.into)
                registers, spilled = report(kernel, given.architecture)
                shape = f"{tile.blocks} {tile.lanes} {tile.units} {tile.rows}{' tensor' if tile.tensor else ''}"
                numbers = (kernel.threads, weights, held, registers, spilled, f"{kernel.memory / 1024:.0f}")
                print(f"| {cell} {way} | {hidden} | {shape} |", " | ".join(map(str, numbers)), "|", flush=True)


if __name__ == "__main__":
    main()
