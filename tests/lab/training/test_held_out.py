"""What a run trains on and what it is judged by: curricula, held-out data, and both after a resumption."""

from __future__ import annotations

import importlib.util
import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from made_data import small_options

from evenflow import SequenceModel, create
from evenflow.lab.tasks import TASKS, Adding, Curriculum, Position, make
from evenflow.lab.tasks.data_set import FILE_PARTS
from evenflow.lab.tasks.words import Words
from evenflow.lab.training import Run, checkpoint, evaluation, fit, resume, train
from evenflow.lab.training.loop import Loop
from evenflow.lab.training.seeds import derive

# A loop written by hand and the one under test do the same float32 operations.
SAME = 1e-6


@dataclass(frozen=True)
class Watched(Adding):
    """Notes which part is asked for a batch, and at which update."""

    seen: ClassVar[list] = []
    part: ClassVar[str] = "whole"

    def at_step(self, step, steps):
        return Trained(self.length, f"update {step} of {steps}")

    def held_out(self):
        return HeldOut(self.length)

    def batch(self, size, generator, device=None):
        self.seen.append(self.part)
        return super().batch(size, generator, device)


@dataclass(frozen=True)
class HeldOut(Watched):
    part: ClassVar[str] = "held out"


@dataclass(frozen=True)
class Trained(Watched):
    when: str = ""

    def __init__(self, length, when):
        super().__init__(length)
        object.__setattr__(self, "part", when)


def model_for(task, seed=0):
    generator = torch.Generator().manual_seed(seed)
    layer = create("rnn", task.input_size, 6, generator=generator)
    return SequenceModel(layer, task.output_size, readout=task.readout, vocabulary=task.vocabulary, generator=generator)


def test_updates_ask_for_their_step_and_judgements_for_held_out_data():
    Watched.seen.clear()
    options = {"batch_size": 2, "validate_every": 2, "validation_batches": 2, "probe_every": 2, "device": "cpu"}
    fit(model_for(Watched(length=4)), Watched(length=4), steps=4, **options)
    validation_and_probe = ["held out"] * 3
    assert Watched.seen == [
        "whole",  # the check that the model fits
        "held out",  # the probe before the first update
        "update 0 of 4",
        "update 1 of 4",
        *validation_and_probe,
        "update 2 of 4",
        "update 3 of 4",
        *validation_and_probe,
    ]


def test_a_curriculum_equals_a_loop_written_by_hand():
    task = Curriculum(Adding(length=20), start=4, until=0.5)
    model, twin = model_for(task), model_for(task)
    result = fit(model, task, steps=12, batch_size=4, log_every=1, validate_every=6, probe_every=6, device="cpu")
    optimizer = torch.optim.Adam(twin.parameters())
    lengths, losses = [], []
    for step in range(12):
        batch = task.at_step(step, 12).batch(4, torch.Generator().manual_seed(derive(0, "train", step)))
        loss = task.loss(twin(batch.inputs)[0], batch.targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        lengths.append(len(batch.inputs))
        losses.append(loss.item())
    assert lengths == [4, 6, 9, 12, 14, 17, 20, 20, 20, 20, 20, 20]
    np.testing.assert_allclose(result.history["loss"], losses, rtol=10 * SAME)
    for name, tensor in twin.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], tensor, rtol=SAME, atol=SAME)
    assert result.probes["gradient_norm"].shape == (3, 20), "probes look at the full length from the start"


def test_a_curriculum_is_judged_like_the_task_itself():
    inner = Adding(length=20)
    options = {"steps": 1, "batch_size": 4, "lr": 1e-12, "device": "cpu"}
    grown, plain = (fit(model_for(inner), task, **options) for task in (Curriculum(inner, start=4), inner))
    assert grown.loss != plain.loss
    assert grown.valid_loss == pytest.approx(plain.valid_loss, rel=SAME)


def test_a_curriculum_over_a_text_is_tested_like_the_text(small_data):
    inner = small("ptb-words", small_data, length=6, embedding=5)
    options = {"steps": 1, "batch_size": 4, "lr": 1e-12, "device": "cpu"}
    grown, plain = (fit(model_for(inner), task, **options) for task in (Curriculum(inner, start=2), inner))
    assert math.isfinite(plain.test_metric)
    assert grown.test_metric == pytest.approx(plain.test_metric, rel=SAME)


