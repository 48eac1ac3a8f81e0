from __future__ import annotations

import dataclasses

import pytest
import torch

from evenflow.model import READOUTS
from evenflow.tasks import TASKS, Adding, Copy, make


def test_the_table():
    assert list(TASKS.items()) == [("adding", Adding), ("copy", Copy)]


@pytest.mark.parametrize("name", TASKS)
def test_every_task_keeps_the_contract(name):
    task = make(name)
    assert task.name == name
    assert task.readout in READOUTS
    assert task.baseline > 0
    assert isinstance(task.higher_is_better, bool)
    assert make(name, **task.options()) == task
    assert all(field.metadata["help"] for field in dataclasses.fields(task))
    with pytest.raises(dataclasses.FrozenInstanceError):
        task.length = 3
    batch = task.batch(3, torch.Generator().manual_seed(0), device="cpu")
    assert batch.inputs.shape[1:] == (3, task.input_size)
    shape = (3, task.output_size) if task.readout == "last" else (len(batch.inputs), 3, task.output_size)
    outputs = torch.zeros(shape, requires_grad=True)
    loss = task.loss(outputs, batch.targets)
    loss.backward()
    assert loss.shape == task.metric(outputs, batch.targets).shape == ()
    assert outputs.grad.abs().sum() > 0


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("coppy", {}, r"unknown task 'coppy', did you mean copy\?"),
        ("zzz", {}, "unknown task 'zzz', known are adding, copy"),
        ("copy", {"lenght": 3}, r"unknown option of task copy 'lenght', did you mean length\?"),
        ("adding", {"k": 3}, "unknown option of task adding 'k', known are length, variant"),
    ],
    ids=["near name", "far name", "near option", "far option"],
)
def test_unknown_names(name, options, sentence):
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        make(name, **options)
