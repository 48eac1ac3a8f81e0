"""All Python code of README.md and docs/*.md runs, block after block, and so do the commands, with few updates.

A block that is a fragment has the comment ``<!-- not run: REASON -->`` above it. Pages with tests of their own:
docs/cells.md (tests/test_cells_page.py), docs/research.md (tests/test_research_page.py) and docs/tutorials
(tests/tools/test_tutorials.py).
"""

from __future__ import annotations

import re
import shlex
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import made_data
import numpy as np
import pytest
import torch
from test_docs import FENCED, ROOT, commands

import evenflow
from evenflow import tasks
from evenflow.lab import cli
from evenflow.lab.training import train
from evenflow.models import DataColumn, DataSchema

OWN_TEST = ("cells.md", "research.md")
PAGES = [
    ROOT / "README.md",
    *sorted(page for page in (ROOT / "docs").glob("*.md") if page.name not in OWN_TEST),
    *sorted((ROOT / "docs/concepts").glob("*.md")),
]
NOT_RUN = re.compile(r"<!-- not run: [^\n]+ -->\n+```(?:python|toml)\n.*?^```$", flags=re.MULTILINE | re.DOTALL)
MOST_NOT_RUN = 3
# Code that would take minutes, and what runs in its place.
SHORTER = {"updates=20000, first=100": "updates=240, first=10"}

ADDING = {"name": "adding", "length": 10}
TRAINING = {"steps": 4, "batch_size": 4}
# Options that decide how long a command takes.
QUICK = {
    r"--steps \d+": "--steps 4",
    r"--epochs \d+": "--epochs 1",
    r"--hidden \d+": "--hidden 4",
    r"--seeds \d+": "--seeds 2",
    r"--probe-every \d+": "--probe-every 2",
    r"-t length=\d+": "-t length=10",
    r"--length \d+": "--length 20",
    r"-t horizon=\d+": "-t horizon=4",
    r"--horizon \d+": "--horizon 4",
}
# Commands that only have to parse (tests/test_docs.py), by how they begin.
PARSED_ONLY = {
    "reproduce": "tests/lab/recipes trains every recipe",
    "sweep": "tests/lab/sweep has sweeps",
    "bench": "measures time",
    "demo": "takes three minutes; tests/lab/cli shortens it",
    "data get": "downloads",
    "train my_package": "is a name for a package of the reader's",
}


def with_python(page: Path) -> bool:
    return "\n```python" in page.read_text("utf-8")


def named(pages: list[Path]) -> Any:
    return pytest.mark.parametrize("page", pages, ids=lambda page: str(page.relative_to(ROOT)))


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files and the runs that pages speak of."""
    folder = tmp_path_factory.mktemp("reader")
    made_data.write(folder / "sets")
    motion = "sequence,ax,ay,target\n" + "".join(
        f"w{n},{step + n % 2},{n},{('resting', 'walking')[n % 2]}\n" for n in range(20) for step in range(30)
    )
    for name in ("motion.csv", "new.csv", "test.csv"):
        (folder / name).write_text(motion, "utf-8")
    load = [f"{np.sin(hour / 4):.3f},{hour % 7},{hour % 24}" for hour in range(400)]
    (folder / "load.csv").write_text("\n".join(["load,temp,weekday", *load, ""]), "utf-8")
    (folder / "coming.csv").write_text("temp,weekday\n" + "3,1\n" * 24, "utf-8")
    hours = [f"s{n},c{n % 3},{np.sin(hour / 4 + n):.3f}" for n in range(20) for hour in range(30)]
    (folder / "customers.csv").write_text("\n".join(["series,customer,load", *hours, ""]), "utf-8")
    np.savez(folder / "digits.npz", x=np.zeros((2, 784, 1), np.float32))
    torch.save(torch.nn.GRU(2, 4).state_dict(), folder / "weights.pt")
    own = {"name": "csv", "file": str(folder / "motion.csv")}
    words = {"name": "ptb-words", "length": 5, "data": str(folder / "sets")}
    runs = {"motion-gru": own, "motion-sgornn": own, "adding-rnn": ADDING, "rnn": ADDING, "sgornn": ADDING}
    for name, task in (runs | {"ptb-words-urnn": words}).items():
        config = {"task": task, "system": {"name": name.split("-")[-1], "hidden_size": 4}, "training": TRAINING}
        train(config, folder / "runs" / name, progress=False)
    return folder


@pytest.fixture
def desk(filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of that folder as the current one."""
    shutil.copytree(filled, tmp_path / "desk")
    monkeypatch.chdir(tmp_path / "desk")
    monkeypatch.setenv("EVENFLOW_DATA", str(tmp_path / "desk" / "sets"))
    monkeypatch.setenv("WANDB_MODE", "offline")
    return tmp_path / "desk"


def scope() -> dict[str, Any]:
    """What the text of a page speaks of before its code: windows, a model and a task."""
    torch.manual_seed(0)
    activity = DataColumn("activity", "category", categories=("resting", "walking"))
    return {
        "__name__": "page",
        "windows": np.random.default_rng(0).normal(size=(20, 30, 2)),
        "task": tasks.make("csv:motion.csv"),
        "schema": DataSchema("classification", "last", (DataColumn("ax"), DataColumn("ay")), (activity,)),
        "model": evenflow.SequenceModel(evenflow.create("sgornn", 2, 4), 2),
    }


@named([page for page in PAGES if with_python(page)])
def test_the_python_of_a_page_runs(page: Path, desk: Path) -> None:
    names = scope()
    text = NOT_RUN.sub("", page.read_text("utf-8"))
    for number, code in enumerate(code for language, code in FENCED.findall(text) if language == "python"):
        for long, short in SHORTER.items():
            code = code.replace(long, short)
        try:
            exec(compile(code, f"{page.name}, block {number}", "exec"), names)
        except ModuleNotFoundError as error:
            if (error.name or "evenflow").startswith("evenflow"):
                raise
            pytest.skip(f"{error.name} is not installed")


@named([page for page in PAGES if "\n```toml" in page.read_text("utf-8")])
def test_the_toml_of_a_page_is_toml(page: Path) -> None:
    for code in [code for language, code in FENCED.findall(page.read_text("utf-8")) if language == "toml"]:
        tomllib.loads(code)


def test_fragments_are_rare() -> None:
    assert sum(len(NOT_RUN.findall(page.read_text("utf-8"))) for page in PAGES) <= MOST_NOT_RUN


def test_shortened_code_is_on_a_page() -> None:
    text = "".join(page.read_text("utf-8") for page in PAGES)
    assert [long for long in SHORTER if long not in text] == []


@pytest.mark.slow
@named([page for page in PAGES if commands(page)])
def test_the_commands_of_a_page_run(page: Path, desk: Path) -> None:
    for arguments in commands(page):
        line = shlex.join(arguments)
        if line.startswith(tuple(PARSED_ONLY)) or "--on ray" in line:  # tests/lab/launches starts Ray
            continue
        if arguments[0] in ("train", "compare") and "--steps" not in line and "--epochs" not in line:
            line += " --steps 4"
        for long, short in QUICK.items():
            line = re.sub(long, short, line)
        if arguments[0] == "train" and "--folder" not in line:
            task, system = (re.sub(r".*:|\.csv", "", name) for name in arguments[1:3])
            shutil.rmtree(desk / "runs" / f"{task}-{system}", ignore_errors=True)  # of an earlier command
        with pytest.raises(SystemExit) as left:
            cli.main(shlex.split(line))
        assert left.value.code == 0, line
