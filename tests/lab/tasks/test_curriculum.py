from __future__ import annotations

import pytest
import torch

from evenflow.lab.tasks import TASKS, Adding, Copy, Curriculum, Digits, KthLargest, TemporalOrder, make

GROWING = ["adding", "multiplication", "xor", "temporal-order", "copy", "recall-first"]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_length_over_a_run():
    task = Curriculum(Adding(length=50), start=10, until=0.4)
    lengths = [task.at_step(step, 100).length for step in range(100)]
    assert lengths[:40] == [10 + step for step in range(40)]
    assert lengths[40:] == [50] * 60
    assert [task.at_step(step, 10).length for step in range(5)] == [10, 20, 30, 40, 50]


@pytest.mark.parametrize(("until", "last"), [(1, 19), (1.0, 19), (0.001, 20)])
def test_how_long_it_grows(until, last):
    task = Curriculum(Copy(length=20), start=10, until=until)
    assert [task.at_step(step, 10).length for step in (0, 9)] == [10, last]
    assert task.at_step(10, 10) == task.task


@pytest.mark.parametrize("name", GROWING)
def test_only_the_length_changes(name):
    inner = make(name, length=40)
    task = Curriculum(inner, start=12)
    early, options = task.at_step(0, 100), inner.options()
    assert type(early) is type(inner)
    assert early.options() == options | {"length": 12}
    assert len(early.batch(2, generator()).inputs) < len(inner.batch(2, generator()).inputs)
    for name in ("readout", "vocabulary", "input_size", "output_size", "metric_name", "higher_is_better", "baseline"):
        assert getattr(task, name) == getattr(inner, name)


def test_outside_training_it_is_the_task_itself():
    inner = Copy(length=20)
    task = Curriculum(inner, start=5)
    assert task.held_out() == inner
    for a, b in zip(task.batch(3, generator()), inner.batch(3, generator()), strict=True):
        assert (a is None and b is None) or torch.equal(a, b)
    batch = inner.batch(3, generator())
    outputs = torch.rand(*batch.targets.shape, inner.output_size, generator=generator(1))
    assert task.loss(outputs, batch.targets) == inner.loss(outputs, batch.targets)
    assert task.metric(outputs, batch.targets) == inner.metric(outputs, batch.targets)
    assert task.solved(0.99)
    assert not task.solved(0.98)


def test_by_name_the_options_stand_side_by_side():
    task = make("curriculum", task="copy", length=200, symbols=4, start=20, until=0.3)
    assert task == Curriculum(Copy(length=200, symbols=4), start=20, until=0.3)
    assert make("curriculum") == Curriculum()
    assert [task.at_step(step, 1000).length for step in (0, 150, 300, 750)] == [20, 110, 200, 200]


def test_no_task_has_an_option_of_the_same_name():
    """Side by side, they could not be told apart."""
    for name in TASKS:
        if name != "curriculum":
            assert not set(make(name).options()) & {"name", "task", "start", "until"}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"start": 0}, "start must be a whole number of at least 1, got 0"),
        ({"start": 300}, "start must be at most the length of task adding, 200, got 300"),
        (
            {"start": 1},
            "start must be a length that task adding can have: length must be a whole number of at least 2, got 1",
        ),
        ({"until": 0}, "until must be a number above 0 and at most 1, got 0"),
        ({"until": 1.5}, r"until must be a number above 0 and at most 1, got 1\.5"),
        ({"until": "half"}, "until must be a number above 0 and at most 1, got 'half'"),
        ({"until": float("nan")}, "until must be a number above 0 and at most 1, got nan"),
        ({"task": "digits"}, "task must have a length that can grow, got digits"),
        ({"task": "npz"}, "task must hold out the same sequences at every length, got npz"),
        ({"task": "kth-largest"}, "task must keep its sizes at every length, got kth-largest"),
        ({"task": "coppy"}, r"unknown task of a curriculum 'coppy', did you mean copy\?"),
        ({"task": "curriculum"}, "unknown task of a curriculum 'curriculum', known are adding, .*, xor"),
        ({"task": ["copy"]}, r"unknown task of a curriculum \['copy'\], did you mean copy\?"),
        ({"lenght": 3}, r"unknown option of task curriculum of adding 'lenght', did you mean length\?"),
        ({"strat": 3}, r"unknown option of task curriculum of adding 'strat', did you mean start\?"),
        ({"length": 1}, "length must be a whole number of at least 2, got 1"),
    ],
    ids=str,
)
def test_wrong_options(options, sentence):
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        make("curriculum", **options)


def test_wrong_tasks_in_python():
    with pytest.raises(ValueError, match=r"^task must be a task, such as Adding\(length=200\), got 'copy'$"):
        Curriculum("copy")
    with pytest.raises(ValueError, match=r"^task must have a length that can grow, got digits$"):
        Curriculum(Digits())
    with pytest.raises(ValueError, match=r"^task must have a length that can grow, got curriculum$"):
        Curriculum(Curriculum())
    with pytest.raises(ValueError, match=r"^start must be a length that task temporal-order can have: length must be"):
        Curriculum(TemporalOrder(symbols=3), start=2)
    with pytest.raises(ValueError, match=r"^task must keep its sizes at every length, got kth-largest$"):
        Curriculum(KthLargest(), start=10)
