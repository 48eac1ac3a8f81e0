"""Systems and tasks of the user's own: from a module in the current folder, and from packages that announce them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import evenflow
from evenflow.lab import cli
from evenflow.lab.training import Run, resume, train
from evenflow.systems import System, create

MODULE = '''
from dataclasses import dataclass
import torch
import evenflow
from evenflow.lab.tasks import Batch, Synthetic, option


@dataclass(frozen=True)
class Bursts(Synthetic):
    length: int = option(8, "steps", whole=2)
    place: str = option("start", "where the answer is")
    readout, input_size, output_size = "last", 1, 1
    metric_name, higher_is_better, baseline, solved_limit = "mse", False, 1 / 12, 0.001

    def draw(self, draw):
        x = draw.unit(self.length)
        return Batch(x[..., None], x[0][:, None])

    def loss(self, outputs, targets):
        return torch.nn.functional.mse_loss(outputs, targets)

    metric = loss


class Undecorated(Bursts):
    """Its option is none, because it is no dataclass."""
    width: int = option(3, "numbers")


class Unfinished(Synthetic):
    """Lacks all methods."""


@evenflow.cell(matrices=("W", "V"))
def slow(a, h, W, V, *, dt=1.0):
    """h = (1 - dt f) h + dt f tanh(a + V f h)"""
    f = torch.sigmoid(a + h @ W.mT)
    return (1 - dt * f) * h + dt * f * torch.tanh(a + (f * h) @ V.mT)


def deep(input_size, hidden_size, depth=2):
    return evenflow.GRU(input_size, hidden_size, depth)


number = 3
'''
QUICK = ["--hidden", "4", "--steps", "2", "--batch-size", "3", "--validation-batches", "1", "--device", "cpu", "-q"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The current folder, with own_burst.py in it."""
    (tmp_path / "own_burst.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("own_burst", None)


@pytest.fixture
def own(here, monkeypatch):
    """The module itself."""
    monkeypatch.syspath_prepend(here)
    return pytest.importorskip("own_burst")


def run(*arguments):
    with pytest.raises(SystemExit) as left:
        cli.main([str(each) for each in arguments])
    return left.value.code


def in_another_process(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The installed command, which does not have the current folder among its paths."""
    code = "import sys; sys.path = [p for p in sys.path if p]; from evenflow.__main__ import main; main()"
    paths = {"PYTHONPATH": str(Path(evenflow.__file__).parents[1])}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, cwd=folder, env=os.environ | paths, capture_output=True, text=True)


def test_a_run_names_them_by_their_paths(here, capsys):
    task, system = ["own_burst:Bursts", "-t", "length=5", "-t", "place=2024"], ["own_burst:slow", "-s", "dt=0.5"]
    assert run("train", task[0], system[0], *task[1:], *system[1:], *QUICK) == 0
    config = Run("runs/Bursts-slow").config
    assert config["task"] == {"name": "own_burst:Bursts", "length": 5, "place": "2024"}
    assert config["system"] == {"name": "own_burst:slow", "hidden_size": 4, "dt": 0.5}
    assert "" not in sys.path
    assert run("doctor", "runs/Bursts-slow") == 0
    assert run("doctor", "own_burst:slow", "--hidden", "4") == 0
    assert run("report", "runs/Bursts-slow") == 0
    page = Path("runs/Bursts-slow/report.html").read_text("utf-8")
    assert "slow" in page
    assert "Solved means" not in capsys.readouterr().err


def test_another_process_resumes_and_loads_where_the_module_is(here, monkeypatch, capsys):
    assert run("train", "own_burst:Bursts", "own_burst:slow", "--folder", "run", *QUICK) == 0
    (here / "tomli_w.py").write_text("raise RuntimeError('a file here must not take the place of a package')")
    done = in_another_process(here, "resume", "run", "--steps", "4", "-q")
    assert (done.returncode, done.stderr) == (0, "")
    assert Run("run").status["step"] == 4
    (here / "new.csv").write_text("x0\n0.5\n0.25\n")
    del sys.modules["own_burst"]  # as in a process of its own, from here on
    assert run("predict", "run", "new.csv", "--out", "answers.csv") == 0
    answer = evenflow.load("run").predict(torch.tensor([[[0.5], [0.25]]])).item()
    assert float((here / "answers.csv").read_text().splitlines()[1]) == pytest.approx(answer, rel=1e-6)
    del sys.modules["own_burst"]
    (here / "elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    capsys.readouterr()
    assert run("resume", "../run", "--steps", "5", "-q") == 2
    assert capsys.readouterr().err == (
        "evenflow: task 'own_burst:Bursts' cannot be imported: No module named 'own_burst'; install the package that "
        "has it, or run Python or evenflow in the folder of own_burst\n"
    )
    assert run("predict", "../run", "../new.csv", "--out", "answers.csv") == 2
    assert "the model needs 'slow' of the module 'own_burst', which cannot be imported here" in capsys.readouterr().err
    assert run("report", "../run") == 0, "the page needs curves and names alone"
    assert Run("../run").status["step"] == 4


def test_compare_seeds_and_sweep(here, capsys):
    quick = [*QUICK, "-t", "length=5"]
    systems = ["own_burst:slow", "own_burst:deep", "torch.nn:GRU", "gru"]
    assert run("compare", "own_burst:Bursts", *systems, "--lrs", "1e-2", *quick) == 0
    assert {path.name for path in Path("runs/compare-Bursts").iterdir() if path.is_dir()} == {
        *("slow-0.01", "deep-0.01", "GRU-0.01", "gru-0.01")
    }
    assert run("train", "own_burst:Bursts", "own_burst:slow", "--seeds", "2", "--folder", "two", *quick) == 0
    assert Run("two/seed-1").config["system"]["name"] == "own_burst:slow"
    assert run("resume", "two", "-q") == 0
    quick = ["--hidden", "4", "--batch", "3", "--lrs", "1e-2", "-q", "-t", "length=5", "--validation-batches", "1"]
    rules = ["--updates", "20", "--first", "2", "--finalists", "1", "--maps", "cayley", "--cells"]
    assert run("sweep", "own_burst:Bursts", *rules, "own_burst:slow,own_burst:deep", *quick) == 0
    rows = [
        line.split()[1:3] for line in capsys.readouterr().out.splitlines() if " own " in line and "Round" not in line
    ]
    assert sorted(row for row in rows if row[0] in ("cayley", "free")) == [["cayley", "slow"], ["free", "deep"]]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("no_burst:Bursts gru", "task 'no_burst:Bursts' cannot be imported: No module named 'no_burst'; install the"),
        ("own_burst:Burst gru", "task 'own_burst:Burst' cannot be imported: module 'own_burst' has no attribute 'Bu"),
        ("own_burst:slow gru", "task must be a name or a subclass of evenflow.tasks.Task, got 'own_burst:slow', whi"),
        ("own_burst:Undecorated gru", "the class of task undecorated has options and must be decorated: @dataclass"),
        ("own_burst:Unfinished gru", "task unfinished cannot be made: Can't instantiate abstract class Unfinished"),
        ("own_burst:Bursts gru -t size=3", "unknown option of task bursts 'size', known are length, place"),
        ("adding own_burst:sloww", "system 'own_burst:sloww' cannot be imported: module 'own_burst' has no attribut"),
        ("adding own_burst:number", "system 'own_burst:number' must be a cell, a class of layers or a function that"),
        ("adding torch.nn:Linear", "system 'torch.nn:Linear' must make a layer, a module with an input_size and a h"),
        ("adding own_burst:Bursts", "system 'own_burst:Bursts' must make a layer, a module with an input_size and a"),
        ("adding own_burst:deep -s width=3", "--system-option must not hold width: write --hidden, got 'width=3'"),
        ("adding own_burst:deep -s layers=3", "system 'own_burst:deep' has no option 'layers'; it takes depth"),
        ("adding sgorn", "unknown system 'sgorn', did you mean sgornn"),
        ("curriculum gru -t task=csv:x", "unknown task of a curriculum 'csv:x'"),
    ],
)
def test_what_cannot_be_trained_is_one_sentence(arguments, sentence, here, capsys):
    assert run("train", *arguments.split(), *QUICK, "--folder", "run") == 2
    error = capsys.readouterr().err
    assert error.startswith(f"evenflow: {sentence}")
    assert error.count("\n") == 1
    assert not Path("run").exists()


def test_a_curriculum_of_a_task_of_ones_own(here):
    assert run("train", "curriculum", "gru", "-t", "task=own_burst:Bursts", "-t", "start=3", *QUICK) == 0
    assert Run("runs/curriculum-gru").config["task"]["task"] == "own_burst:Bursts"
    assert run("resume", "runs/curriculum-gru", "-q", "--steps", "3") == 0


def test_in_python_the_objects_themselves_are_passed(own, tmp_path):
    training = {"steps": 2, "batch_size": 3, "device": "cpu"}
    config = {"task": {"name": own.Bursts, "length": 5}, "system": {"name": own.slow, "hidden_size": 4, "dt": 0.5}}
    result = train(config | {"training": training}, tmp_path / "run", progress=False)
    assert Run(tmp_path / "run").config["system"] == {"name": "own_burst:slow", "hidden_size": 4, "dt": 0.5}
    again = resume(tmp_path / "run", steps=4, progress=False)
    whole = train(config | {"training": training | {"steps": 4}}, progress=False)
    assert result.steps == 2
    for key, weight in whole.model.state_dict().items():
        assert torch.equal(weight, again.model.state_dict()[key]), key


def test_create_takes_cells_layers_and_rows(own):
    assert create(own.slow, 2, 4, map="cayley", dt=0.5).cell.constants == {"dt": 0.5}
    assert create(own.slow(dt=0.25), 2, 4, num_layers=2).num_layers == 2
    assert create("own_burst:deep", 2, 4, depth=3).num_layers == 3
    assert create(evenflow.cells.GRUStep, 2, 4).cell.name == "GRU"
    assert create(torch.nn.GRU, 2, 4).hidden_size == 4
    row = System(evenflow.RNN, "h = f(h)", "nowhere", "cayley", options={"activation": "abs"})
    assert create(row, 2, 4).cell.settings()["activation"] == "abs"
    with pytest.raises(ValueError, match=r"^system must be a name, an import path, or a class or function with a name"):
        train({"task": {"name": "adding"}, "system": {"name": own.slow(dt=0.5), "hidden_size": 4}}, progress=False)


def test_packages_announce_systems_and_tasks(own, monkeypatch, capsys):
    information = Path("burst_package-1.0.dist-info")
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: burst-package\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(
        "[evenflow.systems]\nslow-cell = own_burst:slow\nbroken = own_burst:nothing\n"
        "[evenflow.tasks]\nbursts = own_burst:Bursts\nlost = lost_package:Task\n"
    )
    assert run("train", "bursts", "slow-cell", "--folder", "run", *QUICK) == 0
    config = Run("run").config
    assert (config["task"]["name"], config["system"]["name"]) == ("own_burst:Bursts", "own_burst:slow")
    assert run("resume", "run", "-q", "--steps", "3") == 0
    capsys.readouterr()
    monkeypatch.setenv("COLUMNS", "250")
    assert run("systems") == 0
    assert run("tasks") == 0
    shown = capsys.readouterr().out
    for text in (
        "slow-cell",
        "h = (1 - dt f) h + dt f tanh(a + V f h)",
        "module 'own_burst' has no attribute 'nothing'",
    ):
        assert text in shown
    for text in ("bursts", "where the answer is", "No module named 'lost_package'"):
        assert text in shown
    assert run("train", "burst", "gru", *QUICK) == 2
    assert "did you mean bursts?" in capsys.readouterr().err
