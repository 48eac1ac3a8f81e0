"""All code of docs/research.md runs: its cell and task, its commands and its Python."""

from __future__ import annotations

import ast
import csv
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import evenflow
from evenflow.lab.training import Run

PAGE = (Path(__file__).parents[1] / "docs" / "research.md").read_text("utf-8")
STUDY, PYTHON = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
COMMANDS = [
    line for block in re.findall(r"```\n(evenflow .*?)```", PAGE, flags=re.DOTALL) for line in block.splitlines()
]


def shortened(text: str) -> str:
    """The same with few updates, for the quick suite."""
    text = re.sub(r"--steps \d+", "--steps 8", text)
    text = re.sub(r"--probe-every \d+", "--probe-every 4", text)
    text = text.replace("--seeds 5", "--seeds 2").replace("range(5)", "range(2)")
    return text.replace('"steps": 400', '"steps": 8')


def walk_through(folder: Path, short: bool) -> None:
    """Do what the page says, in an empty folder."""
    seeds = 2 if short else 5
    (folder / "study.py").write_text(STUDY, encoding="utf-8")
    source = str(Path(evenflow.__file__).parents[1])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([source, str(folder)]), "WANDB_MODE": "offline"}

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, *arguments], cwd=folder, capture_output=True, env=environment, check=False
        )
        assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
        return done.stdout.decode()

    # Each command loads torch, so the short version leaves out those that prepare the study.
    for command in [c for c in COMMANDS if not short or "runs/study" in c]:
        run("-m", *shlex.split(shortened(command) if short else command))
    python = PYTHON if not short else shortened(PYTHON)
    try:
        import wandb  # noqa: F401
    except ImportError:
        python = python.replace(', "logger": "wandb"', "")
    printed = run("-c", python)
    assert printed.startswith("% needs \\usepackage{booktabs}\n")
    table = (folder / "runs/study/report.tex").read_text("utf-8")
    assert re.findall(rf"^(\w+) & {seeds} &", table, flags=re.MULTILINE) == ["leaky", "rnn", "gru"]
    for place in ("study", "python"):
        figure = (folder / "runs" / place / "report-valid-metric.pdf").read_bytes()
        assert b"/FontFile2" in figure
    assert (folder / "runs/study/two.md").read_text("utf-8").count(f"| {seeds} |") == 2
    assert (folder / "runs/study/two-valid-metric.svg").is_file()
    with open(folder / "runs/python/report.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["Seeds"] for row in rows] == [str(seeds)] * 3
    if "wandb" in python:
        assert len(list(folder.glob("runs/python/*/seed-*/wandb/offline-run-*/*.wandb"))) == 3 * seeds


def test_the_cell_and_the_task_are_forty_lines() -> None:
    ast.parse(STUDY)
    assert len(STUDY.splitlines()) <= 40


def test_the_page_in_short(tmp_path: Path) -> None:
    walk_through(tmp_path, short=True)


@pytest.mark.slow
def test_the_page_as_it_stands(tmp_path: Path) -> None:
    walk_through(tmp_path, short=False)
    best = [Run(folder).status["best_metric"] for folder in (tmp_path / "runs/study/rnn-0.01").iterdir()]
    assert min(best) > 0.8  # every seed learns the task; a guess is right half of the time
