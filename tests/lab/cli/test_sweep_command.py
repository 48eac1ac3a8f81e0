"""`evenflow sweep` as a user meets it."""

from __future__ import annotations

import json

import pytest

from evenflow.lab import cli
from evenflow.lab.training.loop import Loop

QUICK = ["--hidden", "4", "--batch", "4", "--validation-batches", "1", "-t", "length=6", "--device", "cpu", "-q"]
SMALL = [
    "--maps",
    "exponential,svd(margin=0.1,reflectors=2)",
    "--cells",
    "elman,lstm",
    "--activations",
    "relu,leaky(0.5)",
]
BUDGET = ["--updates", "100", "--first", "4", "--lrs", "1e-2,1e-3"]


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as left:
        cli.main([str(a) for a in arguments])
    return left.value.code


def test_it_explains_itself_with_an_example(capsys):
    assert run("sweep", "--help") == 0
    assert "Example:  evenflow sweep mnist --parameters 137000" in capsys.readouterr().out


def test_sweep_shows_a_table_and_writes_runs_that_report_reads(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run("sweep", "adding", *QUICK, *SMALL, *BUDGET, "--parameters", "200") == 0
    shown = capsys.readouterr().out
    assert "10 candidates, 5 models." in shown
    assert "Validation: mse, of the best weights." in shown
    rows = [
        line.split()
        for line in shown.splitlines()
        if line.split() and line.split()[0].isdigit() and "units" not in line
    ]
    table = json.loads((tmp_path / "runs" / "sweep" / "adding" / "sweep.json").read_text())
    ranks = [row for row in rows if row[0] in map(str, range(1, 11)) and len(row) > 8]
    assert ranks[0][1] == table["points"][0]["map"].split()[0]
    assert len(ranks) == 10
    assert {"finished", "out"} == {row[-1] for row in ranks}
    assert run("report", tmp_path / "runs" / "sweep" / "adding" / table["points"][0]["runs"][0]) == 0
    assert run("sweep", "adding", *QUICK, *SMALL, *BUDGET, "--parameters", "200") == 0  # reads back


def test_what_is_left_out_is_said(tmp_path, capsys):
    options = ["--maps", "exponential,unitary", "--cells", "elman", "--activations", "relu", *QUICK[2:], *BUDGET]
    assert run("sweep", "adding", "--hidden", "4,40", "--parameters", "200", *options, "--folder", tmp_path / "a") == 0
    shown = capsys.readouterr().out
    assert "2 candidates, 1 models; left out: 1 over the limit and 2 that cannot be made." in shown
    assert "unitary elman relu: it cannot be made: " in " ".join(shown.split())


def test_time_up_is_no_failure_and_an_interruption_says_how_to_go_on(tmp_path, capsys, monkeypatch):
    arguments = ["sweep", "adding", *QUICK, *SMALL, *BUDGET, "--folder", tmp_path / "a"]
    assert run(*arguments, "--seconds", "0.001") == 0
    assert "the same command goes on." in capsys.readouterr().out

    def interrupted(loop):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Loop, "update", interrupted)
        assert run(*arguments) == 1
    assert capsys.readouterr().err == "evenflow: interrupted; the same command goes on where it was\n"
    assert run(*arguments) == 0
    assert "Stopped" not in capsys.readouterr().out


BAD = [
    (["sweep", "adding"], "Missing option '--updates'"),
    (["sweep", "addin", *BUDGET], "did you mean adding"),
    (["sweep", "adding", *BUDGET, "--maps", "exponentail"], "unknown map 'exponentail', did you mean exponential?"),
    (["sweep", "adding", *BUDGET, "--cells", "lsmt"], "unknown cell 'lsmt', did you mean lstm?"),
    (["sweep", "adding", *BUDGET, "--activations", "rellu"], "unknown activation 'rellu'"),
    (["sweep", "adding", *BUDGET, "--keep", "1.5"], "keep must be a number above 0 and below 1, got 1.5"),
    (["sweep", "adding", *BUDGET, "--hidden", "many"], "--hidden must be whole numbers with commas between them"),
    (["sweep", "adding", *BUDGET, "--lrs", "fast"], "--lrs must be numbers with commas between them, got 'fast'"),
    (["sweep", "adding", *BUDGET, "--parameters", "3"], "no candidate is left of 37"),
    (["sweep", "adding", *BUDGET, "--optimizers", "adamm"], "optimizers must be one of adam, rmsprop, sgd"),
    (["sweep", "adding", "--updates", "100"], "updates must be at least 55500 for a first round of 111 candidates"),
    (["sweep", "adding", *BUDGET, *SMALL, "--seconds", "-1"], "seconds must be a number above 0, got -1.0"),
    (["sweep", "adding", *BUDGET, "--device", "cuda:99"], "cuda:99"),
    (["sweep", "mnist", *BUDGET, "--data", "nowhere"], "nowhere"),
]


