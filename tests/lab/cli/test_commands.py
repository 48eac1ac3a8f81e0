"""The command line as a user meets it: what it prints, what it writes, and how it says no."""

from __future__ import annotations

import csv
import dataclasses
import os
import re
import socket
import subprocess
import sys

import numpy as np
import pytest

import evenflow
from evenflow.lab import cli, demo
from evenflow.lab.report.numbers import number
from evenflow.lab.training import Run
from evenflow.penalties import PENALTIES

COMMANDS = [c.name or c.callback.__name__ for c in cli.app.registered_commands]
QUICK = ["--hidden", "8", "--steps", "4", "--batch-size", "3", "--validation-batches", "1", "-t", "length=10", "-q"]


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as left:
        cli.main([str(a) for a in arguments])
    return left.value.code


@pytest.mark.parametrize("command", [*COMMANDS, "data list", "data get"])
def test_every_command_explains_itself_with_an_example(command, capsys):
    assert run(*command.split(), "--help") == 0
    assert f"Example:  evenflow {command}" in capsys.readouterr().out


def test_the_version(capsys):
    assert run("--version") == 0
    assert capsys.readouterr().out == f"evenflow {evenflow.__version__}\n"


def test_no_arguments_show_the_commands(capsys):
    assert run() == 2
    assert "compare" in capsys.readouterr().out


def test_tasks_lists_everything(capsys):  # `systems`: tests/test_systems.py
    from evenflow.lab.tasks import TASKS

    assert run("tasks") == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in TASKS)


def test_data_list_shows_every_set_and_the_folder(tmp_path, capsys, monkeypatch):
    from evenflow.lab.data import CATALOG

    (tmp_path / "ptb").mkdir()
    (tmp_path / "ptb" / "ptb.train.txt").write_text("no treebank\n")
    (tmp_path / "UCI HAR Dataset").mkdir()
    monkeypatch.setenv("EVENFLOW_DATA", str(tmp_path))
    assert run("data", "list") == 0
    shown = capsys.readouterr().out
    lines = {line.split()[0]: line for line in shown.splitlines() if line.split()}
    assert set(CATALOG) < set(lines)
    assert "missing" in lines["mnist"]
    assert "11.59 MB" in lines["mnist"]
    assert "damaged" in lines["ptb"]
    assert "Marcus et al. 1993" in lines["ptb"]
    assert "no commercial use" in lines["har"]
    assert "Damaged: ptb, ptb/ptb.train.txt: it has 12 bytes, not 5,101,618." in shown
    assert f"The data folder: {tmp_path}" in shown


def test_data_get_checks_what_is_there(data, capsys):
    assert run("data", "get", "jsb", "--data", data) == 0
    shown = capsys.readouterr().out
    assert str(data / "music") in shown
    assert "Terms: research use" in shown


def test_data_get_without_a_network_is_exit_code_one(tmp_path, capsys, monkeypatch):
    from evenflow.lab.data import CATALOG

    with socket.socket() as closed:  # bound and not listening: connections are refused
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        file = dataclasses.replace(CATALOG["jsb"].files[0], url=f"http://127.0.0.1:{closed.getsockname()[1]}/jsb.mat")
        monkeypatch.setitem(CATALOG, "jsb", dataclasses.replace(CATALOG["jsb"], files=(file,)))
        assert run("data", "get", "jsb", "--data", tmp_path / "new") == 1
    captured = capsys.readouterr()
    assert (
        f"put the file from {file.url} at '{tmp_path / 'new' / 'music' / 'JSB_Chorales.mat'}' by hand" in captured.err
    )
    assert captured.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_train_resume_report(tmp_path, capsys):
    folder = tmp_path / "run"
    options = ["--optimizer", "rmsprop", "--lr", "0.01", "--probe-every", "2", "--clip-norm", "1"]
    assert run("train", "adding", "sgornn", "--folder", folder, *QUICK, *options, "-s", "map=exponential") == 0
    config = Run(folder).config
    assert config["task"]["length"] == 10
    assert config["system"] == {"name": "sgornn", "hidden_size": 8, "map": "exponential"}
    assert config["training"]["lr"] == 0.01
    assert Run(folder).status["state"] == "finished"
    before = (folder / "metrics.csv").read_bytes()
    assert run("resume", folder, "-q") == 0
    assert (folder / "metrics.csv").read_bytes() == before
    assert run("report", folder) == 0
    assert "<html" in (folder / "report.html").read_text()
    assert str(folder / "report.html") in capsys.readouterr().out


