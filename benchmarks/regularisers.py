"""What regularisers inside the step cost, and how a loop over torch's cells with the same regularisers compares.

    python benchmarks/regularisers.py --out benchmarks/results/regularisers-cpu.json

Each case is a training pass of one layer in float32, with all gradients; `eval` is a pass in evaluation without
gradients, over that of the layer without the option. The layer, the plain layer and the loop take turns in one process
with one thread. Times are CPU times, which other programs on the machine hardly change; a ratio is that of the medians
over all rounds. The loop is what one writes without evenflow: masks and the input's projection before the loop, then
torch's operations step by step.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, layer_norm, linear

import evenflow

INPUT = 16
SIZES = ((128, 1), (128, 32))  # units and rows
OPTIONS: dict[str, dict[str, Any]] = {
    "recurrent_dropout": {"recurrent_dropout": 0.25},
    "zoneout": {"zoneout": 0.1},
    "layer_norm": {"layer_norm": True},
    "weight_dropout": {"weight_dropout": 0.5},
    "all four": {"recurrent_dropout": 0.25, "zoneout": 0.1, "layer_norm": True, "weight_dropout": 0.5},
}
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


class Loop(nn.Module):
    """A layer with regularisers, written with torch's cells where they fit, otherwise as in their documentation."""

    def __init__(
        self,
        kind: str,
        hidden: int,
        recurrent_dropout: float = 0.0,
        zoneout: float = 0.0,
        layer_norm: bool = False,
        weight_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.kind, self.hidden = kind, hidden
        self.dropped, self.zoneout, self.weight_dropout = recurrent_dropout, zoneout, weight_dropout
        self.cell = getattr(nn, f"{kind}Cell")(INPUT, hidden)
        self.norm = nn.Parameter(torch.ones(GATES[kind] + (kind == "LSTM"), hidden)) if layer_norm else None

    def forward(self, x: Tensor) -> Tensor:
        rows, cell = x.shape[1], self.cell
        states = [x.new_zeros(rows, self.hidden) for _ in range(2 if self.kind == "LSTM" else 1)]
        U = dropout(cell.weight_hh, self.weight_dropout) if self.weight_dropout else cell.weight_hh
        kept = dropout(x.new_ones(rows, self.hidden), self.dropped) if self.dropped else None
        plain = self.norm is None and U is cell.weight_hh and (kept is None or self.kind != "GRU")
        share = None if plain else linear(x, cell.weight_ih, None if self.norm is not None else cell.bias_ih)
        outputs = []
        for t in range(len(x)):
            h = states[0] if kept is None else states[0] * kept
            if plain:
                found = cell(x[t], (h, states[1]) if self.kind == "LSTM" else h)
                new = list(found) if isinstance(found, tuple) else [found]
            else:
                assert share is not None
                new = self.step(share[t], h, states, U)
            if self.zoneout:
                pairs = zip(states, new, strict=True)
                new = [torch.where(torch.rand_like(s) < self.zoneout, before, s) for before, s in pairs]
            states = new
            outputs.append(states[0])
        return torch.stack(outputs)

    def step(self, share: Tensor, h: Tensor, states: list[Tensor], U: Tensor) -> list[Tensor]:
        norm, bias = self.norm, self.cell.bias_ih.chunk(GATES[self.kind])

        def normal(k: int, z: Tensor) -> Tensor:
            if norm is None:
                return z
            z = layer_norm(z, z.shape[-1:], norm[k])
            return z + bias[k] if k < len(bias) else z

        a = share.chunk(GATES[self.kind], -1)
        u = linear(h, U, self.cell.bias_hh).chunk(GATES[self.kind], -1)
        if self.kind == "RNN":
            return [normal(0, a[0] + u[0]).tanh()]
        if self.kind == "GRU":
            r, z = (normal(k, a[k] + u[k]).sigmoid() for k in range(2))
            return [(1 - z) * normal(2, a[2] + r * u[2]).tanh() + z * states[0]]
        i, f, g, o = (normal(k, a[k] + u[k]) for k in range(4))
        c = f.sigmoid() * states[1] + i.sigmoid() * g.tanh()
        return [o.sigmoid() * normal(4, c).tanh(), c]


def training(layer: nn.Module, x: Tensor) -> Callable[[], None]:
    def run() -> None:
        layer.zero_grad()
        output = layer(x)
        (output if isinstance(output, Tensor) else output[0]).square().mean().backward()

    return run


def evaluation(layer: nn.Module, x: Tensor) -> Callable[[], None]:
    def run() -> None:
        layer.eval()
        with torch.no_grad():
            layer(x)
        layer.train()

    return run


def medians(runs: dict[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    """Milliseconds of CPU time per pass of each run; the runs take turns."""

    def timed(run: Callable[[], None], passes: int) -> float:
        run()  # the caches are those of another run
        begin = time.process_time()
        for _ in range(passes):
            run()
        return 1e3 * (time.process_time() - begin) / passes

    passes = {name: min(20, round(10 / timed(run, 2)) + 1) for name, run in runs.items()}
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            times[name].append(timed(run, passes[name]))
    return {name: statistics.median(each) for name, each in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", help="a JSON file for the results")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    rows = []
    for hidden, batch in SIZES:
        x = torch.randn(options.steps, batch, INPUT)
        for kind in GATES:
            make = getattr(evenflow, kind)
            for name, chosen in OPTIONS.items():
                torch.manual_seed(0)
                plain, layer = make(INPUT, hidden), make(INPUT, hidden, **chosen)
                runs = {
                    "plain": training(plain, x),
                    "option": training(layer, x),
                    "loop": training(Loop(kind, hidden, **chosen), x),
                }
                ms = medians(runs, options.rounds)
                ms |= medians({"plain eval": evaluation(plain, x), "option eval": evaluation(layer, x)}, options.rounds)
                row = {"layer": kind, "option": name, "hidden": hidden, "batch": batch, "steps": options.steps}
                row |= {"ms": ms, "of_plain": ms["option"] / ms["plain"], "of_loop": ms["option"] / ms["loop"]}
                rows.append(row | {"eval_of_plain": ms["option eval"] / ms["plain eval"]})
                print(f"{kind:5s} {name:18s} H={hidden:4d} B={batch:3d} {ms['option']:8.2f} ms, of plain "
                      f"{rows[-1]['of_plain']:.2f}, of the loop {rows[-1]['of_loop']:.3f}, in evaluation of plain "
                      f"{rows[-1]['eval_of_plain']:.2f}", flush=True)  # fmt: skip
    if options.out:
        machine = {"processor": platform.processor() or platform.machine(), "threads": 1, "torch": torch.__version__}
        found = {"machine": machine, "rounds": options.rounds, "rows": rows}
        Path(options.out).write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
