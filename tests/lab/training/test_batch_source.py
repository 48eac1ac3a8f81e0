"""Batches drawn for several updates at once."""

from __future__ import annotations

import pytest
import torch

from evenflow.lab import tasks
from evenflow.lab.tasks import Position
from evenflow.lab.training import batch_source
from evenflow.lab.training.batch_source import UPDATES, BatchSource


def make(task: tasks.Task, together: bool, size: int = 3) -> BatchSource:
    return BatchSource(task, size, torch.Generator(), lambda step: 1000 + step, together)


def same(one: tasks.Batch, other: tasks.Batch) -> bool:
    pairs = zip(one, other, strict=True)
    return all(a is b is None or torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("name", ["adding", "copy", "temporal-order", "xor"])
def test_a_block_is_cut_into_batches(name: str) -> None:
    task = tasks.make(name, length=12)
    whole = task.batch(3 * UPDATES, torch.Generator().manual_seed(1000 + UPDATES))
    found = [make(task, True).batch(Position(UPDATES + n, 100)) for n in range(UPDATES)]
    assert torch.equal(torch.cat([batch.inputs for batch in found], 1), whole.inputs)
    assert torch.equal(torch.cat([batch.targets for batch in found], int(task.readout == "every")), whole.targets)
    assert (found[0].lengths is None) == (whole.lengths is None)
    if whole.lengths is not None:
        assert torch.equal(torch.cat([batch.lengths for batch in found]), whole.lengths)


def test_a_batch_follows_from_its_number_alone() -> None:
    task = tasks.make("adding", length=12)
    walked, jumped = make(task, True), make(task, True)
    batches = [walked.batch(Position(step, 100)) for step in range(40)]
    for step in (39, 3, 17):
        assert same(jumped.batch(Position(step, 100)), batches[step])
    assert not same(batches[0], batches[1])


def test_one_by_one_each_has_its_own_seed() -> None:
    task = tasks.make("adding", length=12)
    found = make(task, False).batch(Position(7, 100))
    assert same(found, task.batch(3, torch.Generator().manual_seed(1007)))


def test_a_curriculum_is_drawn_one_by_one() -> None:
    task, position = tasks.make("curriculum", task="adding", length=100), Position(5, 100, seed=3)
    found = make(task, True).batch(position)
    assert same(found, task.training_batch(3, position, torch.Generator().manual_seed(1005)))


@pytest.mark.parametrize("size", [200, 1499, 1600])  # seven batches an epoch, one, and fewer sequences than a batch
@pytest.mark.parametrize(("rank", "processes"), [(0, 1), (1, 2)])
def test_batches_of_a_data_set_are_the_same_looked_up_together(size: int, rank: int, processes: int) -> None:
    task, drawing = tasks.make("digits"), make(tasks.make("digits"), True, size)
    for step in range(20):
        position = Position(step, 100, 3, rank, processes)
        assert same(drawing.batch(position), task.training_batch(size, position, torch.Generator()))


def test_a_data_set_is_looked_up_once_for_several_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    task = tasks.make("digits")
    taken, take = [], type(task).take
    monkeypatch.setattr(type(task), "take", lambda self, rows: taken.append(len(rows)) or take(self, rows))
    drawn = make(task, True, 10)
    for step in range(2 * UPDATES):
        drawn.batch(Position(step, 100))
    assert taken == [10, 10 * UPDATES, 10 * UPDATES]


def test_a_block_is_no_larger_than_memory_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_source, "MOST_NUMBERS", 12 * 3 * 2 * 5)
    task = tasks.make("adding", length=12)
    whole = task.batch(15, torch.Generator().manual_seed(1005))
    assert torch.equal(make(task, True).batch(Position(6, 100)).inputs, whole.inputs[:, 3:6])
