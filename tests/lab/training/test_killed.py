"""Killed with SIGKILL and resumed, a run ends in the same bits as one never interrupted."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from killed_runs import assert_same

from evenflow.lab.training import train

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a POSIX system")

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "src"
ENVIRONMENT = os.environ | {"PYTHONPATH": f"{SOURCE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
# A multiple of neither the moments of an update nor those of a checkpoint, so that kinds of moments mix.
STRIDE = 13
# More than a resumed sitting needs to get to its next checkpoint, less than the whole run.
MOMENTS = 90


def killed_runs(*arguments: object, script: str = "killed_runs.py") -> str:
    command = [sys.executable, str(HERE / script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_killed_once_at_moments_spread_over_the_run(tmp_path):
    assert "moments" in killed_runs(tmp_path, STRIDE, STRIDE // 2)


def test_killed_again_and_again(tmp_path):
    sittings = int(killed_runs(tmp_path, "again", MOMENTS).split()[0])
    assert sittings > 2


def test_killed_while_it_finds_lost_best_weights_again(tmp_path):
    assert int(killed_runs(tmp_path, STRIDE, script="killed_recoveries.py").split()[0]) > 5


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
SITTING = """
import sys, torch
from pathlib import Path
from evenflow.lab.training import resume, train
torch.set_num_threads(1)
config, folder = eval(sys.argv[1]), Path(sys.argv[2])
resume(folder) if (folder / "config.toml").exists() else train(config, folder)
"""


def test_killed_from_outside_at_random_times(tmp_path):
    import torch

    chance, kills = random.Random(0), 0
    folder = tmp_path / "killed"
    latest = folder / "checkpoint" / "latest"
    while True:
        command = [sys.executable, "-c", SITTING, repr(LONGER), str(folder)]
        before = latest.read_text() if latest.exists() else ""
        process = subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)
        while kills < 2 and process.poll() is None:
            if latest.exists() and latest.read_text() != before:
                time.sleep(chance.uniform(0, 0.05))
                process.send_signal(signal.SIGKILL)
                kills += 1
                break
            time.sleep(0.001)
        _, errors = process.communicate()
        assert process.returncode in (0, -signal.SIGKILL), errors
        if process.returncode == 0:
            break
    assert kills > 0
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        train(LONGER, tmp_path / "alone")
    finally:
        torch.set_num_threads(threads)
    assert_same(tmp_path / "alone", folder)