@pytest.mark.parametrize(("arguments", "words"), BAD, ids=[" ".join(a)[:70] for a, _ in BAD])
def test_a_slip_is_one_line_and_exit_code_two(arguments, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(*arguments) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == [], "nothing half-written"


def test_the_folder_of_another_sweep_is_refused(tmp_path, capsys):
    arguments = ["sweep", "adding", *QUICK, *SMALL, *BUDGET, "--folder", tmp_path / "a"]
    assert run(*arguments) == 0
    assert run(*arguments, "--first", "5") == 2
    assert "holds another sweep, of first 4 and not 5" in capsys.readouterr().err


OPTUNA = ["sweep", "adding", *QUICK, "--sampler", "optuna", "--updates", "24", "--each", "8", "--first", "4"]
ELMAN = ["--keep", "0.5", "--maps", "svd", "--cells", "elman", "--activations", "relu"]


def test_optuna_shows_its_trials_and_what_matters(tmp_path, capsys):
    pytest.importorskip("optuna")
    arguments = [*OPTUNA, *ELMAN, "--range", "margin=0.01:0.5", "--folder", tmp_path / "a"]
    assert run(*arguments) == 0
    shown = capsys.readouterr().out
    assert "Trial 0: finished, mse " in shown
    table = json.loads((tmp_path / "a" / "study.json").read_text())
    assert set(table["trials"][0]["drawn"]) == {"lr", "margin"}, "lr is drawn unless --lrs is given"
    assert f"{table['updates']} updates in {len(table['trials'])} trials." in shown
    assert (tmp_path / "a" / "report.html").is_file()
    (tmp_path / "a" / "report.html").unlink()
    assert run("report", tmp_path / "a") == 0
    assert (tmp_path / "a" / "report.html").is_file()
    assert run("report", tmp_path / "a", "--table", "csv") == 2
    assert run(*arguments, "--lrs", "1e-3") == 2
    assert "holds another search, of lrs" in capsys.readouterr().err


BAD_SAMPLER = [
    ([*OPTUNA, *ELMAN, "--range", "margin"], "--range must be NAME=LOW:HIGH, got 'margin'"),
    ([*OPTUNA, *ELMAN, "--range", "margin=0.5:0.1"], "range margin must rise"),
    (
        [*OPTUNA, *ELMAN, "--range", "lr=1:2", "--range", "lr=1:2"],
        "--range must name lr once, got it again in 'lr=1:2'",
    ),
    ([*OPTUNA, *ELMAN, "--range", "margn=1:2", "--lrs", "0.1"], "no option 'margn'"),
    ([*OPTUNA, "--keep", "0.5", "--seeds", "2"], "--seeds goes with --sampler rounds, got --sampler optuna"),
    ([*OPTUNA, "--keep", "0.5", "--finalists", "2"], "--finalists goes with --sampler rounds, got --sampler optuna"),
    ([*OPTUNA, "--sampler", "optima"], "--sampler must be one of rounds, optuna, got 'optima'"),
    (["sweep", "adding", *BUDGET, "--range", "lr=1:2"], "--range goes with --sampler optuna, got --sampler rounds"),
    (["sweep", "adding", *BUDGET, "--each", "3"], "--each goes with --sampler optuna, got --sampler rounds"),
    (["sweep", "adding", *BUDGET, "--study", "a"], "--study goes with --sampler optuna, got --sampler rounds"),
]


@pytest.mark.parametrize(("arguments", "words"), BAD_SAMPLER, ids=[words[:60] for _, words in BAD_SAMPLER])
def test_a_slip_with_a_sampler_is_one_line_and_exit_code_two(arguments, words, capsys, tmp_path, monkeypatch):
    pytest.importorskip("optuna")
    monkeypatch.chdir(tmp_path)
    assert run(*arguments) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == [], "nothing half-written"