def test_a_finished_run_and_its_seeds_are_extended_and_started_from(tmp_path, capsys):
    assert run("train", "adding", "rnn", "--folder", tmp_path / "one", *QUICK) == 0
    assert run("resume", tmp_path / "one", "--steps", "6", "-q") == 0
    assert capsys.readouterr().out.count("6 updates") == 1
    assert run("train", "adding", "rnn", "--from", tmp_path / "one", "--folder", tmp_path / "two", *QUICK) == 0
    assert Run(tmp_path / "two").config["training"]["start_from"] == str(tmp_path / "one")
    assert run("train", "adding", "rnn", "--seeds", "2", "--folder", tmp_path / "seeds", *QUICK) == 0
    assert run("resume", tmp_path / "seeds", "--steps", "6", "-q") == 0
    assert [Run(tmp_path / "seeds" / f"seed-{seed}").status["step"] for seed in (0, 1)] == [6, 6]
    capsys.readouterr()
    assert run("resume", tmp_path / "seeds", "--steps", "5", "-q") == 2
    assert "steps must be more than the 6 of run" in capsys.readouterr().err


def test_compare_trains_all_and_writes_one_page(tmp_path, capsys):
    folder = tmp_path / "all"
    arguments = ["compare", "copy", "rnn", "urnn", "--lrs", "1e-2,1e-3", "--folder", folder, *QUICK]
    assert run(*arguments) == 0
    assert sorted(p.name for p in folder.iterdir()) == [
        "report.html",
        "rnn-0.001",
        "rnn-0.01",
        "urnn-0.001",
        "urnn-0.01",
    ]
    first = {p.name: (p / "metrics.csv").read_bytes() for p in folder.iterdir() if p.is_dir()}
    shown = capsys.readouterr().out
    assert "4 of 4: urnn, lr 0.001" in shown
    assert run(*arguments) == 0  # reads back what is there
    assert first == {p.name: (p / "metrics.csv").read_bytes() for p in folder.iterdir() if p.is_dir()}


def test_compare_with_seeds_labels_and_options(tmp_path, capsys):
    folder = tmp_path / "all"
    arguments = ["compare", "copy", "free=rnn", "ortho=rnn", "lstm", "--lrs", "1e-2", "--seeds", "2", "--seed", "3"]
    arguments += ["-s", "bias=false", "-s", "ortho:map=cayley", "-s", "ortho:hidden_size=6", "--folder", folder, *QUICK]
    assert run(*arguments, "--table", "csv", "--figures", "svg") == 0
    runs = {p.name: Run(p / "seed-4").config["system"] for p in folder.iterdir() if p.is_dir()}
    assert runs.keys() == {"free-0.01", "ortho-0.01", "lstm-0.01"}
    assert all(system["bias"] is False for system in runs.values())
    assert runs["ortho-0.01"]["map"] == "cayley"
    assert (runs["ortho-0.01"]["hidden_size"], runs["free-0.01"]["hidden_size"]) == (6, 8)
    shown = capsys.readouterr().out
    assert "± is the standard error of the mean over 2 seeds." in shown
    assert "Welch's t-test" in shown
    with open(folder / "report.csv", encoding="utf-8") as file:
        rows = {row["System"]: row for row in csv.DictReader(file)}
    losses = [Run(folder / "free-0.01" / f"seed-{seed}").best("valid_loss") for seed in (3, 4)]
    assert float(rows["free"]["Lowest validation loss"]) == pytest.approx(np.mean(losses))
    assert rows["free"]["Seeds"] == "2"
    assert {"report-valid-loss.svg", "report-valid-metric.svg"} <= {p.name for p in folder.iterdir()}
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert all(f"<h3>{label}" in page for label in ("free", "ortho", "lstm"))
    # The same runs on a page of their own: the folder of seeds of each system.
    assert run("report", *(folder / name for name in runs), "--out", tmp_path / "own.html", "--table", "latex") == 0
    assert (tmp_path / "own.tex").read_text(encoding="utf-8").count("&") == 4 * 6  # a heading and three rows of seven


