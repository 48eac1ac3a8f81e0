"""Times the weight gradient's kernel over its patches beside torch's products, in one run on a GPU.

    python benchmarks/gradient_cuda.py [--out benchmarks/results] [--seconds 35]

For every size: torch's product (`addmm`, or batched parts for several models), then each tile with the number of parts
that the plan gives it, and the plan's own choice with half and twice as many. Every result is compared with double
precision before it is timed. Times are medians in milliseconds: of calls one after another as a training step makes
them, and of ten calls in a CUDA graph, where no call waits for the host. To gradient-cuda.json.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from cuda_run import Run, milliseconds
from torch import Tensor

from evenflow.runtime import compile_cuda as build
from evenflow.scan import weight_gradient
from evenflow.scan.cuda import cuda_recurrence as recurrence
from evenflow.scan.cuda import gemm
from evenflow.scan.cuda.gemm_tiles import GEMM_TILES, GemmTile, choose_gemm_tile
from evenflow.scan.cuda.kernels import GemmKernel

CALLS = 10  # of a graph
MOST_ERROR = 1e-6  # against double precision; what is further off is wrong
STEPS = 784
# Name, models, B, L, R, and whether x is one step behind; the most wanted first.
SIZES = [
    ("elman 128", 1, 50, 128, 128, True),
    ("elman 1024", 1, 50, 1024, 1024, True),
    ("16 x elman 128", 16, 50, 128, 128, True),
    ("elman 512", 1, 256, 512, 512, True),
    ("lstm 512", 1, 50, 2048, 512, True),
    ("gru 512", 1, 50, 1024, 512, True),
    ("32 x elman 128", 32, 50, 128, 128, True),
    ("elman 256", 1, 50, 256, 256, True),
    ("elman 64", 1, 50, 64, 64, True),
    ("elman 33", 1, 50, 33, 33, True),
    ("16 x input 2 + 1", 16, 50, 128, 3, False),
    ("input 2 + 1", 1, 50, 128, 3, False),
    ("16 x input 16", 16, 50, 128, 16, False),
    ("elman 100", 1, 50, 100, 100, True),
    ("elman 128, 20 steps", 1, 2, 128, 128, True),
]
LARGE, THIN, HALVES = GEMM_TILES[0], GEMM_TILES[3], GEMM_TILES[4]
CANDIDATES = (
    *GEMM_TILES[:3],
    HALVES,
    replace(HALVES, warps_m=4, warps_n=4),
    replace(HALVES, stages=4),
    replace(LARGE, warps_m=4, warps_n=4),  # twice the warps, half the registers
    replace(LARGE, chain=32),
    replace(LARGE, block_k=16, stages=6),
    replace(LARGE, stages=4),
    replace(GEMM_TILES[1], warps_m=2, warps_n=4),
    replace(GEMM_TILES[1], chain=32),
)
THIN_CANDIDATES = (THIN, replace(THIN, block_k=64, stages=3), replace(THIN, blocks_per_sm=4, stages=2), GEMM_TILES[2])


def in_a_graph(run: Callable[[], Any]) -> float:
    """Milliseconds of one call when the host is not waited for."""
    graph = torch.cuda.CUDAGraph()
    run()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            run()
    return milliseconds(graph.replay) / CALLS


def by_torch(d: Tensor, x: Tensor, x0: Tensor | None) -> Tensor:
    """The product without the kernel."""
    runs, gemm.runs = gemm.runs, lambda *_: False
    try:
        return (
            weight_gradient.summed(d.flatten(1, 2), x.flatten(1, 2))
            if x0 is None
            else recurrence.weight_gradient(d, x, x0)
        )
    finally:
        gemm.runs = runs


def exact(d: Tensor, x: Tensor, x0: Tensor | None) -> Tensor:
    """In double precision, model by model."""
    found = []
    for model in range(len(d)):
        behind = x[model] if x0 is None else torch.cat([x0[model].unsqueeze(0), x[model, :-1]])
        found.append(d[model].flatten(0, 1).double().mT @ behind.flatten(0, 1).double())
    return torch.stack(found)


def timed(
    kind: str,
    run: Callable[[], Tensor],
    about: dict[str, Any],
    expected: Tensor,
    recorder: Run,
) -> dict[str, Any]:
    """One line of the results, also printed."""
    found = {**about, "kind": kind}
    recorder.alive(f"{about['name']} {kind}")
    try:
        found["error"] = ((run().double() - expected).norm() / expected.norm()).item()
        found["ms"] = milliseconds(run)
        found["graph_ms"] = in_a_graph(run)
        said = f"{found['ms']:8.4f} ms, {found['graph_ms']:8.4f} in a graph ({speed_of(found):5.1f} TFLOP/s)"
        print(f"  {kind:44} {said}, error {found['error']:.1e}", flush=True)
    except (RuntimeError, ValueError) as error:
        found["failed"] = str(error)[:300]
        print(f"  {kind:44} {found['failed']}", flush=True)
    return found


def speed_of(row: dict[str, Any]) -> float:
    """TFLOP/s."""
    return 2e-9 * row["models"] * row["rows"] * row["left"] * row["right"] / row["graph_ms"]


def measure(recorder: Run) -> None:
    """All sizes, until the time is over."""
    thin = [GemmKernel(tile, True, by_4) for tile in THIN_CANDIDATES for by_4 in (False, True)]
    unaligned = [GemmKernel(tile, False, False) for tile in CANDIDATES[:3]]
    recorder.prepare([*(GemmKernel(tile) for tile in CANDIDATES), *thin, *unaligned])
    for name, models, batch, left, right, behind in SIZES:
        if recorder.over():
            print("no time for the other sizes", flush=True)
            break
        steps = 20 if "steps" in name else STEPS
        d, x = (torch.randn(models, steps, batch, size, device="cuda") for size in (left, right))
        x0 = torch.randn(models, batch, right, device="cuda") if behind else None
        expected, rows = exact(d, x, x0), steps * batch
        print(f"{name}: M={models} N={rows} L={left} R={right}", flush=True)
        size = {"name": name, "models": models, "rows": rows, "left": left, "right": right}
        recorder.rows.append(timed("torch", partial(by_torch, d, x, x0), size, expected, recorder))
        flat = d.flatten(1, 2), x.flatten(1, 2), x0
        chosen, each = choose_gemm_tile(models, rows, left, right)
        parts = -(-rows // each)
        tries: list[tuple[str, GemmTile, int | None]] = [("plan", chosen, parts)]
        tries += [("parts", chosen, n) for n in (parts // 2, 2 * parts) if 1 <= n <= rows // chosen.block_k]
        unlike = CANDIDATES[:3] if left % 4 else THIN_CANDIDATES if right <= THIN.block_n else CANDIDATES
        tries += [("", tile, None) for tile in unlike if tile != chosen]
        for note, tile, given in tries:
            _, each = choose_gemm_tile(models, rows, left, right, tile=tile, parts=given)
            count = -(-rows // each)
            label = f"{shape_of(tile)} parts {count} {note}"
            kernel = GemmKernel(tile, left % 4 == 0, right % 4 == 0)
            more = {"tile": vars(tile), "parts": count, "note": note, **build.resources(kernel, 0)}
            run = partial(gemm.product, *flat, tile=tile, parts=count)
            recorder.rows.append(timed(label, run, size | more, expected, recorder))
        recorder.write()
        del d, x, x0, flat, expected


def shape_of(tile: dict[str, Any] | GemmTile) -> str:
    p = vars(tile) if isinstance(tile, GemmTile) else tile
    return f"{p['block_m']}x{p['block_n']} {p['warps_m']}x{p['warps_n']}w {p['block_k']}r {p['stages']}s c{p['chain']}"


def table(rows: list[dict[str, Any]]) -> None:
    """For each size torch, the plan's choice and the fastest, in a graph."""
    print("\n| | M | N | L | R | torch | plan | fastest | TFLOP/s | error | torch / plan |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for name in dict.fromkeys(r["name"] for r in rows if "name" in r):
        here = [r for r in rows if r.get("name") == name and "graph_ms" in r]
        peer = next((r for r in here if r["kind"] == "torch"), None)
        planned = next((r for r in here if r.get("note") == "plan"), None)
        if peer is None or planned is None:
            continue
        right_ones = [r for r in here if "tile" in r and r["error"] < MOST_ERROR]
        best = min(right_ones, key=lambda r: r["graph_ms"], default=planned)
        m, n, left, right = (peer[k] for k in ("models", "rows", "left", "right"))
        shape = f"{shape_of(best['tile'])} parts {best['parts']}"
        times = f"{peer['graph_ms']:.4f} | {planned['graph_ms']:.4f} | {best['graph_ms']:.4f} ({shape})"
        ratio = peer["graph_ms"] / planned["graph_ms"]
        rest = f"{speed_of(best):.1f} | {planned['error']:.1e} | {ratio:.2f}"
        print(f"| {name} | {m} | {n} | {left} | {right} | {times} | {rest} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--seconds", type=float, default=35.0)
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    run = Run(options.out, options.seconds, "gradient-cuda")
    measure(run)
    table(run.rows)


if __name__ == "__main__":
    main()
