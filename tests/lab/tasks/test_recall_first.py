from __future__ import annotations

import math

import pytest
import torch

from evenflow.lab.tasks import RecallFirst, make

# A share of 1/10 among 100,000: five standard errors.
SHARE = 5 * (0.1 * 0.9 / 100_000) ** 0.5


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_shapes_and_targets_by_hand():
    task = RecallFirst(length=20, symbols=7, embedding=4)
    inputs, targets, lengths = task.batch(300, generator())
    assert inputs.shape == (20, 300)
    assert targets.shape == (300,)
    assert inputs.dtype == targets.dtype == torch.int64
    assert lengths is None
    assert (task.vocabulary, task.input_size, task.output_size) == (7, 4, 7)
    assert set(inputs.unique().tolist()) == set(range(7))
    assert [column[0] for column in inputs.T.tolist()] == targets.tolist()


def test_baseline_is_the_loss_of_a_memoryless_guesser():
    task = RecallFirst(length=2)
    inputs, targets, _ = task.batch(100_000, generator())
    for number in range(10):
        assert (targets == number).float().mean().item() == pytest.approx(0.1, abs=SHARE)
    # The last number, which needs no memory, says nothing about the first.
    assert (targets == inputs[-1]).float().mean().item() == pytest.approx(0.1, abs=SHARE)
    assert task.baseline == pytest.approx(math.log(10))
    assert task.loss(torch.zeros(100_000, 10), targets).item() == pytest.approx(task.baseline, rel=1e-5)


def test_solved_at_99_percent_right():
    task = RecallFirst(length=5)
    _, targets, _ = task.batch(100, generator())
    outputs = 50.0 * torch.nn.functional.one_hot(targets, 10)
    assert (task.metric_name, task.higher_is_better) == ("accuracy", True)
    assert task.metric(outputs, targets).item() == 1
    assert task.metric(-outputs, targets).item() == 0
    assert task.loss(outputs, targets).item() < 1e-6
    assert task.solved(0.99)
    assert not task.solved(0.989)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"length": 0}, "length must be a whole number of at least 1, got 0"),
        ({"symbols": 1}, "symbols must be a whole number of at least 2, got 1"),
        ({"embedding": 0}, "embedding must be a whole number of at least 1, got 0"),
    ],
    ids=str,
)
def test_wrong_options(options, sentence):
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        make("recall-first", **options)
