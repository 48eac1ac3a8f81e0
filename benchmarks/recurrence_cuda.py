"""Checks and times the recurrence kernels over their tiles, with cuDNN beside them, in one run on a GPU.

    python benchmarks/recurrence_cuda.py [--out FOLDER] [--seconds 330] [--only elman gru] [--steps 784] [--plan]
    python benchmarks/recurrence_cuda.py --tensor [--out FOLDER] [--only elman gru]
    python benchmarks/recurrence_cuda.py --gradient [--out FOLDER] [--seconds 35]

For every size: cuDNN's layer, the tile that `plan.py` would take, and its neighbours (rows, lanes, units or blocks
halved or doubled). Every result is compared with the torch operations in double precision before it is timed. Times are
medians in milliseconds: of the forward pass, and of the backward pass with the weight gradient and without. Results are
written to ``FOLDER/kernels-cuda.json`` after every size, so a run that is cut short has shown something. Tiles that
exchange states by mail come last; a kernel that hangs ends the run after half a minute. With ``--tensor`` the plan's
tiles meet those on tensor cores alone, at the sizes where these may win, without cuDNN. With ``--gradient`` it is the
weight gradient's product alone, written to ``FOLDER/gradient-cuda.json``; see `gradient_cuda.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import gradient_cuda
import torch
from cuda_problems import Problem, neighbours, on_tensor_cores
from torch import nn

from evenflow.activations import ACTIVATIONS
from evenflow.scan.cuda import build, libraries, plan

WAYS = ("forward", "backward")
ROUNDS, WARM = 12, 3
HANG_SECONDS = 30
FIRST_PASS = 0.65  # of the time, for tiles that meet at a barrier; the rest is for activations and for mail
COMPILERS = os.cpu_count() or 8
# Cell, H, B and models, the most wanted first: a run may end before the last.
SIZES = [
    ("elman", 128, 50, 1),
    ("elman", 256, 50, 1),
    ("elman", 512, 50, 1),
    ("elman", 1024, 50, 1),
    ("elman", 128, 256, 1),
    ("elman", 512, 256, 1),
    ("lstm", 128, 50, 1),
    ("gru", 128, 50, 1),
    ("lstm", 256, 50, 1),
    ("gru", 256, 50, 1),
    ("elman", 128, 50, 16),
    ("elman", 128, 50, 32),
    ("gated", 128, 50, 1),
    ("lstm", 512, 50, 1),
    ("gru", 512, 50, 1),
    ("elman", 256, 256, 1),
    ("gated", 512, 50, 1),
    ("gru", 128, 256, 1),
    ("lstm", 128, 256, 1),
    ("elman", 64, 50, 1),
    ("elman", 192, 50, 1),
    ("elman", 384, 50, 1),
    ("elman", 768, 50, 1),
    ("gated", 1024, 50, 1),
    ("elman", 100, 50, 1),
    ("gru", 64, 50, 1),
    ("lstm", 64, 50, 1),
]

# Those for tensor cores, the most wanted first.
LARGE = [
    ("elman", 1024, 50, 1),
    ("elman", 512, 256, 1),
    ("gru", 512, 50, 1),
    ("lstm", 512, 50, 1),
    ("elman", 768, 50, 1),
    ("elman", 512, 50, 1),
    ("elman", 128, 50, 16),
    ("elman", 128, 50, 32),
    ("elman", 256, 256, 1),
    ("elman", 128, 256, 1),
    ("lstm", 256, 50, 1),
    ("gru", 256, 50, 1),
    ("elman", 256, 50, 1),
    ("lstm", 384, 50, 1),
    ("gru", 384, 50, 1),
    ("elman", 1024, 256, 1),
    ("elman", 768, 256, 1),
    ("elman", 128, 50, 1),
]


def milliseconds(run: Callable[[], Any]) -> float:
    """The median over rounds, all handed over before the first is waited for, so that the GPU never idles."""
    for _ in range(WARM):
        run()
    torch.cuda.synchronize()
    marks = []
    for _ in range(ROUNDS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        run()
        end.record()
        marks.append((begin, end))
    torch.cuda.synchronize()
    return statistics.median(begin.elapsed_time(end) for begin, end in marks)


def cudnn(cell: str, hidden: int, batch: int, steps: int) -> dict[str, float]:
    """cuDNN's layer of this size, input width 2: forward, and forward with backward."""
    kind = {"gru": nn.GRU, "lstm": nn.LSTM}.get(cell)
    layer = (kind(2, hidden) if kind else nn.RNN(2, hidden, nonlinearity="relu")).cuda()
    x = torch.randn(steps, batch, 2, device="cuda")
    grad = torch.randn(steps, batch, hidden, device="cuda")

    def both() -> None:
        layer.zero_grad(set_to_none=True)
        layer(x)[0].backward(grad)

    with torch.no_grad():
        forward = milliseconds(lambda: layer(x))
    return {"forward": forward, "both": milliseconds(both)}


