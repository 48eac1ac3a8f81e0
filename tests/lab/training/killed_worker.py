"""One of two processes of `evenflow train`, started by torchrun, which kills itself. Run by test_processes.py.

torchrun --nproc-per-node 2 killed_worker.py FOLDER RANK STEP

Process RANK dies by SIGKILL when it draws the batch of update STEP, the first time that it comes there.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from two_processes import CONFIG

from evenflow.lab import cli
from evenflow.lab.training.loop import Loop


def arguments(folder: Path) -> list[str]:
    """The command line of two_processes.CONFIG."""
    task, system, training = (dict(CONFIG[name]) for name in ("task", "system", "training"))
    words = ["train", task.pop("name"), system.pop("name"), "--hidden", str(system.pop("hidden_size"))]
    words += [word for key, value in task.items() for word in ("-t", f"{key}={value}")]
    words += [word for key, value in system.items() for word in ("-s", f"{key}={value}")]
    for key, value in training.items():
        words += [f"--{key.replace('_', '-')}"] + ([] if value is True else [str(value)])
    return [*words, "--folder", str(folder), "--quiet"]


def main(folder: Path, rank: str, step: int) -> None:
    torch.set_num_threads(1)
    draw, mark = Loop.next_batch, folder.with_name(f"killed-{rank}-{step}")

    def deadly(loop: Loop, part: int = 0) -> Any:
        if os.environ["RANK"] == rank and loop.step == step and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return draw(loop, part)

    Loop.next_batch = deadly
    cli.main(arguments(folder))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
