"""What a run trains on and what it is judged by: curricula, held-out data, and both after a resumption."""

from __future__ import annotations

import importlib.util
import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch

from evenflow import SequenceModel, create
from evenflow.tasks import TASKS, Adding, Curriculum
from evenflow.training import Run, checkpoint, fit, resume, train
from evenflow.training.loop import Loop
from evenflow.training.seeds import derive

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
    options = {"steps": 1, "batch_size": 4, "rate": 1e-12, "device": "cpu"}
    grown, plain = (fit(model_for(inner), task, **options) for task in (Curriculum(inner, start=4), inner))
    assert grown.loss != plain.loss
    assert grown.valid_loss == pytest.approx(plain.valid_loss, rel=SAME)


@pytest.mark.parametrize("name", TASKS)
def test_every_task_resumes_to_the_same_bits(name, tmp_path, monkeypatch):
    if name == "digits" and importlib.util.find_spec("sklearn") is None:
        pytest.skip("digits needs scikit-learn")
    training = {"steps": 8, "batch_size": 2, "validate_every": 4, "validation_batches": 2, "log_every": 1}
    config = {
        "task": {"name": name},
        "system": {"name": "rnn", "hidden_size": 4},
        "training": training | {"checkpoint_every": 3, "probe_every": 4, "device": "cpu"},
    }
    alone = train(config, tmp_path / "alone", progress=False)
    update = Loop._update

    def interrupted(loop):
        if loop.step == 5:
            raise KeyboardInterrupt
        update(loop)

    with monkeypatch.context() as patched:
        patched.setattr(Loop, "_update", interrupted)
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