@pytest.mark.parametrize("name", TASKS)
def test_every_task_resumes_to_the_same_bits(name, tmp_path, monkeypatch, small_data):
    if name == "digits" and importlib.util.find_spec("sklearn") is None:
        pytest.skip("digits needs scikit-learn")
    training = {"steps": 8, "batch_size": 2, "validate_every": 4, "validation_batches": 2, "log_every": 1}
    config = {
        "task": {"name": name, **small_options(name, small_data)},
        "system": {"name": "rnn", "hidden_size": 4},
        "training": training | {"checkpoint_every": 3, "probe_every": 4, "device": "cpu"},
    }
    alone = train(config, tmp_path / "alone", progress=False)
    update = Loop.update

    def interrupted(loop):
        if loop.step == 5:
            raise KeyboardInterrupt
        update(loop)

    with monkeypatch.context() as patched:
        patched.setattr(Loop, "update", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train(config, tmp_path / "run", progress=False)
    assert Run(tmp_path / "run").status["state"] == "interrupted"
    again = resume(tmp_path / "run", progress=False)
    expected, found = checkpoint.weights_of(alone.model), checkpoint.weights_of(again.model)
    assert all(torch.equal(expected[key], found[key]) for key in expected)
    for column in ("step", "loss", "gradient_norm", "valid_loss", "valid_metric"):
        np.testing.assert_array_equal(again.history[column], alone.history[column])
    np.testing.assert_array_equal(again.probes["gradient_norm"], alone.probes["gradient_norm"])
    assert math.isfinite(again.valid_loss)


def small(name, small_data, **options):
    return make(name, data=str(small_data), **options)


def test_a_data_set_is_validated_whole(small_data):
    task = small("har-subset", small_data)
    model = model_for(task)
    result = fit(model, task, steps=3, batch_size=4, validate_every=3, device="cpu", progress=False)
    held_out = task.held_out()
    whole = held_out.take(torch.arange(held_out.count()))
    with torch.no_grad():
        outputs = model.eval()(whole.inputs)[0]
    assert result.valid_loss == pytest.approx(task.loss(outputs, whole.targets).item(), rel=SAME)
    assert result.valid_metric == pytest.approx(task.metric(outputs, whole.targets).item(), rel=SAME)


def test_a_state_is_detached_and_none_stays_none():
    h = torch.ones(2, requires_grad=True)
    state = evaluation.detach_state((h * 2, (h * 3,)))
    assert not state[0].requires_grad
    assert not state[1][0].requires_grad
    assert evaluation.detach_state(None) is None


def test_sequences_of_different_lengths_weigh_by_their_answers(small_data):
    """The mean over batches of other sizes and lengths is the mean over all answers."""
    task = small("music", small_data).held_out()
    model = model_for(task).eval()
    whole = task.take(torch.arange(task.count()))
    with torch.no_grad():
        expected = task.loss(model(whole.inputs, lengths=whole.lengths)[0], whole.targets)
        cpu = torch.device("cpu")
        loss, _, weight = evaluation.sums(model, task, task.every_batch(2, Position(0, 1), cpu), cpu)
    assert loss / weight == pytest.approx(expected.item(), rel=SAME)


def test_the_best_weights_are_tested_and_the_last_ones_kept(small_data, tmp_path):
    task = small("har-subset", small_data)
    model = model_for(task)
    options = {"steps": 8, "batch_size": 6, "validate_every": 2, "lr": 0.3, "device": "cpu", "progress": False}
    result = fit(model, task, folder=tmp_path / "run", **options)
    last = checkpoint.weights_of(model)
    model.load_state_dict(result.best_weights)
    whole = task.test().take(torch.arange(task.test().count()))
    with torch.no_grad():
        expected = task.loss(model.eval()(whole.inputs)[0], whole.targets).item()
    assert result.best_step < result.steps, "the last weights are not the best, or this test shows nothing"
    assert result.test_loss == pytest.approx(expected, rel=SAME)
    assert Run(tmp_path / "run").status["test_loss"] == result.test_loss
    assert all(torch.equal(last[name], tensor) for name, tensor in Run(tmp_path / "run").weights().items())


def test_a_task_without_a_test_part_is_not_tested(tmp_path):
    result = fit(model_for(Adding(length=4)), Adding(length=4), folder=tmp_path / "run", steps=1, device="cpu")
    assert math.isnan(result.test_loss)
    assert math.isnan(result.test_metric)
    assert "test_loss" not in Run(tmp_path / "run").status


@pytest.mark.parametrize("name", ["mnist", "ptb-words", "ptb-characters"])
def test_a_test_part_that_is_not_there_costs_no_update(name, small_data, tmp_path):
    """Looked for after the last update, it would cost all of them."""
    for path in [*small_data.glob("mnist/train*"), *small_data.glob("ptb/ptb.[tv][ra]*")]:
        copy = tmp_path / "sets" / path.relative_to(small_data)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    task = make(name, data=str(tmp_path / "sets"), **({"width": 28} if name == "mnist" else {"embedding": 3}))
    with pytest.raises(ValueError, match=r"(t10k-images|ptb\.test).* is not in the data folder"):
        fit(model_for(task), task, folder=tmp_path / "run", steps=1, batch_size=4, device="cpu")
    assert not (tmp_path / "run").exists()


def test_a_text_too_short_for_the_streams_costs_no_update(small_data, tmp_path, monkeypatch):
    task = small("ptb-words", small_data, length=2, embedding=3)
    words = {part: len(task.in_part(part)._streams(1, Position(0, 1), torch.device("cpu"))) for part in FILE_PARTS}
    options = {"folder": tmp_path / "run", "steps": 1, "device": "cpu", "progress": False}
    for part in ("validation", "test"):
        many = words[part] // 2 + 1
        monkeypatch.setattr(Words, "held_out" if part == "test" else "test", lambda self: None)
        with pytest.raises(ValueError, match=rf"^the {part} text has {words[part]} words, too few for {many} "):
            fit(model_for(task), task, batch_size=many, **options)
        monkeypatch.undo()
    with pytest.raises(ValueError, match=r"^the training text has .* words, too few for 5000 streams of length 2 "):
        fit(model_for(task), task, batch_size=5000, **options)
    assert not (tmp_path / "run").exists()
    most = min(words.values()) // 2
    assert math.isfinite(fit(model_for(task), task, batch_size=most, **options).valid_loss)


def test_a_set_with_nothing_to_validate_by_is_refused(monkeypatch, small_data, tmp_path):
    task = small("multilabel", small_data, set="bibtex")
    monkeypatch.setattr(type(task), "count", lambda self: 0 if self.part == "validation" else 5)
    with pytest.raises(ValueError, match=r"^task multilabel has nothing to validate or to test on"):
        fit(model_for(task), task, folder=tmp_path / "run", steps=1, batch_size=4, device="cpu")


def test_epochs_count_passes_over_the_set(small_data, tmp_path):
    task = small("har-subset", small_data)
    result = fit(model_for(task), task, folder=tmp_path / "run", epochs=3, batch_size=10, device="cpu", progress=False)
    assert result.steps == 3 * (task.count() // 10)
    assert "steps" not in Run(tmp_path / "run").config["training"]
    again = fit(model_for(task), task, folder=tmp_path / "run", epochs=3, batch_size=10, device="cpu", resume=True)
    assert again.steps == result.steps
    with pytest.raises(ValueError, match=r"^epochs goes with a data set, got 2 with task adding: give steps$"):
        fit(model_for(Adding()), Adding(), epochs=2, device="cpu")
    with pytest.raises(ValueError, match=r"^epochs stand in place of steps, got both, 2 and 5$"):
        fit(model_for(task), task, epochs=2, steps=5)


@pytest.mark.parametrize("system", ["rnn", "lstm"])
def test_a_carried_state_equals_a_loop_written_by_hand(small_data, system):
    task = small("ptb-words", small_data, length=6, embedding=5)
    model, twin = (
        SequenceModel(
            create(system, 5, 6, generator=torch.Generator().manual_seed(0)),
            task.output_size,
            readout="every",
            vocabulary=task.vocabulary,
            generator=torch.Generator().manual_seed(1),
        )
        for _ in range(2)
    )
    steps = task.epoch_steps(8) + 2  # into the second epoch, where the state starts anew
    options = {"batch_size": 8, "optimizer": "sgd", "lr": 0.5, "log_every": 1, "device": "cpu", "progress": False}
    result = fit(model, task, steps=steps, **options)
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.5)
    text = task._streams(8, Position(0, steps), torch.device("cpu"))
    state, losses = None, []
    for step in range(steps):
        first = step % task.epoch_steps(8) * 6
        state = None if first == 0 else state
        outputs, state = twin(text[first : first + 6], state)
        state = tuple(s.detach() for s in state) if isinstance(state, tuple) else state.detach()
        loss = torch.nn.functional.cross_entropy(outputs.flatten(0, 1), text[first + 1 : first + 7].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    np.testing.assert_allclose(result.history["loss"], losses, rtol=10 * SAME)
    # Validation reads the whole held-out text with the state carried along, as one long sequence.
    held_out = task.held_out()._streams(8, Position(0, 1), torch.device("cpu"))
    with torch.no_grad():
        outputs, _ = twin.eval()(held_out[:-1])
    expected = torch.nn.functional.cross_entropy(outputs.flatten(0, 1), held_out[1:].flatten()).item()
    assert result.valid_loss == pytest.approx(expected, rel=10 * SAME)
    assert result.valid_metric == pytest.approx(math.exp(expected), rel=10 * SAME)
