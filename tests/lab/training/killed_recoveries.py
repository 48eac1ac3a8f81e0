"""Kill a run that goes back to find lost best weights again, at its moments, and resume it. Run by test_killed.py.

python killed_recoveries.py FOLDER STRIDE
"""

from __future__ import annotations

import importlib
import shutil
import sys
import warnings
from pathlib import Path

import killed_runs
import torch
from killed_runs import CONFIG, assert_same, sitting

from evenflow.lab.training import checkpoint, train
from evenflow.lab.training.loop import Loop

# Checkpoints at 0, 4 and 8, validations at 3, 6 and 8: no version holds the weights of the first best, at 3.
RARE = CONFIG | {"training": CONFIG["training"] | {"checkpoint_every": 4}}


def lose(folder: Path) -> None:
    """A run that was interrupted after five updates and has lost its best weights."""
    update = Loop.update

    def until(loop: Loop) -> None:
        if loop.step == 5:
            raise KeyboardInterrupt
        update(loop)

    Loop.update = until
    try:
        train(RARE, folder, progress=False)
    except KeyboardInterrupt:
        pass
    finally:
        Loop.update = update
    assert checkpoint.versions(folder / "checkpoint") == ["step-000000004", "step-000000000"]
    (folder / "checkpoint" / "best.safetensors").unlink()


def main(folder: Path, stride: int) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for module in ("lightning_fabric", "safetensors.torch", "tomli_w", "evenflow.probes.gradient_flow"):
        importlib.import_module(module)  # once here, so that no forked process has to
    killed_runs.CONFIG = RARE
    assert sitting(folder / "alone", None)
    lose(folder / "lost")
    moment = 0
    while True:
        run = folder / f"killed-{moment}"
        shutil.copytree(folder / "lost", run)
        ended = sitting(run, moment)
        assert ended or sitting(run, None)
        assert_same(folder / "alone", run)
        shutil.rmtree(run)
        if ended:
            break
        moment += stride
    print(f"{moment // stride} moments")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
