"""Kill a sweep again and again and let it go on, each time in a process of its own. Run by test_sweep.py.

    python killed_sweeps.py FOLDER    prints how many sittings it took

A sitting kills itself with SIGKILL some twenty flushed files and updates in, each a little later than the last one. It
is a process apart from the tests' because a fork of one with threads may wait for them for ever.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from evenflow.lab.sweep import Axes, Rules, sweep
from evenflow.lab.training.loop import Loop

TASK = {"name": "adding", "length": 6}
TRAINING = {"batch_size": 4, "validation_batches": 1, "device": "cpu"}
AXES = Axes(
    maps=["exponential", "rotations"],
    cells=["elman", "lstm"],
    activations=["relu", "abs"],
    hidden=[4],
    lrs=[0.01, 1e-9],
)
RULES = Rules(updates=200, first=4, keep=0.5, finalists=2, seeds=2)
MOST = 100  # sittings; with more, none gets further than the one before


def run(folder: Path, axes: Axes = AXES, rules: Rules = RULES, **options: Any) -> Any:
    given: dict[str, Any] = {"task": TASK, "training": TRAINING, "progress": False} | options
    return sweep(given.pop("task"), axes, rules, folder, **given)


def deadly(function: Callable[..., Any], count: list[int], moment: int) -> Callable[..., Any]:
    """The function, at whose call number `moment`, counted together with others, the process dies."""

    def wrapped(*arguments: Any) -> Any:
        count[0] += 1
        if count[0] == moment:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments)

    return wrapped


def sitting(folder: Path, moment: int) -> None:
    count = [0]
    os.fsync, os.replace, Loop.update = (  # type: ignore[method-assign]
        deadly(function, count, moment) for function in (os.fsync, os.replace, Loop.update)
    )
    run(folder)


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    for number in range(MOST):
        child = os.fork()
        if child == 0:
            try:
                sitting(folder, 20 + 7 * number)
                os._exit(0)
            except BaseException:
                import traceback

                traceback.print_exc()
                os._exit(1)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            print(number + 1)
            sys.exit(os.waitstatus_to_exitcode(status))
    sys.exit(f"not done after {MOST} sittings")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
