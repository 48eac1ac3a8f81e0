"""Killed with SIGKILL and resumed, a run ends in the same bits as one never interrupted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

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


def test_killed_from_outside_at_random_times(tmp_path):
    assert int(killed_runs(tmp_path, "outside", 2).split()[0]) > 0