class Run:
    """What has been measured so far, and how long it may go on."""

    def __init__(self, folder: Path, seconds: float, name: str = "recurrence-cuda") -> None:
        self.path, self.start, self.seconds = folder / f"{name}.json", time.monotonic(), seconds
        self.beat = self.start
        self.rows: list[dict[str, Any]] = []
        self.doing = "starting"
        folder.mkdir(parents=True, exist_ok=True)
        threading.Thread(target=self.watch, daemon=True).start()

    def watch(self) -> None:
        """End the process when a kernel does not come back; what was written stays."""
        while time.monotonic() - self.beat < HANG_SECONDS:
            time.sleep(1)
        print(f"nothing for {HANG_SECONDS} s while {self.doing}: giving up", flush=True)
        self.rows.append({"hung": self.doing})
        self.write()
        os._exit(3)

    def over(self, share: float = 1.0) -> bool:
        return time.monotonic() > self.start + share * self.seconds

    def alive(self, doing: str) -> None:
        self.beat, self.doing = time.monotonic(), doing

    def write(self) -> None:
        about = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "nvrtc": libraries.nvrtc_version()}
        self.path.write_text(json.dumps(about | {"results": self.rows}, indent=1))

    def prepare(self, kernels: Sequence[build.Launched]) -> None:
        """Compile side by side, into the cache."""
        with ThreadPoolExecutor(COMPILERS) as pool:
            for kernel, done in [(k, pool.submit(build.code, k, 0)) for k in dict.fromkeys(kernels)]:
                done.result()
                self.alive(f"compiling {kernel}")

    def measure(self, problem: Problem, way: str, tile: plan.Tile, note: str = "") -> None:
        label = (
            f"{problem.cell} {way} H={problem.hidden} B={problem.batch} M={problem.models} {problem.activation} {tile}"
        )
        self.alive(label)
        row: dict[str, Any] = {"cell": problem.cell, "way": way, "hidden": problem.hidden, "batch": problem.batch}
        row |= {"models": problem.models, "steps": problem.steps, "activation": problem.activation, "note": note}
        row |= {"tile": asdict(tile)}
        try:
            row |= build.resources(problem.kernel(way, tile), 0)
            row["error"] = problem.error(way, tile)
            run = problem.forward if way == "forward" else problem.backward
            row["ms"] = milliseconds(lambda: run(tile))
            if way == "backward":
                row["kernel_ms"] = milliseconds(lambda: without_product(problem, tile))
        except (RuntimeError, ValueError) as error:
            row["failed"] = str(error)[:300]
        self.rows.append(row)
        shape = shape_of(row["tile"])
        held = "" if tile.held >= plan.ALL else f" held {tile.held}"
        none = float("nan")
        said = f"{row.get('ms', none):8.3f} ms  error {row.get('error', none):.1e}  {row.get('registers')} registers"
        spill = f", {row['local_bytes']} B spilled" if row.get("local_bytes") else ""
        print(f"  {way:8} {shape}{held} {note}: {said}{spill} {row.get('failed', '')}", flush=True)


def shape_of(tile: dict[str, Any]) -> str:
    kinds = "".join(f" {kind}" for kind in ("mail", "tensor", "scatter") if tile[kind])
    return f"C{tile['blocks']} KS{tile['lanes']} JT{tile['units']} R{tile['rows']}{kinds}"


def without_product(problem: Problem, tile: plan.Tile) -> None:
    """The backward pass with the weight gradient left out, for the share of the kernel alone."""
    product = vars(problem.run)["weight_gradient"]
    vars(problem.run)["weight_gradient"] = lambda d, x, x0: d.new_empty(len(d), d.shape[-1], x.shape[-1])
    try:
        problem.backward(tile)
    finally:
        vars(problem.run)["weight_gradient"] = product


