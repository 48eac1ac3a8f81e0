"""What every task with a finite set of sequences does: epochs, parts, whole passes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from made_data import small_options

from evenflow.lab.tasks import TASKS, Position, make
from evenflow.lab.tasks.data_set import DataSet, split, stratified_split
from evenflow.lab.tasks.labelled import Labelled

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Numbered(Labelled):
    """Sequences that carry their own number, so that a batch tells which ones it holds."""

    size: int = 10

    name: ClassVar[str] = "numbered"
    input_size: ClassVar[int] = 1
    output_size: ClassVar[int] = 3
    solved_limit: ClassVar[float] = 1.0

    def sequences(self):
        first = {"training": 0, "validation": 1000, "test": 2000}[self.part]
        numbers = np.arange(first, first + self.size, dtype=np.float32)
        return np.repeat(numbers[:, None, None], 2, axis=1), numbers.astype(np.int64) % 3


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def held(batch) -> list[int]:
    return batch.inputs[0, :, 0].int().tolist()


@pytest.fixture(params=[name for name, task in TASKS.items() if issubclass(task, DataSet)])
def task(request, small_data):
    if request.param == "digits":
        pytest.importorskip("sklearn")
    return make(request.param, **small_options(request.param, small_data))


@pytest.mark.parametrize(
    ("count", "size", "processes"), [(10, 2, 1), (10, 3, 1), (12, 2, 3), (3, 5, 1), (5, 5, 1), (9, 5, 2), (7, 4, 3)]
)
def test_an_epoch_holds_every_sequence_once(count, size, processes):
    data = Numbered(count)
    steps = data.epoch_steps(size, processes)
    assert steps == max(1, count // (size * processes))
    epochs = []
    for epoch in range(3):
        seen = [
            number
            for step in range(epoch * steps, (epoch + 1) * steps)
            for rank in range(processes)
            for number in held(data.training_batch(size, Position(step, 100, 7, rank, processes), generator(step)))
        ]
        assert len(set(seen)) == len(seen) == min(count - count % processes, steps * size * processes)
        epochs.append(seen)
    assert len({tuple(epoch) for epoch in epochs}) > 1, "each epoch draws an order of its own"


def test_the_order_follows_from_the_seed_and_the_step_alone():
    data = Numbered()
    first = [held(data.training_batch(3, Position(step, 9, seed=1), generator())) for step in range(9)]
    later = [held(data.training_batch(3, Position(step, 9, seed=1), generator(5))) for step in reversed(range(9))]
    other = [held(data.training_batch(3, Position(step, 9, seed=2), generator())) for step in range(9)]
    assert first == later[::-1]
    assert first != other


@pytest.mark.parametrize("processes", [1, 3])
def test_a_whole_pass_holds_every_sequence_once_in_order(processes):
    data = Numbered(11).held_out()
    seen = [
        number
        for rank in range(processes)
        for batch in data.every_batch(2, Position(0, 1, 0, rank, processes), CPU)
        for number in held(batch)
    ]
    assert sorted(seen) == list(range(1000, 1011))


def test_parts_are_told_apart():
    data = Numbered()
    assert data != data.held_out() != data.test()
    assert data.held_out().held_out() == data.held_out()
    assert data.options() == {"size": 10}
    assert repr(data) == "Numbered(size=10)"


def test_without_memory_the_loss_is_that_of_the_shares():
    share = np.array([4, 3, 3]) / 10
    assert Numbered().baseline == pytest.approx(-(share * np.log(share)).sum())
    assert Numbered().held_out().baseline == Numbered().baseline


def test_the_split_never_changes():
    """Values written down once: a drift would make runs incomparable without a word."""
    train, valid = split(10, 3)
    assert (valid.tolist(), train.tolist()) == ([2, 9, 6], [4, 0, 3, 1, 7, 8, 5])


@pytest.mark.parametrize("sizes", [(10, 5), (6, 6, 6, 6), (1, 2, 3, 4, 20), (33, 7, 60)])
def test_a_stratified_split_takes_the_same_share_of_each_class(sizes):
    labels = np.random.RandomState(0).permutation(np.repeat(np.arange(len(sizes)), sizes))
    for seed in range(20):
        training, validation = stratified_split(labels, 5, seed)
        assert sorted([*training, *validation]) == list(range(len(labels)))
        for label, size in enumerate(sizes):
            held_out = int((labels[validation] == label).sum())
            assert abs(held_out - size / 5) < 1
            assert held_out >= (size >= 5)
            assert size - held_out >= 1


def test_a_stratified_split_follows_its_seed():
    labels = np.arange(60) % 3
    splits = [stratified_split(labels, 5, seed)[1].tolist() for seed in (1, 1, 2)]
    assert splits[0] == splits[1] != splits[2]


def test_every_sequence_of_every_set_is_in_one_part(task):
    parts = [task, task.held_out(), *([task.test()] if task.test() is not None else [])]
    assert len(set(parts)) == len(parts)
    for part in parts:
        batches = list(part.every_batch(7, Position(0, 1), CPU))
        if not task.carries:
            assert sum(batch.inputs.shape[1] for batch in batches) == part.count()
        assert all(float(part.weight(batch)) > 0 for batch in batches)


def test_answers_to_padding_do_not_count(task):
    batch = task.batch(5, generator())
    if batch.lengths is None or task.readout == "last":
        pytest.skip("its sequences are equally long, or read at the end")
    outputs = torch.randn(*batch.inputs.shape[:2], task.output_size)
    past = torch.arange(len(outputs))[:, None] >= batch.lengths
    other = torch.where(past[..., None], torch.randn_like(outputs), outputs)
    assert past.any()
    assert torch.equal(task.loss(outputs, batch.targets), task.loss(other, batch.targets))
    assert (batch.inputs[past] == 0).all()
    assert int(task.weight(batch)) == int(batch.lengths.sum())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_the_set_is_kept_there(task):
    batch = task.training_batch(4, Position(3, 10), torch.Generator("cuda"))
    assert batch.inputs.is_cuda
    assert batch.targets.is_cuda
    there, here = (task.rows(4, Position(3, 10), torch.device(kind)) for kind in ("cuda", "cpu"))
    assert there.tolist() == here.tolist(), "a seed gives one order on every device"
