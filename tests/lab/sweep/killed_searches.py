"""Kill a search with Optuna again and again, or run several of them at once. Run by test_search.py.

python killed_searches.py FOLDER            kills itself with SIGKILL, prints how many sittings it took
python killed_searches.py FOLDER together   two processes on one study
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
from killed_sweeps import MOST, deadly

from evenflow.lab.sweep import Axes, Range, SearchRules, SearchSpace, search
from evenflow.lab.training.loop import Loop

TASK = {"name": "adding", "length": 6}
TRAINING = {"batch_size": 4, "validation_batches": 1, "device": "cpu"}
AXES = Axes(maps=["svd", "exponential"], cells=["elman"], activations=["relu"], hidden=[4])
SPACE = SearchSpace(AXES, {"lr": Range.read("lr", "1e-4:1e-1"), "margin": Range.read("margin", "0.01:0.5")})
RULES = SearchRules(updates=140, each=16, first=4, keep=0.5)


def run(folder: Path, space: SearchSpace = SPACE, rules: SearchRules = RULES, **options: Any) -> Any:
    given: dict[str, Any] = {"task": TASK, "training": TRAINING, "progress": False} | options
    return search(given.pop("task"), space, rules, folder, **given)


def sitting(folder: Path, moment: int) -> None:
    count = [0]
    os.fsync, os.replace, Loop.update = (  # type: ignore[method-assign]
        deadly(function, count, moment) for function in (os.fsync, os.replace, Loop.update)
    )
    run(folder)


def child(work: Any) -> int:
    """The process of this work."""
    number = os.fork()
    if number:
        return number
    try:
        work()
        os._exit(0)
    except BaseException:
        import traceback

        traceback.print_exc()
        os._exit(1)


def main(folder: Path, together: bool) -> None:
    torch.set_num_threads(1)
    if together:
        children = [child(lambda: run(folder)) for _ in range(2)]
        sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(each, 0)[1]) for each in children))
    for number in range(MOST):
        _, status = os.waitpid(child(lambda moment=40 + 60 * number: sitting(folder, moment)), 0)
        if not os.WIFSIGNALED(status):
            print(number + 1)
            sys.exit(os.waitstatus_to_exitcode(status))
    sys.exit(f"not done after {MOST} sittings")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:] == ["together"])