def test_a_folder_of_one_seed_is_not_one_of_several(tmp_path, capsys):
    arguments = ["compare", "adding", "rnn", "--lrs", "1e-2", "--folder", tmp_path / "all", *QUICK]
    assert run(*arguments) == 0
    assert run(*arguments, "--seeds", "2") == 2
    assert "holds a run of a single seed, got seeds 2: choose another folder" in capsys.readouterr().err


def test_demo_plays_by_its_own_rules(tmp_path, capsys, monkeypatch):
    """The demonstration's settings, cut down in size: same budget for all, and the page says what was done."""
    monkeypatch.setattr(demo, "TRAINING", demo.TRAINING | {"steps": 2, "batch_size": 2, "validation_batches": 1})
    monkeypatch.setattr(demo, "TASK", {"name": "copy", "length": 5})
    assert run("demo", "--folder", tmp_path / "demo", "-q") == 0
    runs = [Run(p) for p in (tmp_path / "demo").iterdir() if p.is_dir()]
    assert len(runs) == len(demo.SYSTEMS) * len(demo.LRS)
    budgets = {tuple(sorted((k, v) for k, v in r.config["training"].items() if k != "lr")) for r in runs}
    assert len(budgets) == 1
    assert len({r.config["system"]["hidden_size"] for r in runs}) == 1
    by_matrix = {name: [s["activation"] for s in demo.SYSTEMS if s["name"] == name] for name in ("rnn", "exprnn")}
    assert by_matrix["rnn"] == by_matrix["exprnn"] == list(demo.ACTIVATIONS)  # the same choice for both
    page = (tmp_path / "demo" / "report.html").read_text()
    assert "at the learning rates 0.01, 0.001, 0.0001" in page
    shown = capsys.readouterr().out
    for system in demo.SYSTEMS:  # the terminal and the page have the same names, which say what was changed
        assert system["label"] in shown
        assert f"<h3>{system['label']}" in page
        assert system.get("activation", "") in system["label"]
    best, _ = demo.run(tmp_path / "demo", progress=False)  # reads what is there
    right, answers = demo.example(best)
    assert len(right) == 10
    assert f"Its symbols were {' '.join(map(str, right))}" in page
    for attempt, answer in zip(best, answers, strict=True):
        hits = sum(a == b for a, b in zip(answer, right, strict=True))
        assert re.search(rf"<li>{attempt.system}: .* \({hits} of 10 right\)</li>", page)
    assert "The page:" in shown


BAD = [
    (["trian"], "No such command 'trian'"),
    (["train", "adding"], "Missing argument"),
    (["train", "addin", "rnn"], "did you mean adding"),
    (["train", "motion.csv", "gru"], "for a file of your own write csv:motion.csv"),
    (["train", "adding", "rnn", "-s", "map=expo"], "unknown map 'expo', did you mean exponential?"),
    (["train", "adding", "sgorn"], "did you mean sgornn"),
    (["train", "adding", "rnn", "--lr", "-1"], "lr must be a number above 0, got -1.0"),
    (["train", "adding", "rnn", "--lr", "fast"], "--lr"),
    (["train", "adding", "rnn", "--rate", "0.1"], "No such option: --rate (Possible options: --lr)"),
    (["train", "adding", "rnn", "--optimizer", "adamm"], "optimizer must be one of"),
    (["train", "adding", "rnn", "--hidden", "0"], "hidden_size must be a whole number of at least 1, got 0"),
    (["train", "adding", "rnn", "-t", "length"], "--task-option must be KEY=VALUE, got 'length'"),
    (["train", "adding", "rnn", "-t", "lenght=20"], "did you mean length"),
    (["train", "adding", "rnn", "-t", "length=1"], "length"),
    (["train", "adding", "rnn", "-s", "map=exponentail"], "exponential"),
    (["train", "adding", "rnn", "-s", "reflectors=3"], "no option 'reflectors'"),
    (["train", "adding", "vprnn", "--hidden", "7"], "even"),
    (["train", "adding", "rnn", "--device", "cuda:99"], "cuda:99"),
    (["compare", "adding", "rnn", "--lrs", "1e-3,x"], "--lrs must be numbers"),
    (["compare", "adding", "rnn", "rnn"], "must differ"),
    (["compare", "adding", "=rnn"], "a system must be a name or LABEL=NAME, got '=rnn'"),
    (["compare", "adding", "a=rnn", "-s", "b:map=cayley"], "must begin with one of the labels a, got 'b:map=cayley'"),
    (["compare", "adding", "rnn", "-s", "map"], "--system-option must be KEY=VALUE, got 'map'"),
    (["compare", "adding", "rnn", "-s", "hidden_size=3"], "write --hidden"),
    (["compare", "adding", "rnn", "--table", "tex"], "table must be one of latex, csv, markdown, got 'tex'"),
    (["report", "nowhere", "--figures", "jpg"], "figures must be one of pdf, png, svg, got 'jpg'"),
    (["reproduce", "urnn/table-3", "--figures", "jpg"], "figures must be one of pdf, png, svg, got 'jpg'"),
    (["data", "get", "mnits"], "unknown data set 'mnits', did you mean mnist?"),
    (["data", "get", "har", "--data", "sets"], "and the 19 other files in place by hand"),
    (["data", "lst"], "No such command 'lst'"),
    (["resume", "nowhere"], "nowhere"),
    (["predict", "nowhere", "csv:new.csv"], "file must be a path without 'csv:', got 'csv:new.csv'"),
    (["evaluate", "nowhere", "npz:new.npz"], "file must be a path without 'npz:', got 'npz:new.npz'"),
    (["report", "nowhere"], "nowhere"),
]


