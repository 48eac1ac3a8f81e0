"""Layers on a CPU beside torch's own at other sizes than `evenflow bench` has by default, linear ones in pieces, parts.

    python benchmarks/sizes_cpu.py [--out benchmarks/results] [--rounds 7]

A training pass (input of width 2, loss on the last output), all in turn, medians in milliseconds; for a linear
recurrence at T = 10,000, H = 128, in √T pieces side by side and step by step, both passes by torch operations and the
forward pass by compiled code; and what a pass of the Elman layer and of the LSTM is made of at H = 128, B = 50,
T = 784. To sizes-cpu.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from layers_by_name import step_of
from torch import Tensor, nn

from evenflow.cells import Elman
from evenflow.lab.bench import hardware
from evenflow.layers.named import GRU, LSTM, RNN
from evenflow.scan import chunked, cpu, project, torch_operations
from evenflow.scan.engine import ScanInputs, ScanOutputs, scan_gradients

SIZES = [
    *((hidden, 50, 784) for hidden in (32, 64, 100)),
    (256, 50, 300),
    (512, 50, 100),
    (1024, 50, 50),
    *((128, batch, 784) for batch in (1, 16)),
    (128, 256, 200),
]
LINEAR = {"steps": 10_000, "hidden": 128, "batches": (1, 2, 4, 8, 20)}

Pass = Callable[[], object]


def layers(hidden: int) -> dict[str, nn.Module]:
    return {
        "torch.nn.RNN": nn.RNN(2, hidden, nonlinearity="relu"),
        "RNN": RNN(2, hidden, activation="abs"),
        "torch.nn.GRU": nn.GRU(2, hidden),
        "GRU": GRU(2, hidden),
        "torch.nn.LSTM": nn.LSTM(2, hidden),
        "LSTM": LSTM(2, hidden),
    }


def training_pass(layer: nn.Module, x: Tensor) -> None:
    layer.zero_grad(set_to_none=True)
    layer(x)[0][-1].sum().backward()


def medians(passes: Mapping[str, Pass], rounds: int) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in passes}
    for place in range(rounds + 1):  # the first warms up
        for name, run in passes.items():
            begin = time.perf_counter()
            run()
            if place:
                times[name].append(1e3 * (time.perf_counter() - begin))
    return {name: statistics.median(each) for name, each in times.items()}


def pieces(batch: int) -> dict[str, Pass]:
    """There and back by torch operations; the compiled loop there alone, which pieces of it would have to beat."""
    a, grad = (torch.randn(1, LINEAR["steps"], batch, LINEAR["hidden"]) for _ in range(2))
    weight = torch.linalg.qr(torch.randn(1, LINEAR["hidden"], LINEAR["hidden"]))[0].contiguous()
    start, step = torch.zeros(1, batch, LINEAR["hidden"]), step_of(RNN(2, LINEAR["hidden"], activation="identity"))
    absent = [None for _ in step.program.parameters]

    def compiled(a: Tensor, weight: Tensor, h: Tensor) -> Tensor:
        return cpu.forward(ScanInputs(step, a.contiguous(), [h.contiguous()], [weight], absent))[0][0]

    def torch_pass(in_pieces: bool) -> None:
        given = (a, [start], [weight], absent)
        with mock.patch.object(chunked, "pays", return_value=in_pieces):
            stored = torch_operations.forward(ScanInputs(step, *given))
            scan_gradients(torch_operations, ScanInputs(step, *given), ScanOutputs(*stored), [grad], False)

    return {
        "torch, pieces": partial(torch_pass, True),
        "torch, steps": partial(torch_pass, False),
        "compiled, pieces": partial(chunked.scan, a, weight, start, loop=compiled),
        "compiled, steps": partial(compiled, a, weight, start),
    }


def parts(cell: str, hidden: int = 128, batch: int = 50, steps: int = 784) -> dict[str, Pass]:
    """The compiled scans alone; "backward" has the gradient of W_hh in it."""
    wide = hidden * (4 if cell == "LSTM" else 1)
    x, into = torch.randn(steps, batch, 2), torch.randn(wide, 2, requires_grad=True)
    a = torch.randn(1, steps, batch, wide).mul_(0.3)
    weight = torch.linalg.qr(torch.randn(wide, hidden))[0].unsqueeze(0).contiguous()
    start, grad = torch.zeros(1, batch, hidden), torch.randn(1, steps, batch, hidden)
    step = step_of(LSTM(2, hidden) if cell == "LSTM" else RNN(2, hidden, activation="relu"))
    given = (a, [start] * len(step.state_sizes), [weight], [None for _ in step.program.parameters])
    stored = cpu.forward(ScanInputs(step, *given))
    grads = [grad, *(None for _ in step.state_sizes[1:])]
    d_a, *_ = scan_gradients(cpu, ScanInputs(step, *given), ScanOutputs(*stored), grads, False)

    def projected() -> None:
        project(Elman(), x, {"weight_ih": into}).backward(a[0])

    return {
        "forward": partial(cpu.forward, ScanInputs(step, *given)),
        "backward": partial(scan_gradients, cpu, ScanInputs(step, *given), stored, grads, False),
        "gradient of W_hh": partial(cpu.weight_gradient, d_a, stored[0][0], start),
        "projection and its gradient": projected,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    torch.set_flush_denormal(True)
    torch.manual_seed(0)
    found: dict[str, Any] = {"hardware": hardware(torch.device("cpu")), "rounds": options.rounds}
    for hidden, batch, steps in SIZES:
        x = torch.randn(steps, batch, 2)
        passes = {name: partial(training_pass, layer, x) for name, layer in layers(hidden).items()}
        found[f"{hidden}, {batch}, {steps}"] = medians(passes, options.rounds)
        print(hidden, batch, steps, found[f"{hidden}, {batch}, {steps}"], flush=True)
    with torch.no_grad():
        for batch in LINEAR["batches"]:
            found[f"linear B={batch}"] = medians(pieces(batch), options.rounds)
            print(batch, found[f"linear B={batch}"], flush=True)
    for cell in ("Elman", "LSTM"):
        found[f"parts of {cell}"] = medians(parts(cell), options.rounds)
        print(cell, found[f"parts of {cell}"], flush=True)
    (options.out / "sizes-cpu.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
