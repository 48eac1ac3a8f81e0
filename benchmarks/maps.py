"""Forward and backward of every map beside torch's own orthogonal maps and geotorch's, in one run.

    python benchmarks/maps.py [--device cuda] [--quick] [--sizes 128 256] [--threads 2]

Prints one table of milliseconds and writes it, with the hardware's name, to ``benchmarks/results/maps-<device>.json``.
Each entry is the median over rounds; in every round each map is timed in turn, so that a slow moment of the machine
falls on all of them. `ratio` is the time over that of the fastest peer at the same map: below 1 is faster.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import orthogonal as torch_orthogonal

from evenflow.maps import Map, attach, make
from evenflow.runtime.cpu_info import cpu_name

SIZES = (128, 256, 512, 1024)
# Shown name, map, its options, and which peers compute the same.
MAPS: list[tuple[str, str, dict[str, object], str]] = [
    ("exponential", "exponential", {}, "matrix_exp"),
    ("exponential, plumbley", "exponential", {"gradient": "plumbley"}, "matrix_exp"),
    ("exponential, eigen", "exponential", {"method": "eigen"}, ""),
    ("cayley", "cayley", {}, "cayley"),
    ("householder(16)", "householder", {"reflectors": 16}, ""),
    ("householder(n)", "householder", {}, "householder"),
    ("svd(16, 16)", "svd", {"reflectors": 16}, ""),
    ("svd(n, n)", "svd", {}, ""),
    ("factorized", "factorized", {}, ""),
    ("rotations", "rotations", {}, ""),
    ("unitary, exponential", "unitary", {}, ""),
    ("unitary, cayley", "unitary", {"method": "cayley"}, ""),
    ("unitary_product", "unitary_product", {}, ""),
]
# The goals for an H200, in milliseconds: at n = 128, at n = 512, and at n = 512 for the structured maps.
GOALS = {128: 0.25, 512: 1.0}
STRUCTURED = {"householder(16)", "svd(16, 16)", "rotations"}
STRUCTURED_GOAL = 0.15


def layer(n: int, device: str) -> nn.Linear:
    return nn.Linear(n, n, bias=False, device=device)


class Copied(Map):
    """The numbers themselves, copied: what any map costs in Python and autograd before it computes anything."""

    @property
    def raw_shapes(self) -> tuple[tuple[int, ...], ...]:
        return ((self.rows, self.columns),)

    def forward(self, *raw: Tensor) -> Tensor:
        return raw[0].clone()

    def start(self, generator: torch.Generator | None = None) -> tuple[Tensor, ...]:
        return (torch.zeros(self.rows, self.columns),)


def ours(n: int, device: str) -> dict[str, nn.Module]:
    source = torch.Generator().manual_seed(0)
    floor: dict[str, nn.Module] = {"(a copy, the floor)": attach(layer(n, device), "weight", Copied(n))}
    return floor | {
        shown: attach(layer(n, device), "weight", make(name, n, **options), generator=source)
        for shown, name, options, _ in MAPS
    }


def peers(n: int, device: str) -> dict[str, nn.Module]:
    found: dict[str, nn.Module] = {}
    for name in ("matrix_exp", "cayley", "householder"):
        found[f"torch {name}"] = torch_orthogonal(layer(n, device), orthogonal_map=name)
    try:
        import geotorch
    except ImportError:
        return found
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, short in (("expm", "matrix_exp"), ("cayley", "cayley")):
            part = layer(n, device)
            geotorch.orthogonal(part, "weight", triv=name)
            found[f"geotorch {short}"] = part
    return found


def once(module: nn.Module, pull: Tensor) -> Callable[[], None]:
    """The map itself, without the property of `parametrize` around it, which costs every map the same."""
    chain = module.parametrizations.weight  # type: ignore[union-attr]
    raw = list(chain.parameters(recurse=False))  # type: ignore[union-attr]
    step = chain[0]  # type: ignore[index]
    pull = pull.to(step(*raw).dtype)

    def run() -> None:
        for p in raw:
            p.grad = None
        step(*raw).backward(pull)

    return run


def clock(run: Callable[[], None], device: str, row: int = 1) -> float:
    """Milliseconds of one call in a row of them; on CUDA the launches of a row overlap, as they do in training."""
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    wait()
    begin = time.perf_counter()
    for _ in range(row):
        run()
    wait()
    return 1e3 * (time.perf_counter() - begin) / row


def measure(n: int, device: str, rounds: int) -> dict[str, float]:
    pull = torch.randn(n, n, generator=torch.Generator().manual_seed(1)).to(device)
    runs = {name: once(module, pull) for name, module in {**ours(n, device), **peers(n, device)}.items()}
    times: dict[str, list[float]] = {name: [] for name in runs}
    rows: dict[str, int] = {}
    for name, run in runs.items():
        clock(run, device, 6)  # the first calls also load what they need, and record it on a GPU
        times[name].append(clock(run, device))
        rows[name] = 1 if device == "cpu" else max(3, min(200, int(50 / times[name][0])))
    for _ in range(rounds):
        for name, run in runs.items():
            # Nothing above a second is worth more than three rounds.
            if times[name][0] < 1000 or len(times[name]) < 3:
                times[name].append(clock(run, device, rows[name]))
    return {name: statistics.median(values[1:] or values) for name, values in times.items()}


def ratios(times: dict[str, float]) -> dict[str, float]:
    """Each map's time over its fastest peer's."""
    out = {}
    for shown, _, _, peer in MAPS:
        same = [times[name] for name in (f"torch {peer}", f"geotorch {peer}") if name in times]
        if same:
            out[shown] = times[shown] / min(same)
    return out


def hardware(device: str) -> str:
    if device != "cpu":
        return torch.cuda.get_device_name()
    return f"{cpu_name()}, {torch.get_num_threads()} threads"


def table(results: dict[int, dict[str, float]]) -> str:
    sizes = list(results)
    head = f"{'forward + backward, ms':28}" + "".join(f"{f'n = {n}':>10}{'ratio':>7}" for n in sizes)
    lines = [head, "-" * len(head)]
    for name in results[sizes[0]]:
        line = f"{name:28}"
        for n in sizes:
            ratio = ratios(results[n]).get(name)
            line += f"{results[n][name]:10.3f}" + (f"{ratio:7.2f}" if ratio is not None else f"{'':7}")
        lines.append(line)
    return "\n".join(lines)


def verdicts(results: dict[int, dict[str, float]], device: str) -> list[str]:
    lines = []
    for n, times in results.items():
        slower = {name: f"{ratio:.2f}" for name, ratio in ratios(times).items() if ratio > 1}
        lines.append(
            f"n = {n}: " + (f"slower than the best peer: {slower}" if slower else "no map slower than its peers")
        )
        if device != "cpu":
            goals = {name: STRUCTURED_GOAL if n == 512 and name in STRUCTURED else GOALS.get(n) for name, *_ in MAPS}
            over = {name: f"{times[name]:.3f} > {goal}" for name, goal in goals.items() if goal and times[name] > goal}
            lines.append(f"n = {n}: " + (f"over the goal: {over}" if over else "every goal met"))
    if 512 in results:
        share = results[512]["householder(n)"] / results[512]["householder(16)"]
        lines.append(f"n = 512: householder(16) is {share:.1f} times cheaper than householder(512)")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--quick", action="store_true", help="three rounds; n = 128 and 512 unless --sizes is given")
    parser.add_argument("--sizes", type=int, nargs="+", default=None)
    parser.add_argument("--threads", type=int, default=None, help="of the CPU; torch's own choice if not given")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.manual_seed(0)  # for the peers, which draw from torch's own generator
    sizes = options.sizes or ((128, 512) if options.quick else SIZES)
    results = {}
    for n in sizes:
        results[n] = measure(n, options.device, 3 if options.quick else 15)
        print(f"n = {n} done", flush=True)
    print(f"\n{hardware(options.device)}, torch {torch.__version__}, float32\n")
    print(table(results), "\n")
    print("\n".join(verdicts(results, options.device)))
    folder = Path(__file__).parent / "results"
    folder.mkdir(exist_ok=True)
    record = {
        "hardware": hardware(options.device),
        "torch": torch.__version__,
        "milliseconds": results,
        "ratio_to_the_fastest_peer": {n: ratios(times) for n, times in results.items()},
    }
    path = folder / f"maps-{options.device}.json"
    path.write_text(json.dumps(record, indent=1) + "\n")
    print(f"\nwritten to {path}")


if __name__ == "__main__":
    main()