@pytest.mark.parametrize(("arguments", "words"), BAD, ids=[" ".join(a)[:50] for a, _ in BAD])
def test_a_slip_is_one_line_and_exit_code_two(arguments, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(*arguments) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == [], "nothing half-written"


def test_a_used_folder_is_not_overwritten(tmp_path, capsys):
    arguments = ["train", "adding", "rnn", "--folder", tmp_path / "run", *QUICK]
    assert run(*arguments) == 0
    assert run(*arguments) == 2
    assert "holds a run already" in capsys.readouterr().err


def test_train_prints_the_numbers_of_the_page(tmp_path, capsys):
    """A classifier's accuracy, the best one and the last, and what counts as solved."""
    folder = tmp_path / "run"
    options = ["--steps", "12", "--validate-every", "4", "--folder", folder, "--hidden", "4", "-t", "length=5", "-q"]
    assert run("train", "copy", "rnn", *options) == 0
    shown, past = capsys.readouterr().out, Run(folder)
    accuracy = past.curve("valid_metric")[1]
    status = past.status
    assert status["best_metric"] == pytest.approx(accuracy.max(), rel=1e-8)  # nine digits in metrics.csv
    assert f"Best validation: accuracy {accuracy.max():.4g}, loss {status['best_loss']:.4g}" in shown
    assert (f"The last validation: accuracy {accuracy[-1]:.4g}" in shown) == (status["best_step"] != 12)
    assert "Not solved. Solved means a validation accuracy of at least 0.99." in shown
    assert run("report", folder) == 0
    page = (folder / "report.html").read_text()
    assert f'<p class="value">{number(accuracy.max(), 4)}</p>' in page
    assert "Solved means a validation accuracy of at least 0.99." in page


def test_a_run_that_gets_worse_says_so(tmp_path, capsys):
    options = [
        "--steps",
        "30",
        "--optimizer",
        "sgd",
        "--lr",
        "30",
        "--clip-norm",
        "1",
        "--log-every",
        "1",
        "-t",
        "length=10",
        "-q",
    ]
    assert run("train", "adding", "rnn", "--hidden", "8", "--folder", tmp_path / "run", *options) == 0
    loss = Run(tmp_path / "run").curve("loss")[1]
    assert loss[-1] > 2 * loss[0]
    assert "It ended worse than it began: training loss" in capsys.readouterr().out


def test_compare_exits_with_one_where_every_rate_diverges(tmp_path, capsys):
    options = ["--lrs", "1e30", "--optimizer", "sgd", "--folder", tmp_path / "all", *QUICK]
    assert run("compare", "adding", "irnn", *options) == 1
    captured = capsys.readouterr()
    assert "diverged" in captured.out
    assert captured.err == "evenflow: the loss became infinite or not a number at all rates of irnn\n"


def test_divergence_is_exit_code_one(tmp_path, capsys):
    arguments = [
        "train",
        "adding",
        "irnn",
        "--folder",
        tmp_path / "run",
        *QUICK,
        "--lr",
        "1e30",
        "--optimizer",
        "sgd",
    ]
    assert run(*arguments) == 1
    assert "infinite or not a number" in capsys.readouterr().err
    assert Run(tmp_path / "run").status["state"] == "failed"


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop", "sgd", "temporal-simplex", "hessian-free", "line-search"])
def test_every_optimizer_from_the_command_line(optimizer, tmp_path):
    options = [*QUICK, "--optimizer", optimizer]
    assert run("train", "adding", "rnn", "--folder", tmp_path / "run", *options) == 0
    assert Run(tmp_path / "run").config["training"]["optimizer"] == optimizer
    assert Run(tmp_path / "run").status["state"] == "finished"


@pytest.mark.parametrize("bases", ["sgd", "adam"])
def test_orthonormal_bases_from_the_command_line(bases, tmp_path):
    options = [*QUICK, "--optimizer", "rmsprop", "--bases", bases, "--bases-lr", "0.01"]
    assert run("train", "adding", "factorized", "--folder", tmp_path / "run", *options) == 0
    assert Run(tmp_path / "run").config["training"]["bases"] == bases


@pytest.mark.parametrize("penalty", [*PENALTIES, "stabilizer(2.0) + weight_decay(0.01)"])
def test_every_penalty_from_the_command_line(penalty, tmp_path):
    assert run("train", "adding", "vprnn", "--folder", tmp_path / "run", *QUICK, "--penalty", penalty) == 0
    assert Run(tmp_path / "run").config["training"]["penalty"] == penalty
    assert Run(tmp_path / "run").status["state"] == "finished"


def test_the_package_runs_as_a_module():
    result = subprocess.run([sys.executable, "-m", "evenflow", "penalties"], capture_output=True, text=True)
    assert result.returncode == 0
    assert "soft_orthogonality" in result.stdout


def test_seeds_are_trained_side_by_side(tmp_path, capsys):
    options = ["--hidden", "4", "--steps", "4", "--batch-size", "4", "-t", "length=5", "--device", "cpu", "-q"]
    assert run("train", "adding", "rnn", "--seeds", "3", "--seed", "5", "--folder", str(tmp_path), *options) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["seed-5", "seed-6", "seed-7", "seeds.toml"]
    assert "Mean best validation mse of 3:" in capsys.readouterr().out
    assert run("report", tmp_path) == 0
    page = (tmp_path / "report.html").read_text()
    assert "mean of 3 seeds" in page
    assert all(f"seed-{seed}" in page for seed in (5, 6, 7))
    assert run("report", tmp_path, tmp_path / "seed-5") == 2  # four runs, and no place for their page
    assert "out must say where to write the page of 4 runs" in capsys.readouterr().err


def test_seeds_are_gone_on_with_as_a_whole(tmp_path, capsys, monkeypatch):
    from evenflow.lab.training.loop import Loop

    options = ["--hidden", "4", "--steps", "6", "--batch-size", "4", "-t", "length=5", "--device", "cpu", "-q"]
    options += ["--checkpoint-every", "2"]
    assert run("train", "adding", "rnn", "--seeds", "11", "--folder", tmp_path / "alone", *options) == 0
    alone = capsys.readouterr().out
    look = Loop.record

    def interrupted(loop, found=None):
        if loop.step == 5:
            raise KeyboardInterrupt
        look(loop, found)

    with monkeypatch.context() as patched:
        patched.setattr(Loop, "record", interrupted)
        assert run("train", "adding", "rnn", "--seeds", "11", "--folder", tmp_path / "run", *options) == 1
    said = capsys.readouterr().err
    assert said == "evenflow: interrupted; a run goes on where it was with `evenflow resume FOLDER`\n"
    assert run("resume", tmp_path / "run", "-q") == 0
    assert capsys.readouterr().out.split("The runs")[0] == alone.split("The runs")[0]


def test_all_seeds_may_diverge(tmp_path, capsys):
    options = ["--hidden", "4", "--steps", "30", "-t", "length=5", "--lr", "1e30", "--optimizer", "sgd", "-q"]
    assert run("train", "adding", "irnn", "--seeds", "2", "--folder", str(tmp_path), "--device", "cpu", *options) == 1
    assert capsys.readouterr().err == "evenflow: all seeds diverged: try a smaller lr or a clip_norm\n"


def test_penalties_are_listed(capsys):
    from evenflow.penalties import PENALTIES

    assert run("penalties") == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in PENALTIES)


