"""Kill a run at every interesting moment, resume it, and compare it with one left alone. Run by test_killed.py.

A moment is the start of an update, either side of a flush, a rename or a removal, or the middle of writing a file or a
row. Every run is a forked process of its own that kills itself with SIGKILL at its moment, so that nothing of it lives
on but the folder.

    python killed_runs.py FOLDER STRIDE OFFSET    every STRIDE-th moment from OFFSET on, one kill each
    python killed_runs.py FOLDER again COUNT      killed COUNT moments into each sitting, until it is done
    python killed_runs.py FOLDER outside COUNT    killed by another process COUNT times, shortly after a checkpoint
"""

from __future__ import annotations

import importlib
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

import numpy as np
import torch

from evenflow.lab.training import Run, atomic, checkpoint, resume, train
from evenflow.lab.training.loop import Loop
from evenflow.lab.training.run_writer import RunWriter

CONFIG = {
    "task": {"name": "adding", "length": 6},
    "system": {"name": "urnn", "hidden_size": 4, "num_layers": 2, "dropout": 0.3},
    "training": {
        "steps": 8,
        "batch_size": 2,
        "lr": 0.01,
        "schedule": "linear",
        "log_every": 2,
        "validate_every": 3,
        "validation_batches": 1,
        "probe_every": 2,
        "checkpoint_every": 3,
        "device": "cpu",
    },
}

LONGER = {
    "task": {"name": "copy", "length": 5},
    "system": {"name": "rnn", "hidden_size": 6, "num_layers": 2, "dropout": 0.3},
    "training": {
        "steps": 150,
        "batch_size": 2,
        "validate_every": 40,
        "validation_batches": 1,
        "checkpoint_every": 10,
        "probe_every": 30,
        "device": "cpu",
    },
}


class Moments:
    """Counts the moments of this process and ends it at one of them."""

    def __init__(self, last: int | None) -> None:
        self.count, self.last = 0, last

    def pass_by(self) -> None:
        if self.count == self.last:
            os.kill(os.getpid(), signal.SIGKILL)
        self.count += 1

    def watch(self) -> None:
        for owner, name in ((os, "fsync"), (os, "replace"), (os, "rename"), (shutil, "rmtree"), (Loop, "update")):
            setattr(owner, name, self._around(getattr(owner, name)))
        write_flushed, append = atomic.write_flushed, RunWriter.append

        def half_then_whole(path: Path, content: bytes) -> None:
            self.pass_by()
            path.write_bytes(content[: len(content) // 2])
            self.pass_by()
            write_flushed(path, content)

        def half_a_row(writer: RunWriter, line: str) -> None:
            writer._metrics.write(line[: len(line) // 2].encode())
            writer._metrics.flush()
            self.pass_by()
            append(writer, line[len(line) // 2 :])

        atomic.write_flushed, RunWriter.append = half_then_whole, half_a_row

    def _around(self, function):
        def watched(*args, **kwargs):
            self.pass_by()
            result = function(*args, **kwargs)
            self.pass_by()
            return result

        return watched


def start(folder: Path, last: int | None, config: dict) -> int:
    """Begin or resume the run in a forked process; its number."""
    child = os.fork()
    if child == 0:
        try:
            moments = Moments(last)
            moments.watch()
            if (folder / "config.toml").exists():
                resume(folder, progress=False)
            else:
                train(config, folder, progress=False)
            folder.with_suffix(".moments").write_text(str(moments.count))
            os._exit(0)
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(1)
    return child


def sitting(folder: Path, last: int | None) -> bool:
    """Begin or resume the run in a forked process; whether it came to its end."""
    return came_to_its_end(folder, start(folder, last, CONFIG))


def came_to_its_end(folder: Path, child: int) -> bool:
    """Wait for a sitting; whether it was not killed."""
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return False
    assert os.waitstatus_to_exitcode(status) == 0, f"a sitting of {folder.name} failed"
    return True


def assert_same(one: Path, other: Path) -> None:
    """Weights, optimiser, metrics except seconds, probes, best weights and status are equal to the last bit."""
    states = []
    for folder in (one, other):
        version = checkpoint.find(folder / "checkpoint")
        saved = checkpoint.load(folder / "checkpoint", version)
        # Seconds are the one thing that may differ.
        saved.state.pop("seconds")
        best = (folder / "checkpoint" / "best.safetensors").read_bytes()
        states.append((version, saved.step, saved.weights, saved.state, best))
    same(states[0], states[1], "checkpoint")
    first, second = Run(one), Run(other)
    assert first.status == second.status, (first.status, second.status)
    lines = [[line.rsplit(",", 1)[0] for line in run.metric_lines()] for run in (first, second)]
    assert lines[0] == lines[1], lines
    assert (one / "probes.npz").read_bytes() == (other / "probes.npz").read_bytes()
    assert (one / "config.toml").read_bytes() == (other / "config.toml").read_bytes()
    kept = [sorted(path.name for path in folder.iterdir()) for folder in (one, other)]
    assert kept[0] == kept[1], kept


def same(one, other, where: str) -> None:
    assert type(one) is type(other), where
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype, where
        assert np.array_equal(one.numpy(), other.numpy(), equal_nan=True), where
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for key in one:
            same(one[key], other[key], f"{where}/{key}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), where
        for index, (a, b) in enumerate(zip(one, other, strict=True)):
            same(a, b, f"{where}/{index}")
    else:
        assert one == other or (one != one and other != other), where


def kill_from_outside(folder: Path, kills: int) -> int:
    """Kill a run so many times, each a random moment after a checkpoint of the sitting, then let it end."""
    chance, killed = random.Random(0), 0
    latest = folder / "checkpoint" / "latest"
    while True:
        before = latest.read_text() if latest.exists() else ""
        child = start(folder, None, LONGER)
        while killed < kills and os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            if latest.exists() and latest.read_text() != before:
                time.sleep(chance.uniform(0, 0.05))
                os.kill(child, signal.SIGKILL)
                killed += 1
                break
            time.sleep(0.001)
        if came_to_its_end(folder, child):
            return killed


def main(folder: Path, mode: str, number: int) -> None:
    torch.set_num_threads(1)
    for module in ("lightning_fabric", "safetensors.torch", "tomli_w", "evenflow.probes.gradient_flow"):
        importlib.import_module(module)  # once here, so that no forked process has to
    alone = folder / "alone"
    if mode == "outside":
        killed = kill_from_outside(folder / "killed", number)
        assert came_to_its_end(alone, start(alone, None, LONGER))
        assert_same(alone, folder / "killed")
        print(f"{killed} kills")
        return
    assert sitting(alone, None)
    total = int((folder / "alone.moments").read_text())
    if mode == "again":
        sittings = 1
        while not sitting(folder / "again", number):
            sittings += 1
            assert sittings < 100, "no sitting gets further than the one before"
        assert_same(alone, folder / "again")
        print(f"{sittings} sittings")
        return
    tried = range(number, total, int(mode))
    for moment in tried:
        run = folder / f"killed-{moment}"
        assert not sitting(run, moment), f"moment {moment} of {total} was not reached"
        assert sitting(run, None)
        assert_same(alone, run)
        shutil.rmtree(run)
    print(f"{len(tried)} of {total} moments")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
