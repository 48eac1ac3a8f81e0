"""What a resumed run does with best weights that are damaged or gone, and with rows that are missing."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from killed_runs import same
from safetensors.torch import load_file, save_file

from evenflow.lab import cli
from evenflow.lab.training import Run, checkpoint, resume, train
from evenflow.lab.training.loop import Loop
from evenflow.lab.training.recovery import Start, find_start

BEST = 8  # the step of the best validation with this seed, long before the end; the fixture makes sure of it
CONFIG = {
    "task": {"name": "adding", "length": 6},
    "system": {"name": "rnn", "hidden_size": 6},
    "training": {
        "steps": 20,
        "batch_size": 4,
        "lr": 0.01,
        "seed": 2,
        "validate_every": 4,
        "validation_batches": 1,
        "log_every": 2,
        "checkpoint_every": 4,
        "device": "cpu",
    },
}


@contextmanager
def interrupted(last: int) -> Iterator[None]:
    """Ctrl-C after `last` updates."""
    update = Loop.update

    def until(loop: Loop) -> None:
        if loop.step == last:
            raise KeyboardInterrupt
        update(loop)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Loop, "update", until)
        with pytest.raises(KeyboardInterrupt):
            yield


def steps_until(folder: Path, last: int, **training: object) -> Path:
    """A run that was interrupted after `last` updates."""
    with interrupted(last):
        train(CONFIG | {"training": CONFIG["training"] | training}, folder, progress=False)
    return folder


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "alone"
    result = train(CONFIG, folder, progress=False)
    assert result.best_step == BEST
    return folder


def spoil(folder: Path, how: str) -> None:
    """Flip a sign, cut, remove or mix up the best weights."""
    path = folder / "checkpoint" / "best.safetensors"
    if how == "missing":
        path.unlink()
    elif how == "cut":
        path.write_bytes(path.read_bytes()[:-3])
    elif how == "another":
        checkpoint.save_best(path.parent, checkpoint.load_best(path.parent).weights, BEST - 4)
    elif how == "of another run":  # of the same step
        checkpoint.save_best(path.parent, {k: -w for k, w in checkpoint.load_best(path.parent).weights.items()}, BEST)
    elif how == "without notes":
        save_file({k: -w for k, w in checkpoint.load_best(path.parent).weights.items()}, path)
    else:
        content = bytearray(path.read_bytes())
        content[-1] ^= 0x80
        path.write_bytes(content)


def assert_alike(folder: Path, alone: Path) -> None:
    """Both ended in the same bits, best weights too."""
    kept = []
    for one in (folder, alone):
        saved = checkpoint.load(one / "checkpoint", checkpoint.find(one / "checkpoint"))
        saved.state.pop("seconds")
        rows = [line.rsplit(",", 1)[0] for line in Run(one).metric_lines()]
        kept.append((saved.weights, saved.state, Run(one).weights("best"), rows, Run(one).status))
    same(*kept, "run")


DAMAGES = ["sign", "cut", "missing", "another", "of another run", "without notes"]


@pytest.mark.parametrize("how", DAMAGES)
def test_best_weights_from_long_ago_that_are_damaged_do_not_stop_the_run(tmp_path, how, alone):
    folder = steps_until(tmp_path / "run", 18)
    spoil(folder, how)
    lost = (
        r"^best weights .*best.safetensors are (damaged|missing|those of step|not those of this run).*; they are lost, "
        r"since no checkpoint from before step 8 is left to find them again: the weights of step 16, validated anew, "
        r"count as the best"
    )
    with pytest.warns(UserWarning, match=lost), interrupted(18):
        resume(folder, progress=False)
    with pytest.warns(UserWarning, match=lost):  # no checkpoint since then, so it says so again
        result = resume(folder, progress=False)
    assert result.best_step in (16, 20)
    assert checkpoint.load_best(folder / "checkpoint").step == result.best_step
    same(checkpoint.weights_of(result.model), Run(alone).weights(), "last weights")
    assert Run(folder).metrics["loss"].tolist() == Run(alone).metrics["loss"].tolist()


def test_a_run_that_had_stopped_early_stays_stopped_without_its_best_weights(tmp_path):
    training = {"patience": 1, "lr": 1.0, "optimizer": "sgd", "checkpoint_every": 100}
    stopped = train(CONFIG | {"training": CONFIG["training"] | training}, tmp_path / "run", progress=False)
    assert stopped.stopped_early
    assert stopped.best_step < stopped.steps
    checkpoints = tmp_path / "run" / "checkpoint"
    shutil.rmtree(checkpoints / "step-000000000")
    spoil(tmp_path / "run", "missing")
    with pytest.warns(UserWarning, match=f"the weights of step {stopped.steps}, validated anew"):
        again = resume(tmp_path / "run", progress=False)
    assert (again.steps, again.best_step, again.stopped_early) == (stopped.steps, stopped.steps, True)


@pytest.mark.parametrize("how", ["empty", "flipped", "cut", "no zip", "other arrays"])
def test_damaged_probes_do_not_stop_the_run(tmp_path, how):
    alone = train(CONFIG | {"training": CONFIG["training"] | {"probe_every": 2}}, tmp_path / "alone", progress=False)
    folder = steps_until(tmp_path / "run", 10, probe_every=2)
    path = folder / "probes.npz"
    content = path.read_bytes()
    middle = len(content) // 2
    path.write_bytes(
        {
            "empty": b"",
            "flipped": content[:middle] + bytes([content[middle] ^ 0xFF]) + content[middle + 1 :],
            "cut": content[:middle],
            "no zip": b"junk",
            "other arrays": content,
        }[how]
    )
    if how == "other arrays":
        np.savez(path, step=np.zeros((2, 3, 4)), gradient_norm=np.zeros(1))
    with pytest.warns(
        UserWarning, match=r"probes.npz of run .*; the probes up to step 8 are lost, the run goes on$"
    ) as said:
        result = resume(folder, progress=False)
    assert not any("allow_pickle" in str(warning.message) for warning in said)
    same(result.model.state_dict(), alone.model.state_dict(), "weights")
    assert Run(folder).probes["step"].tolist() == list(range(10, 21, 2))


def test_a_version_of_the_best_step_holds_the_same_weights(tmp_path, alone):
    folder = steps_until(tmp_path / "run", 15)  # versions 8 and 12
    spoil(folder, "sign")
    with pytest.warns(UserWarning, match=r"are damaged: .*; they are taken from step-000000008$"):
        resume(folder, progress=False)
    assert_alike(folder, alone)


@pytest.mark.parametrize("kill", [None, 7, 9, 13], ids=["left", "before", "after", "later"])
@pytest.mark.parametrize("how", DAMAGES)
def test_back_to_before_the_best_step(tmp_path, how, kill):
    """Also where the run that goes back is interrupted before and after it has found the best again."""
    alone = tmp_path / "alone"
    train(CONFIG | {"training": CONFIG["training"] | {"checkpoint_every": 6}}, alone, progress=False)
    folder = steps_until(tmp_path / "run", 13, checkpoint_every=6)  # versions 6 and 12, neither of the best step
    spoil(folder, how)
    checkpoints = folder / "checkpoint"
    with pytest.warns(UserWarning, match=r"; resuming from step-000000006 to find them again$"):
        start = find_start(checkpoints)
    assert start == Start("step-000000006-again", False, BEST)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it was said once, and all that follows is as it should be
        assert find_start(checkpoints) == start
        if kill is not None:
            with interrupted(kill):
                resume(folder, progress=False)
        resume(folder, progress=False)
    assert_alike(folder, alone)


def test_gone_back_and_saved_before_the_best_is_found_again(tmp_path, alone):
    """A version from between says that the best weights are still to come."""
    folder = steps_until(tmp_path / "run", 10, checkpoint_every=6)  # version 6, best weights of step 8
    spoil(folder, "missing")
    checkpoints = folder / "checkpoint"
    saved = checkpoint.load(checkpoints, "step-000000006")
    saved.state["best"]["awaited"] = BEST
    shutil.rmtree(checkpoints / "step-000000006")
    checkpoint.save(checkpoints, saved)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert find_start(checkpoints) == Start("step-000000006", False, BEST)
        result = resume(folder, progress=False)
    assert result.best_step == BEST
    same(Run(folder).weights("best"), Run(alone).weights("best"), "best")


def test_best_weights_may_run_ahead_of_the_checkpoint(tmp_path, alone):
    folder = steps_until(tmp_path / "run", 10, checkpoint_every=6)  # version 6, best weights of step 8
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert find_start(folder / "checkpoint") == Start("step-000000006", True, BEST)
        resume(folder, progress=False)
    same(Run(folder).weights("best"), Run(alone).weights("best"), "best")


@pytest.mark.parametrize("first", [None, "0" * 64])
def test_best_weights_of_another_run_at_a_later_step_are_not_awaited(tmp_path, alone, first):
    folder = steps_until(tmp_path / "run", 10)
    checkpoints = folder / "checkpoint"
    others = {name: -weight for name, weight in checkpoint.load_best(checkpoints).weights.items()}
    checkpoint.save_best(checkpoints, others, 16, first)
    with pytest.warns(UserWarning, match=r"are not those of this run; they are taken from step-000000008$"):
        resume(folder, progress=False)
    assert_alike(folder, alone)


def test_an_awaited_best_counts_even_where_rounding_makes_it_worse(tmp_path):
    folder = steps_until(tmp_path / "run", 10, checkpoint_every=6)
    saved = checkpoint.load(folder / "checkpoint", "step-000000006")
    saved.state["best"].update(metric=0.0, loss=0.0)  # better than all that follow
    shutil.rmtree(folder / "checkpoint" / "step-000000006")
    checkpoint.save(folder / "checkpoint", saved)
    assert resume(folder, progress=False).best_step == BEST


def test_an_awaited_best_that_is_as_good_as_the_one_before_does_not_put_off_early_stopping(tmp_path):
    level = {"patience": 2, "lr": 1e-30, "optimizer": "sgd", "checkpoint_every": 6}
    stopped = train(CONFIG | {"training": CONFIG["training"] | level}, tmp_path / "alone", progress=False)
    assert (stopped.best_step, stopped.steps) == (12, 12)
    folder = steps_until(tmp_path / "run", 10, **level)  # version 6, best weights of step 8
    assert find_start(folder / "checkpoint") == Start("step-000000006", True, 8)
    assert resume(folder, progress=False).steps == stopped.steps
    same(Run(folder).weights("best"), Run(tmp_path / "alone").weights("best"), "best")


@pytest.mark.parametrize("name", ["stale", "metric", "loss"])
def test_a_best_validation_that_is_no_number_is_one_sentence(tmp_path, name):
    folder = steps_until(tmp_path / "run", 10)
    saved = checkpoint.load(folder / "checkpoint", "step-000000008")
    saved.state["best"][name] = None
    shutil.rmtree(folder / "checkpoint" / "step-000000008")
    checkpoint.save(folder / "checkpoint", saved)
    with pytest.raises(ValueError, match="its state does not fit the run"):
        resume(folder, progress=False)


def test_a_run_from_before_the_digest_goes_on(tmp_path, alone):
    folder = steps_until(tmp_path / "run", 18)
    best, version = folder / "checkpoint" / "best.safetensors", folder / "checkpoint" / "step-000000016"
    save_file(load_file(best), best)
    saved = checkpoint.load(version.parent, version.name)
    del saved.state["best"]["awaited"]
    shutil.rmtree(version)
    checkpoint.save(version.parent, saved)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        resume(folder, progress=False)
    assert_alike(folder, alone)


def test_a_finished_run_whose_best_weights_are_lost_has_its_last_ones(tmp_path, alone):
    folder = tmp_path / "run"
    shutil.copytree(alone, folder)
    assert torch.isfinite(torch.tensor(resume(folder, progress=False).best_loss))
    spoil(folder, "sign")
    with pytest.warns(UserWarning, match="the weights of step 20, validated anew, count as the best"):
        result = resume(folder, progress=False)
    assert result.best_step == 20
    same(result.best_weights, Run(alone).weights(), "weights")
    assert Run(folder).status["best_step"] == 20


def command(*arguments: str | Path) -> int:
    with pytest.raises(SystemExit) as left:
        cli.main([str(argument) for argument in arguments])
    return left.value.code


def test_the_command_line_warns_in_one_line(tmp_path, capsys):
    folder = steps_until(tmp_path / "run", 18)
    version = folder / "checkpoint" / "step-000000016"
    (version / "state.pt").write_bytes(b"")
    assert command("resume", folder, "-q") == 0
    assert capsys.readouterr().err == f"evenflow: checkpoint {version} is damaged, resuming from step-000000012\n"


def test_the_command_line_says_what_is_lost_in_one_line(tmp_path, capsys):
    folder = steps_until(tmp_path / "run", 18)
    spoil(folder, "sign")
    assert command("resume", folder, "-q") == 0
    said = capsys.readouterr().err
    assert said.startswith(f"evenflow: best weights {folder / 'checkpoint' / 'best.safetensors'} are damaged: ")
    assert said.count("\n") == 1


def test_junk_among_the_rows_is_named_by_file_and_line(tmp_path, capsys):
    folder = steps_until(tmp_path / "run", 10)
    with open(folder / "metrics.csv", "ab") as file:
        file.write(b"foo,bar\n")
    assert command("resume", folder, "-q") == 2
    said = capsys.readouterr().err
    assert said.startswith(
        f"evenflow: metrics.csv of run {str(folder)!r} cannot be read: line 7 must hold a step and 6"
    )


def test_lost_rows_are_said(tmp_path, capsys):
    folder = steps_until(tmp_path / "run", 18)
    lines = (folder / "metrics.csv").read_text(encoding="utf-8").splitlines(keepends=True)
    del lines[2:5]  # of steps 4, 6 and 8
    (folder / "metrics.csv").write_text("".join(lines), encoding="utf-8")
    assert command("resume", folder, "-q") == 0
    assert capsys.readouterr().err == (
        f"evenflow: metrics.csv of run {str(folder)!r} has lost 3 of its rows up to step 16, "
        "the first that of step 4: the run goes on without them\n"
    )
    assert Run(folder).metrics["step"].tolist() == [2, *range(10, 21, 2)]