def test_a_file_of_ones_own_names_the_run(tmp_path, capsys, monkeypatch, small_data):
    monkeypatch.chdir(tmp_path)
    options = ["--hidden", "4", "--epochs", "1", "--batch-size", "6", "--device", "cpu", "-q"]
    assert run("train", f"csv:{small_data / 'own.csv'}", "rnn", *options) == 0
    assert (tmp_path / "runs" / "own-rnn" / "config.toml").is_file()


def test_data_that_has_moved(tmp_path, capsys, monkeypatch, small_data):
    (tmp_path / "old").symlink_to(small_data)
    options = ["--hidden", "4", "--steps", "2", "--batch-size", "2", "--device", "cpu", "-q"]
    command = ["train", "har-rebuilt", "rnn", "--data", tmp_path / "old", *options]
    assert run(*command, "--folder", tmp_path / "one") == 0
    assert run(*command, "--folder", tmp_path / "two", "--seeds", "2") == 0
    (tmp_path / "old").rename(tmp_path / "new")
    monkeypatch.setenv("EVENFLOW_DATA", str(small_data))
    assert run("train", "har-rebuilt", "rnn", *options, "--folder", tmp_path / "four") == 0
    assert "data" not in Run(tmp_path / "four").config["task"]
    for folder, run_folder in (("one", "one"), ("two", "two/seed-1"), ("four", "four")):
        assert run("resume", tmp_path / folder, "--data", tmp_path / "new", "-q") == 0
        assert Run(tmp_path / run_folder).config["task"]["data"] == str(tmp_path / "new")
    assert run("train", "adding", "rnn", "--folder", tmp_path / "three", *options) == 0
    assert run("resume", tmp_path / "three", "--data", tmp_path / "new", "-q") == 2
    assert "unknown option of task adding 'data', known are length, variant" in capsys.readouterr().err


