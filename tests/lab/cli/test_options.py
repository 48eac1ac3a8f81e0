"""Options of tasks and systems on the command line: what a text becomes, and what is refused."""

from __future__ import annotations

import pytest

from evenflow.lab import cli
from evenflow.lab.cli.options import parse_options, task_table
from evenflow.lab.terminal import read_value
from evenflow.lab.training import Run

QUICK = ["--hidden", "4", "--steps", "2", "--batch-size", "2", "--validation-batches", "1", "--device", "cpu", "-q"]


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as left:
        cli.main([str(a) for a in arguments])
    return left.value.code


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *[(word, True) for word in ("true", "True", "TRUE")],
        *[(word, False) for word in ("false", "False")],
        *[(word, None) for word in ("none", "None")],
        *[(".1", 0.1), ("-.5", -0.5), ("1.", 1.0), ("1.e-3", 1e-3), ("1e-3", 1e-3), ("3", 3), ("1_000", 1000)],
        *[(word, word) for word in ("no", "exponential", "leaky(0.5)", "2024-01-01", "007", "1.2.3", "e5", "")],
        ('"3"', "3"),
        ("[1, 2]", [1, 2]),
    ],
)
def test_a_text_becomes_a_value(text, value):
    found = read_value(text)
    assert found == value
    assert type(found) is type(value)


def test_names_stay_text():
    options = ["target=2024", "sequence=1", "kind=true", "length=20"]
    assert task_table("csv:motion.csv", options, None) == {
        "name": "csv:motion.csv",
        "target": "2024",
        "sequence": "1",
        "kind": "true",
        "length": 20,
    }
    assert task_table("har", ["data=5"], None) == {"name": "har", "data": "5"}
    inner = task_table("curriculum", ["task=csv", "file=7", "target=5", "start=3"], None)
    assert inner == {"name": "curriculum", "task": "csv", "file": "7", "target": "5", "start": 3}
    assert parse_options("--system-option", ["leak=.5"]) == {"leak": 0.5}


BAD = [
    (["adding", "rnn", "-s", "bias=no"], "bias must be True or False, got 'no'"),
    (["adding", "rnn", "-s", "bias=None"], "bias must be True or False, got None"),
    (["adding", "rnn", "-s", "bidirectional=maybe"], "bidirectional must be True or False, got 'maybe'"),
    (["adding", "rnn", "-s", "batch_first=2"], "batch_first must be True or False, got 2"),
    (
        ["adding", "rnn", "-t", "name=copy"],
        "--task-option must not hold name: the task's name stands first, as in `evenflow train copy lstm`, "
        "got 'name=copy'",
    ),
    (
        ["adding", "rnn", "-s", "name=gru"],
        "--system-option must not hold name: the system's name stands after the task's, "
        "as in `evenflow train copy lstm`, got 'name=gru'",
    ),
    (
        ["adding", "rnn", "-s", "hidden_size=9"],
        "--system-option must not hold hidden_size: write --hidden, got 'hidden_size=9'",
    ),
    (["adding", "rnn", "-s", "device=cuda"], "--system-option must not hold device: write --device, got 'device=cuda'"),
    (["adding", "rnn", "-s", "dtype=x"], "--system-option must not hold dtype: write --precision, got 'dtype=x'"),
    (
        ["adding", "rnn", "-s", "generator=1"],
        "--system-option must not hold generator: starting weights are drawn from --seed, got 'generator=1'",
    ),
    (
        ["adding", "rnn", "-s", "input_size=1"],
        "--system-option must not hold input_size: the task has it, got 'input_size=1'",
    ),
    (
        ["adding", "rnn", "-t", "length=5", "-t", "length=6"],
        "--task-option must name length once, got it again in 'length=6'",
    ),
    (
        ["csv:a.csv", "rnn", "-t", "file=b.csv"],
        "--task-option must not hold file: write csv:FILE, got file=b.csv",
    ),
    (
        ["csv:a.csv", "rnn", "--data", "sets"],
        "--data must be left out for a file of your own: csv:FILE says where it is",
    ),
    (
        ["har", "rnn", "-t", "data=a", "--data", "b"],
        "--data and --task-option data must not both be given, got 'b' and 'a'",
    ),
    (["adding", "lstm", "-s", "forget_bias=nan"], "forget_bias must be a finite number, got nan"),
    (
        ["adding", "mlp", "--seeds", "2"],
        "--seeds must be 1 for mlp: networks without time train one seed at a time, got 2",
    ),
    (["adding", "mlp", "-s", "foo=1"], "system 'mlp' has no option 'foo'; it takes depth, activation"),
    (
        ["adding", "spectral-mlp", "-s", "foo=1"],
        "system 'spectral-mlp' has no option 'foo'; it takes depth, activation, reflectors, margin, start",
    ),
    (["adding", "rnn", "--seeds", "2", "-s", "foo=1"], "RNN has no option 'foo'"),
    (["adding", "rnn", "--seeds", "2", "--optimizer", "hessian-free"], "optimizer must be one of"),
]


