"""Whole training updates on a GPU: a plain script with cuDNN's RNN, evenflow's systems, and populations of them.

    python benchmarks/training.py [--data FOLDER] [--out benchmarks/results] [--updates 200]

Pixel MNIST (784 steps, batch 50, 128 units) and adding (1,000 steps), Adam, float32 with TF32 off. An update is what
`fit` does: draw a batch, forward, backward, gradient norm, step. The plain script does the same with `torch.nn.RNN`
and no norm. Every system that is trained; gated feedback has three layers, the others one. It is set beside cuDNN's of
three layers twice: with as many units in a layer, and with as many weights. Milliseconds per update, and for a
population per update of all its models; each the median of five rounds of up to 200 updates, or of 0.3 seconds, that
end with one wait for the device.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from evenflow import SequenceModel, systems
from evenflow.lab.tasks import Position, Task, make
from evenflow.lab.training.config import build
from evenflow.lab.training.launch import launch
from evenflow.lab.training.lifecycle import open_run
from evenflow.lab.training.population_step import PopulationStep
from evenflow.lab.training.settings import Settings

BATCH, HIDDEN, ROUNDS, WARM, ROUND = 50, 128, 5, 12, 0.3
SYSTEMS = [name for name in systems() if name != "esn"]  # of that nothing is trained
POPULATIONS = ((1, "sgornn"), (8, "sgornn"), (16, "rnn"), (16, "urnn"), (16, "sgornn"), (32, "sgornn"), (16, "ugru"))


def median(update: Callable[[], object], updates: int) -> float:
    for _ in range(WARM):
        update()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    update()
    torch.cuda.synchronize()
    updates = max(1, min(updates, int(ROUND / (time.perf_counter() - begin))))
    times = []
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(updates):
            update()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - begin) / updates * 1e3)
    return statistics.median(times)


def weights(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def as_wide(task: Task, system: str, layers: int) -> int:
    """The units in each of torch's layers that make as many weights as the system has, to the nearest."""
    goal = weights(build(task, {"name": system, "hidden_size": HIDDEN}, 0))
    with torch.device("meta"):
        missed = {
            size: abs(weights(SequenceModel(nn.RNN(task.input_size, size, layers), task.output_size)) - goal)
            for size in range(HIDDEN, 4 * HIDDEN)
        }
    return min(missed, key=lambda size: missed[size])


def plain(task: Task, hidden: int, layers: int, updates: int) -> float:
    """What a user would write with torch alone."""
    layer = nn.RNN(task.input_size, hidden, layers, nonlinearity="relu")
    with torch.no_grad():
        for n in range(layers):
            getattr(layer, f"weight_hh_l{n}").copy_(torch.eye(hidden))
    model = SequenceModel(layer, task.output_size).cuda()
    optimizer = torch.optim.Adam(model.parameters(), 1e-5)
    generator = torch.Generator("cuda")
    step = 0

    def update() -> None:
        nonlocal step
        generator.manual_seed(step)
        batch = task.training_batch(BATCH, Position(step, 10**6), generator)
        step += 1
        optimizer.zero_grad()
        task.loss(model(batch.inputs)[0], batch.targets).backward()
        optimizer.step()

    return median(update, updates)


def loops(stack: ExitStack, task: Task, system: str, count: int) -> list[Any]:
    options = {"name": system, "hidden_size": HIDDEN}
    made = []
    for seed in range(count):
        settings = Settings.from_dict({"steps": 10**6, "batch_size": BATCH, "lr": 1e-5, "device": "cuda", "seed": seed})
        model = build(task, options, seed)
        made.append(stack.enter_context(open_run(launch(settings), model, task, settings, None, {}, False)))
    return made


def measured(name: str, run: Callable[[], float], found: dict[str, Any]) -> None:
    try:
        found[name] = run()
        print(f"  {name}: {found[name]:.3f} ms", flush=True)
    except RuntimeError as error:
        found[name] = None
        print(f"  {name}: {str(error).splitlines()[0]}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", default=None, help="the data folder")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--updates", type=int, default=200)
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    folder = {} if options.data is None else {"data": options.data}
    results: dict[str, Any] = {"hardware": torch.cuda.get_device_name(), "torch": torch.__version__}
    for task in (make("mnist", **folder), make("adding", length=1000)):
        found: dict[str, Any] = {}
        print(task.name, flush=True)
        wide = as_wide(task, "gated-feedback", 3)
        for hidden, layers in ((HIDDEN, 1), (HIDDEN, 3), (wide, 3)):
            label = "torch.nn.RNN" if layers == 1 else f"torch.nn.RNN, {layers} layers of {hidden}"
            run = partial(plain, task, hidden, layers, options.updates)
            measured(label, run, found)
        for count, system in [(0, system) for system in SYSTEMS] + list(POPULATIONS):
            with ExitStack() as stack:
                made = loops(stack, task, system, max(count, 1))
                update = PopulationStep(made).update if count else made[0].update
                label = f"{count} x {system}" if count else system
                each = max(10, options.updates // max(count, 1))
                measured(label, lambda update=update, each=each: median(update, each), found)
        results[task.name] = found
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "training-cuda.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
