"""The worked example in examples/sensors runs from data to C, and its page shows its commands and numbers."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import evenflow

SENSORS = Path(__file__).parents[1] / "examples" / "sensors"
PAGE = (SENSORS / "README.md").read_text("utf-8")
FURTHEST = 1e-5  # between probabilities of two programs; single precision leaves 1e-6


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What run.sh prints in a copy of the folder."""
    folder = tmp_path_factory.mktemp("sensors")
    for file in SENSORS.iterdir():
        if file.suffix in (".py", ".sh", ".c") and file.name != "model.c":
            shutil.copy(file, folder)
    programs = folder / "programs"
    programs.mkdir()
    for name, command in {"python": "", "evenflow": "-m evenflow"}.items():
        (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {command} "$@"\n', encoding="utf-8")
        (programs / name).chmod(0o755)
    source = str(Path(evenflow.__file__).parents[1])
    environment = os.environ | {"PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": source}
    done = subprocess.run(["sh", "run.sh"], cwd=folder, capture_output=True, encoding="utf-8", env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def answers(text: str, file: str) -> tuple[int, int, float]:
    """The line of compare.py: windows with the same class, all windows, the largest difference of probabilities."""
    found = re.search(rf"{file}: .* in (\d+) of (\d+) windows, probabilities within (\S+)", text)
    assert found is not None, text
    return int(found[1]), int(found[2]), float(found[3])


def accuracy(text: str) -> float:
    found = re.search(r"^Accuracy (\S+) of 192 predictions", text, flags=re.MULTILINE)
    assert found is not None, text
    return float(found[1])


@pytest.mark.slow
def test_the_page_shows_the_accuracy(printed: str):
    assert accuracy(printed) > 0.9
    assert accuracy(PAGE) == pytest.approx(accuracy(printed), abs=0.03)  # processors round differently


@pytest.mark.slow
def test_onnx_answers_like_predict(printed: str):
    if not all(map(importlib.util.find_spec, ("onnx", "onnxruntime"))):
        pytest.skip("onnx and onnxruntime are not both installed")
    same, windows, furthest = answers(printed, "from_onnx.csv")
    assert same == windows == answers(PAGE, "from_onnx.csv")[0]
    assert furthest < FURTHEST


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no gcc")
def test_c_answers_like_predict(printed: str):
    same, windows, furthest = answers(printed, "from_c.csv")
    assert same == windows == answers(PAGE, "from_c.csv")[0]
    assert furthest < FURTHEST
    assert "Outputs in order: probabilities of climbing, resting, running, walking\n" in printed


def test_the_page_shows_all_commands_of_the_script():
    script = (SENSORS / "run.sh").read_text("utf-8")
    commands = re.findall(r"^ *((?:evenflow|gcc|\./motion|python \w+\.py) ?.*)$", script, flags=re.MULTILINE)
    assert len(commands) >= 10
    assert [command for command in commands if f"\n{command}\n" not in PAGE] == []