def summary(rows: list[dict[str, Any]]) -> None:
    """For each size the best tile each way, the plan's, and cuDNN."""
    print("\n| | H | B | M | plan forward | best | plan backward | best | cuDNN forward / both | plan / cuDNN |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    sizes = dict.fromkeys((r["cell"], r["hidden"], r["batch"], r["models"]) for r in rows if r.get("way"))
    for size in sizes:
        here = [r for r in rows if (r.get("cell"), r.get("hidden"), r.get("batch"), r.get("models")) == size]
        peer = next((r["cudnn"] for r in here if "cudnn" in r), None)
        cells, total = [], 0.0
        for way in ("forward", "backward"):
            timed = [
                r for r in here if r.get("way") == way and "ms" in r and r["note"] in ("plan", "") and r["error"] < 1e-4
            ]
            if not timed:
                cells += ["-", "-"]
                continue
            planned, best = timed[0], min(timed, key=lambda r: r["ms"])
            total += planned["ms"]
            cells += [f"{planned['ms']:.3f}", f"{best['ms']:.3f} ({shape_of(best['tile'])})"]
        compared = f"{peer['forward']:.2f} / {peer['both']:.2f} | {total / peer['both']:.2f}" if peer else "- | -"
        print("|", " | ".join([*map(str, size), *cells, compared]), "|")


def tensor_cores(run: Run, only: list[str], steps: int) -> None:
    """The plan's tiles and those on tensor cores, size by size."""
    for cell, hidden, batch, models in [size for size in LARGE if size[0] in only]:
        if run.over():
            print("no time for the other sizes", flush=True)
            break
        run.alive(f"the reference of {cell} at H={hidden}")
        print(f"{cell} H={hidden} B={batch} M={models}", flush=True)
        problem = Problem(cell, hidden, batch, models, steps)
        tiles = {way: [problem.kernel(way, None).tile, *on_tensor_cores(problem, way)] for way in WAYS}
        run.prepare([problem.kernel(way, tile) for way in WAYS for tile in tiles[way]])
        for way in WAYS:
            for tile in dict.fromkeys(tiles[way]):
                run.measure(problem, way, tile, "plan" if tile is tiles[way][0] else "")
        run.write()
        del problem


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options.add_argument("--seconds", type=float, default=None, help="330, or 35 with --gradient")
    options.add_argument("--only", nargs="+", default=["elman", "gated", "gru", "lstm"])
    options.add_argument("--steps", type=int, default=784)
    options.add_argument("--plan", action="store_true", help="the plan's tiles alone")
    options.add_argument("--tensor", action="store_true", help="the plan's tiles and those on tensor cores alone")
    options.add_argument("--gradient", action="store_true", help="the weight gradient's product alone")
    given = options.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    if given.gradient:
        run = Run(given.out, given.seconds or 35, "gradient-cuda")
        gradient_cuda.measure(run, milliseconds)
        gradient_cuda.table(run.rows)
        return
    run = Run(given.out, given.seconds or 330)
    if given.tensor:
        tensor_cores(run, given.only, given.steps)
        summary(run.rows)
        return
    later: list[tuple[tuple[str, int, int, int], str, plan.Tile]] = []
    for cell, hidden, batch, models in [size for size in SIZES if size[0] in given.only]:
        if run.over(FIRST_PASS):
            print("no time for the other sizes", flush=True)
            break
        run.alive(f"the reference of {cell} at H={hidden}")
        print(f"{cell} H={hidden} B={batch} M={models}", flush=True)
        problem = Problem(cell, hidden, batch, models, given.steps)
        peer = cudnn(cell, hidden, batch, given.steps)
        run.rows.append({"cell": cell, "hidden": hidden, "batch": batch, "models": models, "cudnn": peer})
        print(f"  cuDNN (one model): forward {peer['forward']:.3f}, both {peer['both']:.3f} ms", flush=True)
        tiles = {way: list(dict.fromkeys(neighbours(problem, way))) for way in ("forward", "backward")}
        if given.plan:
            tiles = {way: listed[:1] for way, listed in tiles.items()}
        run.prepare([problem.kernel(way, t) for way, listed in tiles.items() for t in listed if not t.mail])
        for way, listed in tiles.items():
            for n, tile in enumerate(listed):
                if tile.mail:
                    later.append(((cell, hidden, batch, models), way, tile))
                else:
                    run.measure(problem, way, tile, "" if n else "plan")
        run.write()
        del problem
    print("every activation, H=128 B=50", flush=True)
    for activation in ACTIVATIONS:
        if not run.over() and "elman" in given.only:
            problem = Problem("elman", 128, 50, 1, 60, activation)  # few steps: near a kink precisions part for good
            for way in ("forward", "backward"):
                run.measure(problem, way, problem.kernel(way, None).tile, activation)
    run.write()
    print("states exchanged by mail", flush=True)
    for size in dict.fromkeys(size for size, _, _ in later):
        if run.over():
            break
        run.alive(f"the reference of {size}")
        problem = Problem(*size, given.steps)
        mine = [(way, tile) for other, way, tile in later if other == size]
        run.prepare([problem.kernel(way, tile) for way, tile in mine])
        print(" ".join(map(str, size)), flush=True)
        for way, tile in mine:
            run.measure(problem, way, tile)
        run.write()
        del problem
    run.alive("the summary")
    summary(run.rows)
    run.write()


if __name__ == "__main__":
    main()
