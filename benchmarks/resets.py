"""A training pass of a layer with resets inside the batch, relative to the same pass without.

    python benchmarks/resets.py [--device cuda] [--out benchmarks/results] [--seconds 4]

Forward and backward, float32, one thread; one step in a hundred is a reset. "initial state": what resets restart from.
Passes with and without a mask alternate, so that both meet the same machine; times are processor time of the process
in milliseconds, on a GPU of GPU events, medians, and "ratio" is the median over pairs of passes. To resets-cpu.json or
resets-cuda.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
from torch import Tensor

from evenflow import create
from evenflow.lab.bench import hardware
from evenflow.layers.recurrent import Recurrent

SIZES = ((128, 50, 784), (32, 8, 100))  # H, B, T
SYSTEMS = ("rnn", "sgornn", "gru", "lstm", "lstm-peephole", "scrn", "gated-feedback")
LEARNED = ("rnn", "gru", "lstm")
INPUTS, SHARE = 8, 0.01
WARM_UP = 10  # passes, within which a GPU captures a layer


def milliseconds(layer: Recurrent, x: Tensor, resets: Tensor | None) -> float:
    layer.zero_grad()
    if x.is_cuda:
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        first.record()
    begin = time.process_time()
    output, _ = layer(x, None, resets)
    output.sum().backward()
    if x.is_cuda:
        last.record()
        last.synchronize()
        return first.elapsed_time(last)
    return (time.process_time() - begin) * 1e3


def measure(
    system: str, size: tuple[int, int, int], initial_state: str, seconds: float, device: str
) -> dict[str, object]:
    units, rows, steps = size
    layer = create(system, INPUTS, units, initial_state=initial_state).to(device)
    x, resets = torch.randn(steps, rows, INPUTS, device=device), torch.rand(steps, rows, device=device) < SHARE
    for _ in range(WARM_UP if device == "cuda" else 2):
        milliseconds(layer, x, None), milliseconds(layer, x, resets)
    end, pairs = time.perf_counter() + seconds, []
    while time.perf_counter() < end or len(pairs) < 6:
        order = (None, resets) if len(pairs) % 2 else (resets, None)
        times = {mask is resets: milliseconds(layer, x, mask) for mask in order}
        pairs.append((times[False], times[True]))
    without, with_resets = (statistics.median(times) for times in zip(*pairs, strict=True))
    return {
        "system": system,
        "initial state": initial_state,
        "H, B, T": list(size),
        "ms without": round(without, 4),
        "ms with": round(with_resets, 4),
        "ratio": round(statistics.median(after / before for before, after in pairs), 3),
        "pairs": len(pairs),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    torch.manual_seed(0)
    found: dict[str, object] = {
        "hardware": hardware(torch.device(options.device)),
        "torch": torch.__version__,
        "threads": 1,
    }
    runs = [(name, size, "zero") for size in SIZES for name in SYSTEMS]
    runs += [(name, SIZES[0], "learned") for name in LEARNED]
    passes = []
    for run in runs:
        passes.append(measure(*run, options.seconds, options.device))
        print(passes[-1], flush=True)
    found["passes"] = passes
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / f"resets-{options.device}.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
