"""An edited config.toml is refused with what differs, unless the change is allowed."""

from __future__ import annotations

import warnings

import pytest
from killed_runs import same

from evenflow.lab import cli
from evenflow.lab.training import Run, checkpoint, resume, train
from evenflow.lab.training.changed_config import CHANGEABLE
from evenflow.lab.training.loop import Loop
from evenflow.lab.training.settings import FREE, Settings

CONFIG = {
    "task": {"name": "adding", "length": 6},
    "system": {"name": "rnn", "hidden_size": 6},
    "training": {
        "steps": 12,
        "batch_size": 4,
        "lr": 0.01,
        "validate_every": 4,
        "validation_batches": 1,
        "log_every": 2,
        "checkpoint_every": 4,
        "device": "cpu",
    },
}


@pytest.fixture
def interrupted(tmp_path, monkeypatch):
    """A run that was interrupted at step 6, and a function that edits its config."""
    update = Loop.update

    def until(loop):
        if loop.step == 6:
            raise KeyboardInterrupt
        update(loop)

    with monkeypatch.context() as patched:
        patched.setattr(Loop, "update", until)
        with pytest.raises(KeyboardInterrupt):
            train(CONFIG, tmp_path / "run", progress=False)

    def edit(before, after):
        file = tmp_path / "run" / "config.toml"
        text = file.read_text()
        assert before in text
        file.write_text(text.replace(before, after))
        return tmp_path / "run"

    return edit


@pytest.mark.parametrize(
    ("before", "after", "said", "fixed"),
    [
        ("lr = 0.01", "lr = 0.02", r"lr \(was 0.01, is 0.02\)", "lr may not change"),
        ("seed = 0", "seed = 1", r"seed \(was 0, is 1\)", "seed may not change"),
        ("length = 6", "length = 7", r"task.length \(was 6, is 7\)", "task.length may not change"),
        ('name = "rnn"', 'name = "urnn"', r"system.name \(was 'rnn', is 'urnn'\)", "system.name may not change"),
        ("steps = 12", "steps = 16", r"steps \(was 12, is 16\)", "resume with --allow-changes steps"),
        (
            "log_every = 2",
            "patience = 3",
            "log_every .*, patience .*'none', is 3",
            "--allow-changes log_every,patience",
        ),
    ],
)
def test_an_edited_config_is_refused_with_what_differs(interrupted, before, after, said, fixed):
    folder = interrupted(before, after)
    kept = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(
        ValueError, match=f"^config.toml of run '.*run' has been edited since its checkpoint: {said}"
    ) as no:
        resume(folder, progress=False)
    assert fixed in str(no.value)
    assert "\n" not in str(no.value)
    assert {path: path.read_bytes() for path in kept} == kept


def test_what_may_differ_is_no_edit(interrupted):
    folder = interrupted('device = "cpu"', 'device = "auto"')
    assert resume(folder, progress=False).steps == 12


def test_allowed_changes_act_and_are_written_down(interrupted, tmp_path):
    folder = interrupted("steps = 12", "steps = 9")
    result = resume(folder, allow_changes=["steps"], progress=False)
    assert result.steps == 9
    assert Run(folder).config["changed"] == {"steps": [12]}
    short = train(CONFIG | {"training": CONFIG["training"] | {"steps": 9}}, tmp_path / "short", progress=False)
    same(result.model.state_dict(), short.model.state_dict(), "weights")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        resume(folder, progress=False)  # allowed once, it stays allowed


def test_the_command_line_allows_changes(interrupted, capsys):
    folder = interrupted("log_every = 2", "log_every = 3\npatience = 5")

    def command(*more):
        with pytest.raises(SystemExit) as left:
            cli.main(["resume", str(folder), "-q", *more])
        return left.value.code

    assert command() == 2
    assert "resume with --allow-changes log_every,patience" in capsys.readouterr().err
    assert command("--allow-changes", "log_every, lr") == 2
    assert "allow_changes must name settings out of steps, epochs" in capsys.readouterr().err
    assert command("--allow-changes", "log_every", "--allow-changes", "patience") == 0
    assert Run(folder).config["changed"] == {"log_every": [2], "patience": ["none"]}


def test_all_that_may_change_are_settings():
    assert set(CHANGEABLE) <= set(Settings.__dataclass_fields__)
    assert not set(CHANGEABLE) & {"lr", "optimizer", "seed", "precision", *FREE}


def test_a_run_of_an_earlier_version_is_not_checked(interrupted):
    """Its checkpoints do not hold the config."""
    folder = interrupted("log_every = 2", "log_every = 3")
    place = folder / "checkpoint"
    for version in reversed(checkpoint.versions(place)):
        saved = checkpoint.load(place, version)
        older = checkpoint.Checkpoint(saved.step, saved.weights, saved.state)
        (place / version).rename(folder.parent / version)
        checkpoint.save(place, older)
    assert resume(folder, progress=False).steps == 12


def test_another_version_is_said(interrupted, monkeypatch):
    folder = interrupted("steps", "steps")
    monkeypatch.setattr(checkpoint, "EVENFLOW", "99.0")
    with pytest.warns(
        UserWarning, match=r"was made with evenflow .*, and goes on with evenflow 99.0 .*last bits may differ"
    ):
        resume(folder, progress=False)
