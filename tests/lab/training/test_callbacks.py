from __future__ import annotations

import pytest
import torch

from evenflow import SequenceModel, create
from evenflow.lab.tasks import Adding
from evenflow.lab.training import Callback, Run, checkpoint, fit

TASK = Adding(length=8)
QUICK = {"steps": 12, "batch_size": 4, "validate_every": 5, "validation_batches": 1, "log_every": 3, "device": "cpu"}


def model_for():
    generator = torch.Generator().manual_seed(0)
    return SequenceModel(create("rnn", 2, 6, generator=generator), 1, generator=generator)


class Listening(Callback):
    def __init__(self):
        self.calls, self.losses, self.result = [], [], None

    def after_update(self, run):
        self.calls.append(("update", run.step))
        self.losses.append(float(run.loss))

    def after_validation(self, run):
        self.calls.append(("validation", run.step))
        self.seen = run.valid_loss, run.valid_metric

    def after_checkpoint(self, run):
        self.calls.append(("checkpoint", run.step))
        assert checkpoint.find(run.folder / "checkpoint") == f"step-{run.step:09d}"

    def at_end(self, result):
        self.result = result


def test_when_each_method_is_called(tmp_path):
    callback = Listening()
    result = fit(model_for(), TASK, folder=tmp_path / "run", checkpoint_every=6, callbacks=[callback], **QUICK)
    others = {5: ["validation"], 6: ["checkpoint"], 10: ["validation"], 12: ["validation", "checkpoint"]}
    expected = [("checkpoint", 0)]
    for step in range(1, 13):
        expected += [(name, step) for name in ("update", *others.get(step, []))]
    assert callback.calls == expected
    assert callback.result is result
    assert callback.seen == (pytest.approx(result.valid_loss), pytest.approx(result.valid_metric))
    first_rows = [sum(callback.losses[:3]) / 3, sum(callback.losses[3:5]) / 2]
    assert result.history["loss"][:2].tolist() == pytest.approx(first_rows, rel=1e-5)


def test_without_a_folder_there_are_no_checkpoints():
    callback = Listening()
    fit(model_for(), TASK, callbacks=[callback], **QUICK)
    assert {name for name, _ in callback.calls} == {"update", "validation"}


def test_callbacks_leave_the_run_as_it_is():
    plain, heard = model_for(), model_for()
    fit(plain, TASK, **QUICK)
    fit(heard, TASK, callbacks=[Listening()], **QUICK)
    for a, b in zip(plain.parameters(), heard.parameters(), strict=True):
        assert torch.equal(a, b)


class Stopping(Callback):
    def __init__(self, method, at):
        setattr(self, method, lambda run: run.stop() if run.step == at else None)


@pytest.mark.parametrize(
    ("method", "at", "end"), [("after_update", 4, 4), ("after_validation", 5, 5), ("after_checkpoint", 6, 7)]
)
def test_stop(tmp_path, method, at, end):
    options = {"folder": tmp_path / "run", "checkpoint_every": 6, **QUICK}
    result = fit(model_for(), TASK, callbacks=[Stopping(method, at)], **options)
    assert (result.steps, result.stopped_early) == (end, True)
    assert result.history["step"][-1] == end
    assert result.valid_loss == result.history["valid_loss"][-1]
    run = Run(tmp_path / "run")
    assert (run.status["state"], run.status["message"]) == ("finished", f"stopped early at step {end}")
    again = fit(model_for(), TASK, **options, resume=True)
    assert again.steps == end
    for a, b in zip(result.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(a, b)


class Counting(Callback):
    def __init__(self, fail_at=0):
        self.sum, self.fail_at = 0.0, fail_at

    def after_update(self, run):
        if run.step == self.fail_at:
            raise RuntimeError("failed")
        self.sum += float(run.loss)

    def state_dict(self):
        return {"sum": self.sum, "nested": [{"tensor": torch.ones(2)}, None, "text"]}

    def load_state_dict(self, state):
        self.sum = state["sum"]


def test_a_state_goes_on(tmp_path):
    alone, again = Counting(), Counting()
    fit(model_for(), TASK, callbacks=[alone], **QUICK)
    options = {"folder": tmp_path / "run", "checkpoint_every": 5, **QUICK}
    with pytest.raises(RuntimeError, match="failed"):
        fit(model_for(), TASK, callbacks=[Counting(fail_at=8)], **options)
    with pytest.raises(ValueError, match=r"^callbacks must hold a .*test_callbacks:Counting, whose state is in the"):
        fit(model_for(), TASK, **options, resume=True)
    fit(model_for(), TASK, callbacks=[Listening(), again], **options, resume=True)
    assert again.sum == alone.sum


class Holding(Callback):
    def __init__(self, state):
        self.state_dict = lambda: state


@pytest.mark.parametrize(
    ("callbacks", "sentence"),
    [
        ([print], r"^callbacks must be objects of subclasses of Callback, got <built-in function print>$"),
        ([Listening], r"^callbacks must be objects of subclasses of Callback, got <class"),
        ([Holding({"a": [object()]})], r"^state_dict of .*:Holding must hold numbers, text, .* got a object$"),
    ],
)
def test_what_is_refused(tmp_path, callbacks, sentence):
    with pytest.raises(ValueError, match=sentence):
        fit(model_for(), TASK, callbacks=callbacks, folder=tmp_path / "run", **QUICK)
