"""Several seeds of one config: none is missing when they go on, wherever the first sitting ended."""

from __future__ import annotations

import shutil

import pytest

from evenflow.lab import cli
from evenflow.lab.training import Run
from evenflow.lab.training.run_writer import RunWriter
from evenflow.lab.training.seed_folders import SEEDS, resumed_folders

OPTIONS = ["--hidden", "4", "--steps", "4", "--batch-size", "2", "-t", "length=5", "--device", "cpu", "-q"]


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as left:
        cli.main([str(a) for a in arguments])
    return left.value.code


class Killed(BaseException):
    """Stands for a kill: nothing catches it."""


@pytest.mark.parametrize("begun", [0, 1, 2])
def test_killed_while_its_folders_are_made(begun, tmp_path, monkeypatch, capsys):
    command = ["train", "adding", "rnn", "--seeds", "3", "--seed", "9", *OPTIONS]
    assert run(*command, "--folder", tmp_path / "alone") == 0
    alone = capsys.readouterr().out.split("The runs")[0]
    create, made = RunWriter.create.__func__, []

    def killed(cls, folder, table):
        if len(made) == begun:
            raise Killed
        made.append(folder)
        return create(cls, folder, table)

    with monkeypatch.context() as patched:
        patched.setattr(RunWriter, "create", classmethod(killed))
        with pytest.raises(Killed):
            cli.main([str(a) for a in [*command, "--folder", tmp_path / "run"]])
    assert len(list((tmp_path / "run").glob("seed-*/config.toml"))) == begun
    assert run("resume", tmp_path / "run", "-q") == 0
    assert capsys.readouterr().out.split("The runs")[0] == alone
    for seed in (9, 10, 11):
        assert Run(tmp_path / "run" / f"seed-{seed}").config == Run(tmp_path / "alone" / f"seed-{seed}").config


def test_a_folder_from_before_seeds_were_noted_goes_on(tmp_path, capsys):
    assert run("train", "adding", "rnn", "--seeds", "11", "--folder", tmp_path, *OPTIONS) == 0
    (tmp_path / SEEDS).unlink()
    shutil.rmtree(tmp_path / "seed-3")
    capsys.readouterr()
    with pytest.warns(UserWarning, match="is lost: the 10 seeds with a folder go on"):
        resumed = resumed_folders(tmp_path)
    assert [path.name for path in resumed] == [f"seed-{seed}" for seed in range(11) if seed != 3]
    assert (tmp_path / SEEDS).is_file()
    assert run("resume", tmp_path, "-q") == 0
    assert "of 10:" in capsys.readouterr().out


def test_a_lost_list_of_seeds_is_written_again(tmp_path):
    assert run("train", "adding", "rnn", "--seeds", "2", "--folder", tmp_path, *OPTIONS) == 0
    before = (tmp_path / SEEDS).read_bytes()
    (tmp_path / SEEDS).unlink()
    with pytest.warns(UserWarning, match="is lost"):
        resumed_folders(tmp_path)
    assert (tmp_path / SEEDS).read_bytes() == before


def test_further_seeds_in_one_folder(tmp_path, capsys):
    assert run("train", "adding", "rnn", "--seeds", "2", "--folder", tmp_path, *OPTIONS) == 0
    before = (tmp_path / SEEDS).read_bytes()
    assert run("train", "adding", "rnn", "--seeds", "2", "--folder", tmp_path, *OPTIONS) == 2
    assert "holds a run already" in capsys.readouterr().err
    assert (
        run("train", "adding", "rnn", "--seeds", "2", "--seed", "2", "--folder", tmp_path, *OPTIONS, "-s", "a=1") == 2
    )
    assert (tmp_path / SEEDS).read_bytes() == before
    assert run("train", "adding", "rnn", "--seeds", "2", "--seed", "2", "--folder", tmp_path, *OPTIONS) == 0
    capsys.readouterr()
    assert run("resume", tmp_path, "-q") == 0
    assert "of 4:" in capsys.readouterr().out


@pytest.mark.parametrize(
    "content",
    ["", "not toml = =", "seeds = 3", "seeds = [1]", "seeds = [1]\ntraining = 2", "a = " + "[" * 3000]
    + [
        f"seeds = {seeds}\n[training]" for seeds in ('"12"', "[true]", "[inf]", "[1.5]", "[-1]", "[1" + "0" * 400 + "]")
    ],
)
def test_a_damaged_note_is_said(content, tmp_path):
    (tmp_path / SEEDS).write_text(content)
    with pytest.raises(ValueError, match=r"^seeds\.toml of '.*' (cannot be read|is damaged): ") as error:
        resumed_folders(tmp_path)
    assert "\n" not in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == [SEEDS]