@pytest.mark.parametrize(("arguments", "words"), BAD, ids=[" ".join(a)[:50] for a, _ in BAD])
def test_a_slip_is_one_line_and_nothing_is_written(arguments, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run("train", *arguments) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"evenflow: {words}")
    assert said.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_regularisers_are_system_options(tmp_path):
    """The configuration file of a run has them, and a resumed run reads them there."""
    arguments = ["train", "adding", "lstm", "--folder", tmp_path / "run", *QUICK, "-t", "length=5"]
    options = {"recurrent_dropout": 0.2, "zoneout": [0.05, 0.5], "layer_norm": True, "weight_dropout": 0.5}
    assert run(*arguments, *(word for name, value in options.items() for word in ("-s", f"{name}={value}"))) == 0
    assert Run(tmp_path / "run").config["system"] == {"name": "lstm", "hidden_size": 4, **options}
    assert "layer.norm_l0" in Run(tmp_path / "run").weights()
    assert run("resume", tmp_path / "run", "-q") == 0


def test_python_words_reach_the_layer(tmp_path):
    arguments = ["train", "adding", "lstm", "--folder", tmp_path / "run", *QUICK, "-t", "length=5"]
    assert run(*arguments, "-s", "bias=False", "-s", "checkpoint_every=None", "-s", "dropout=.0") == 0
    assert Run(tmp_path / "run").config["system"] == {"name": "lstm", "hidden_size": 4, "bias": False, "dropout": 0.0}
    assert "layer.bias_l0" not in Run(tmp_path / "run").weights()
    assert run("resume", tmp_path / "run", "-q") == 0


def test_no_margin_is_kept_in_the_word_that_a_file_has(tmp_path):
    arguments = ["train", "adding", "spectral", "--folder", tmp_path / "run", *QUICK, "-t", "length=5"]
    assert run(*arguments, "-s", "margin=None") == 0
    assert Run(tmp_path / "run").config["system"]["margin"] == "none"
    assert run("resume", tmp_path / "run", "-q") == 0


@pytest.mark.parametrize("options", [["-t", "target=2024"], ["-t", "target=2024", "-t", "sequence=1"]])
def test_columns_may_be_called_by_numbers(options, tmp_path):
    rows = [f"{number},{number + step},{number % 2}" for number in range(6) for step in range(3)]
    (tmp_path / "years.csv").write_text("\n".join(["1,x,2024", *rows]))
    folder = tmp_path / "run"
    assert (
        run("train", f"csv:{tmp_path / 'years.csv'}", "rnn", "--folder", folder, *QUICK, *options, "-t", "length=3")
        == 0
    )
    assert Run(folder).config["task"]["target"] == "2024"


def test_a_batch_has_the_name_it_has_in_other_commands(tmp_path):
    assert run("train", "adding", "rnn", *QUICK, "--batch", 3, "--folder", tmp_path / "run") == 0
    assert Run(tmp_path / "run").config["training"]["batch_size"] == 3