def test_a_test_part_and_its_note_are_told(tmp_path, capsys, small_data):
    options = ["--hidden", "4", "--steps", "2", "--batch-size", "4", "--device", "cpu", "-q"]
    folder = tmp_path / "run"
    assert run("train", "har-rebuilt", "rnn", "--data", str(small_data), "--folder", str(folder), *options) == 0
    shown = capsys.readouterr().out
    assert "On the test part: accuracy" in shown
    assert "The data: rebuilt from raw recordings." in shown


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: 4 bytes")])
def test_no_memory_is_one_line(error, capsys, monkeypatch):
    def fails(**_):
        raise error

    monkeypatch.setattr(cli.application, "app", fails)
    assert run("systems") == 1
    said = capsys.readouterr().err
    assert "there is not enough memory: try fewer units, steps or sequences in a batch" in said
    assert "Traceback" not in said


def test_a_terminal_without_our_letters():
    code = """
import sys
from evenflow.__main__ import main
for encoding in ("ascii", "latin-1"):
    sys.stdout.reconfigure(encoding=encoding)
    for command in ("systems", "penalties"):
        sys.argv[1:] = [command]
        try:
            main()
        except SystemExit as end:
            assert not end.code, (encoding, command)
"""
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True)
    assert done.returncode == 0, done.stderr


def test_a_file_that_holds_no_weights(tmp_path, capsys):
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")
    assert run("doctor", tmp_path / "a.csv") == 2
    assert "cannot be read as weights of torch.save or safetensors" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    "command",
    [
        ["compare", "adding", "rnn", "--hidden", "4", "--steps", "2", "-t", "length=5", "--device", "cpu"],
        ["reproduce", "sgornn/table-1", "--device", "cpu"],
        ["demo"],
    ],
    ids=lambda command: command[0],
)
def test_what_makes_many_runs_says_how_it_goes_on(command, tmp_path, monkeypatch, capsys):
    """`evenflow resume` would find no run in their folder."""
    from evenflow.lab.training.loop import Loop

    def interrupted(loop):
        raise KeyboardInterrupt

    monkeypatch.setattr(Loop, "update", interrupted)
    assert run(*command, "--folder", tmp_path / "all", "-q") == 1
    assert capsys.readouterr().err == "evenflow: interrupted; the same command goes on where it was\n"
