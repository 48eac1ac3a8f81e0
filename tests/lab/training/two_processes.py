"""What each of two processes started by torchrun does. Run by test_torchrun.py.

torchrun --nproc-per-node 2 two_processes.py FOLDER
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch

from evenflow.lab.tasks import Adding
from evenflow.lab.training import Run, build, fit, read_config, resume, stopping, train
from evenflow.lab.training.launch import leave
from evenflow.lab.training.loop import Loop
from evenflow.lab.training.seeds import derive

CONFIG = {
    "task": {"name": "adding", "length": 6},
    "system": {"name": "rnn", "hidden_size": 4, "num_layers": 2, "dropout": 0.3, "map": "exponential"},
    "training": {
        "steps": 9,
        "batch_size": 3,
        "lr": 0.05,
        "optimizer": "sgd",
        "momentum": 0.9,
        "nesterov": True,
        "log_every": 2,
        "validate_every": 4,
        "validation_batches": 2,
        "probe_every": 3,
        "checkpoint_every": 4,
        "device": "cpu",
    },
}


class Crash(Exception):
    pass


class Crashing(Adding):
    """Adding, until both processes draw the batch of the seventh update."""

    def batch(self, size, generator, device=None):
        if generator.initial_seed() == derive(0, "train", 6, int(os.environ["RANK"])):
            raise Crash
        return super().batch(size, generator, device)


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    rank = os.environ["RANK"]
    result = train(CONFIG, folder / "alone")
    torch.save(result.model.state_dict(), folder / f"weights-{rank}.pt")

    # A crash in both processes, then a resumption by both.
    task, system, settings = read_config(CONFIG)
    crashing = Crashing(**task.options())
    try:
        fit(build(task, system, 0), crashing, folder=folder / "crashed", **settings.to_dict())
    except Crash:
        pass
    else:
        raise AssertionError("the run did not crash")
    if rank == "0":
        config = (folder / "alone" / "config.toml").read_bytes()
        (folder / "crashed" / "config.toml").write_bytes(config)
    torch.distributed.barrier()
    torch.save(resume(folder / "crashed").model.state_dict(), folder / f"resumed-{rank}.pt")

    # The first one's time is up in the fourth update, the other's never: both stop after it.
    draw = Loop.next_batch

    def late(loop: Loop) -> Any:
        if loop.step == 3 and rank == "0":
            stopping._deadline.set(0.0)
        return draw(loop)

    Loop.next_batch = late
    try:
        with stopping.time_limit(1000):
            train(CONFIG, folder / "timed")
    except stopping.TimeUp:
        (folder / f"stopped-{rank}.txt").write_text(Run(folder / "timed").status["message"] if rank == "0" else "")
    Loop.next_batch = draw
    torch.distributed.barrier()
    resume(folder / "timed")

    # What stops the first process from writing stops both, with the same sentence.
    if rank == "0":
        (folder / "taken").write_text("")
    torch.distributed.barrier()
    try:
        train(CONFIG, folder / "taken" / "run")
    except ValueError as error:
        (folder / f"error-{rank}.txt").write_text(str(error))
    # As at exit. A thread that outlives it may abort the process when the interpreter goes down.
    leave()
    tasks = Path("/proc/self/task")
    names = [(task / "comm").read_text().strip() for task in tasks.iterdir()] if tasks.is_dir() else []
    (folder / f"threads-{rank}.txt").write_text("\n".join(names))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
