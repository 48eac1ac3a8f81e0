"""A step of geodesic descent beside the same step with an explicit inverse, in one run.

    python benchmarks/geodesic.py [--device cuda] [--quick] [--sizes 128 512] [--threads 1]

The naive step is the equation as it stands, ``M ← (I + η/2 A)⁻¹ ((I - η/2 A) M)`` with ``A = G Mᵀ - M Gᵀ``. Ours is
`GeodesicSGD.step`, its share of rounding taken back included. Square matrices at a small, a middling and a large
``η|A|`` (a series of one or two products, or an elimination), and narrow ones, which never form A. Prints milliseconds
and ratios and writes them to ``benchmarks/results/geodesic-<device>.json``; a ratio of 0.5 is the goal.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from evenflow import init
from evenflow.optim import GeodesicAdam, GeodesicSGD
from evenflow.runtime.cpu_info import cpu_name

SIZES = (128, 256, 512, 1024)
GOAL = 0.5
# Length η|A|/2 of a step, in the largest row sum; a training run with the document's rates is at the first.
LENGTHS = {"small": 1e-6, "middling": 5e-3, "large": 0.5}


def naive(M: Tensor, G: Tensor, lr: float) -> Callable[[], None]:
    I = torch.eye(M.shape[0], device=M.device)

    def run() -> None:
        A = G @ M.mT - M @ G.mT
        M.copy_(torch.linalg.inv(I + lr / 2 * A) @ ((I - lr / 2 * A) @ M))

    return run


def ours(M: Tensor, G: Tensor, lr: float, kind: str = "sgd") -> Callable[[], None]:
    p = nn.Parameter(M)
    p.grad = G
    options = {"momentum": 0.9} if kind == "momentum" else {}
    return (GeodesicAdam([p], lr=lr) if kind == "adam" else GeodesicSGD([p], lr=lr, **options)).step  # type: ignore[return-value]


def clock(run: Callable[[], None], device: str, row: int) -> float:
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    wait()
    begin = time.perf_counter()
    for _ in range(row):
        run()
    wait()
    return 1e3 * (time.perf_counter() - begin) / row


def measure(n: int, p: int, device: str, rounds: int) -> dict[str, float]:
    source = torch.Generator().manual_seed(0)
    M = init.orthogonal(n, p, generator=source).to(device)
    G = torch.randn(n, p, generator=source).to(device)
    A = G @ M.mT - M @ G.mT
    rates = {name: 2 * length / float(A.abs().sum(-1).max()) for name, length in LENGTHS.items()}
    runs = {"naive": naive(M.clone(), G, rates["small"])}
    for name in LENGTHS if n == p else ["small"]:
        runs[name] = ours(M.clone(), G, rates[name])
    runs["momentum, small"] = ours(M.clone(), G, rates["small"], "momentum")
    runs["adam"] = ours(M.clone(), G, 1e-6, "adam")
    times: dict[str, list[float]] = {name: [] for name in runs}
    row = 32 if n <= 512 else 8  # as many steps as lie between two that take rounding back
    for run in runs.values():
        clock(run, device, 2)
    for _ in range(rounds):
        for name, run in runs.items():
            times[name].append(clock(run, device, row))
    return {name: statistics.median(values) for name, values in times.items()}


def hardware(device: str) -> str:
    if device != "cpu":
        return torch.cuda.get_device_name()
    return f"{cpu_name()}, {torch.get_num_threads()} threads"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--quick", action="store_true", help="three rounds, n = 512 alone unless --sizes is given")
    parser.add_argument("--sizes", type=int, nargs="+", default=None)
    parser.add_argument("--threads", type=int, default=None, help="of the CPU; torch's own choice if not given")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    sizes = options.sizes or ((512,) if options.quick else SIZES)
    results = {}
    for n in sizes:
        for p in (n, max(1, n // 16)):
            results[f"{n} x {p}"] = measure(n, p, options.device, 3 if options.quick else 9)
    print(f"{hardware(options.device)}, torch {torch.__version__}, float32; milliseconds a step (ratio to naive)\n")
    for shape, times in results.items():
        shown = [f"{name} {ms:.3f} ({ms / times['naive']:.2f})" for name, ms in times.items()]
        print(f"{shape:>12}:  " + "  ".join(shown))
    for shape, times in results.items():
        over = [name for name in times if name != "naive" and times[name] > GOAL * times["naive"]]
        print(f"{shape:>12}:  " + (f"above {GOAL} of the naive step: {', '.join(over)}" if over else "goal met"))
    folder = Path(__file__).parent / "results"
    folder.mkdir(exist_ok=True)
    record = {
        "hardware": hardware(options.device),
        "torch": torch.__version__,
        "milliseconds": results,
        "ratio_to_naive": {
            shape: {name: ms / times["naive"] for name, ms in times.items()} for shape, times in results.items()
        },
    }
    path = folder / f"geodesic-{options.device}.json"
    path.write_text(json.dumps(record, indent=1) + "\n")
    print(f"\nwritten to {path}")


if __name__ == "__main__":
    main()
