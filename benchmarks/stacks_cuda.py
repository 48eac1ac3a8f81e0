"""The recurrence of gated feedback by itself on a GPU, for the stacks that its cost model thinks best.

    python benchmarks/stacks_cuda.py [--out benchmarks/results] [--best 6] [--seconds 60]

T = 784, B = 50, three layers of 128 and 256 units. For every kind of unit and each way: the kernel alone, without the
products around it, in milliseconds, beside what the cost model says (`scan/cuda/stack.py`, whose constants are fitted
to such times). Medians of five, to stacks-cuda.json; places: where the weights of feedback, those on the way up and
those of the units' own gates lie, 0 in registers, 1 in shared memory, 2 in device memory.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from evenflow.scan.cuda import build, gated_feedback, problem, stack

STEPS, BATCH, LAYERS, ROUNDS = 784, 50, 3, 5
SHARES = {"tanh": 1, "gru": 3, "lstm": 4}
CYCLES = 1.98e6  # of a multiprocessor in a millisecond


@contextmanager
def timed() -> Iterator[list[tuple[torch.cuda.Event, torch.cuda.Event]]]:
    """Marks around each launch of a stack, and of nothing else."""
    launch, marks = build.launch, []

    def marked(kernel: Any, *rest: Any) -> None:
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        launch(kernel, *rest)
        end.record()
        if isinstance(kernel, stack.Stack):
            marks.append((begin, end))

    build.launch = marked  # type: ignore[assignment]
    try:
        yield marks
    finally:
        build.launch = launch


def given(hidden: int, shares: int) -> list[Any]:
    """What the operator takes, in its order, the lengths last."""
    wide = shares * hidden + LAYERS

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(1, *shape, device="cuda") / hidden**0.5

    own = draw(LAYERS, (shares - 1) * hidden, hidden) if shares > 1 else None
    feedback, gates = draw(LAYERS, hidden, LAYERS * hidden), draw(LAYERS**2, LAYERS * hidden)
    start = [draw(BATCH, LAYERS * hidden) if shares == 4 or n == 0 else None for n in range(2)]
    above = draw(LAYERS - 1, wide, hidden), draw(LAYERS - 1, wide)
    return [draw(STEPS, BATCH, wide), None, feedback, gates, own, *above, None, *start, None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--best", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=60.0, help="begin nothing after this long")
    options = parser.parse_args()
    until = time.monotonic() + options.seconds
    torch.zeros(1, device="cuda")
    at_once = dict(stack.clusters(problem.machine(torch.device("cuda", 0))))

    def modelled(s: stack.Stack) -> float:
        turns = math.ceil(math.ceil(BATCH / s.rows) / at_once[s.cluster])
        return turns * s.cycles * STEPS / CYCLES

    def best(hidden: int, shares: int, way: str) -> list[stack.Stack]:
        fitting = stack._fitting(hidden, LAYERS, shares, way, False, tuple(at_once), stack.BLOCK_BYTES)
        return sorted((s for s in fitting if s.cycles <= stack.MOST_CYCLES), key=modelled)[: options.best]

    cases = list(itertools.product((128, 256), SHARES, ("forward", "backward")))
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda s: build.code(s, 0), {s for h, unit, way in cases for s in best(h, SHARES[unit], way)}))
    found = []
    for hidden, unit, way in cases:
        inputs = given(hidden, SHARES[unit])
        kept = gated_feedback.forward(*inputs, stack=best(hidden, SHARES[unit], "forward")[0])
        back = (torch.randn_like(kept[0]), None, *kept, *inputs[1:6], *inputs[8:], False)
        for s in best(hidden, SHARES[unit], way):
            if time.monotonic() > until:
                break
            with timed() as marks:
                for _ in range(ROUNDS + 1):
                    if way == "forward":
                        gated_feedback.forward(*inputs, stack=s)
                    else:
                        gated_feedback.backward(*back, stack=s)
            torch.cuda.synchronize()
            took = statistics.median(begin.elapsed_time(end) for begin, end in marks[1:])
            line = {
                "hidden": hidden,
                "unit": unit,
                "way": way,
                "cluster": s.cluster,
                "lanes": s.lanes,
                "units": s.units,
            }
            line |= {"rows": s.rows, "places": list(s.places), **build.resources(s, 0)}
            found.append(line | {"model_ms": round(modelled(s), 3), "ms": round(took, 3)})
            print(*(f"{name} {value}" for name, value in found[-1].items()), flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    results = {"hardware": torch.cuda.get_device_name(), "torch": torch.__version__, "what": __doc__, "results": found}
    (options.out / "stacks-cuda.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
