"""Hessian-free learning beside gradient descent of the same cost, on temporal order over 100 steps.

    python benchmarks/hessian_free.py [--places anywhere] [--length 100] [--radius 1.1] [--seeds 0 1] [--threads 1]

The two symbols stand where Hochreiter and Schmidhuber put them, in the second tenth of the sequence and in its sixth,
so that 40 steps at least lie between the last of them and the answer. (``--places anywhere`` draws them from the whole
sequence, as Galvan does and the task of evenflow: some sequences are then easy, and teach the others.)

All methods start from the same weights. Hessian-free stops when it has solved the task; then gradient descent and Adam,
clipped, at several rates each, may pass as many sequences as it did. A sequence's gradient counts 1, a forward pass
alone 1/3, a Gauss-Newton product 2. Prints a table and writes it to ``benchmarks/results/hessian-free-cpu.json``. About
nine minutes on one core.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from evenflow import RNN, SequenceModel
from evenflow.lab import tasks
from evenflow.lab.tasks.synthetic import Draw
from evenflow.optim import HessianFree
from evenflow.runtime.cpu_info import cpu_name

UNITS = 50
GRADIENT_BATCH, CURVATURE_BATCH = 1000, 250
ITERATIONS, STRUCTURAL, MOST_STEPS = 60, 0.03, 80
SGD_BATCH, CLIP = 100, 1.0
LRS = {"sgd": (0.3, 0.1, 0.03), "momentum": (0.1, 0.03), "adam": (0.003, 0.001)}
LOOK_EVERY = 250  # updates between two looks at the held-out sequences


class EarlySymbols(tasks.TemporalOrder):
    """Temporal order with its two symbols in steps [T/10, 2T/10) and [5T/10, 6T/10)."""

    def batch(self, size: int, generator: torch.Generator, device: torch.device | str | None = None) -> tasks.Batch:
        draw, tenth = Draw(size, generator), self.length // 10
        places = torch.stack([draw.whole(first * tenth, (first + 1) * tenth - 1) for first in (1, 5)])
        special = draw.below(2, 2)
        classes = draw.below(4, self.length).scatter_(0, places, 4 + special)
        return tasks.Batch(F.one_hot(classes, self.input_size).float(), 2 * special[0] + special[1])


class Trial:
    """A model, the batches it sees and the sequences it is judged by."""

    def __init__(self, task: tasks.Task, seed: int, radius: float) -> None:
        self.task = task
        source = torch.Generator().manual_seed(seed)
        layer = RNN(task.input_size, UNITS, map="free", init="spectral_radius", radius=radius, generator=source)
        self.model = SequenceModel(layer, task.output_size, readout=task.readout, generator=source)
        self.generator = torch.Generator().manual_seed(seed + 1000)
        self.held_out = task.batch(2000, torch.Generator().manual_seed(12345))
        self.cost, self.began, self.best = 0.0, time.perf_counter(), (0.0, -float("inf"))

    def batch(self, size: int) -> tasks.Batch:
        return self.task.batch(size, self.generator)

    def loss(self, batch: tasks.Batch) -> torch.Tensor:
        return self.task.loss(self.model(batch.inputs, lengths=batch.lengths)[0], batch.targets)

    @torch.no_grad()
    def look(self) -> bool:
        """Judge the model; whether it has solved the task."""
        outputs = self.model(self.held_out.inputs, lengths=self.held_out.lengths)[0]
        metric = float(self.task.metric(outputs, self.held_out.targets))
        self.best = max(self.best, (metric, -float(self.task.loss(outputs, self.held_out.targets))))
        return self.task.solved(metric)

    def record(self, steps: int, solved: bool) -> dict[str, Any]:
        return {
            "solved": solved,
            "best_metric": round(self.best[0], 4),
            "updates": steps,
            "gradients": round(self.cost),
            "seconds": round(time.perf_counter() - self.began, 1),
        }


def hessian_free(task: tasks.Task, seed: int, radius: float) -> dict[str, Any]:
    trial = Trial(task, seed, radius)
    optimizer = HessianFree(trial.model, task.loss, structural=STRUCTURAL, iterations=ITERATIONS)
    solved, steps = False, 0
    while steps < MOST_STEPS and not solved:
        done = optimizer.step(trial.batch(GRADIENT_BATCH), trial.batch(CURVATURE_BATCH))
        trial.cost += GRADIENT_BATCH * (1 + done.evaluations / 3) + CURVATURE_BATCH * 2 * done.products
        steps, solved = steps + 1, trial.look()
    return trial.record(steps, solved)


def first_order(task: tasks.Task, seed: int, radius: float, kind: str, lr: float, budget: float) -> dict[str, Any]:
    trial = Trial(task, seed, radius)
    parameters = list(trial.model.parameters())
    if kind == "adam":
        optimizer: torch.optim.Optimizer = torch.optim.Adam(parameters, lr=lr)
    else:
        optimizer = torch.optim.SGD(parameters, lr=lr, momentum=0.9 if kind == "momentum" else 0.0)
    solved, steps = False, 0
    while trial.cost < budget and not solved:
        optimizer.zero_grad()
        trial.loss(trial.batch(SGD_BATCH)).backward()
        torch.nn.utils.clip_grad_norm_(parameters, CLIP)
        optimizer.step()
        trial.cost += SGD_BATCH
        steps += 1
        if steps % LOOK_EVERY == 0 or trial.cost >= budget:
            solved = trial.look()
    return trial.record(steps, solved)


def hardware() -> str:
    return f"{cpu_name()}, {torch.get_num_threads()} threads"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--places", default="early", choices=["early", "anywhere"], help="of the two symbols")
    parser.add_argument("--length", type=int, default=100)
    parser.add_argument("--radius", type=float, default=1.1, help="spectral radius of the first recurrent matrix")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="of the starts")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.set_flush_denormal(True)
    task = (EarlySymbols if options.places == "early" else tasks.TemporalOrder)(length=options.length)
    print(f"{hardware()}, torch {torch.__version__}; {UNITS} tanh units, spectral radius {options.radius:g}")
    print(f"{task.name}, symbols {options.places}, T = {options.length}\n")
    head = f"{'seed':>4} {'method':22}{'solved':>8}{'accuracy':>10}{'updates':>9}{'gradients':>11}{'seconds':>9}"
    print(head + "\n" + "-" * len(head))
    rows = []
    for seed in options.seeds:
        budget = 0.0
        methods = [("hessian-free", 0.0), *((kind, lr) for kind, lrs in LRS.items() for lr in lrs)]
        for kind, lr in methods:
            if kind == "hessian-free":
                row = hessian_free(task, seed, options.radius)
                budget = row["gradients"]
            else:
                row = first_order(task, seed, options.radius, kind, lr, budget)
            name = kind if not lr else f"{kind}, lr {lr:g}"
            rows.append({"seed": seed, "method": name, **row})
            print(
                f"{seed:>4} {name:22}{'yes' if row['solved'] else 'no':>8}{row['best_metric']:10.3f}{row['updates']:9d}"
                f"{row['gradients']:11d}{row['seconds']:9.1f}",
                flush=True,
            )
    folder = Path(__file__).parent / "results"
    folder.mkdir(exist_ok=True)
    record = {
        "hardware": hardware(),
        "torch": torch.__version__,
        "task": task.name,
        "places": options.places,
        "length": options.length,
        "units": UNITS,
        "radius": options.radius,
        "rows": rows,
    }
    path = folder / "hessian-free-cpu.json"
    path.write_text(json.dumps(record, indent=1) + "\n")
    print(f"\nwritten to {path}")


if __name__ == "__main__":
    main()
