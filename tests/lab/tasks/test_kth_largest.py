from __future__ import annotations

import itertools
import math
from collections import Counter

import pytest
import torch

from evenflow.lab.tasks import KthLargest, make

SAMPLES = 100_000
SIGMAS = 5
# Sums of a few hundred terms in double precision.
ROUNDING = 1e-12


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(("length", "k"), [(20, 1), (20, 3), (20, 20), (2, 2)])
def test_shapes_and_targets_by_hand(length, k):
    task = KthLargest(length=length, k=k, embedding=4)
    inputs, targets, lengths = task.batch(300, generator())
    assert inputs.shape == (length, 300)
    assert targets.shape == (300,)
    assert inputs.dtype == targets.dtype == torch.int64
    assert lengths is None
    assert (task.vocabulary, task.input_size, task.output_size) == (length, 4, length)
    assert set(inputs.unique().tolist()) == set(range(length))
    assert [sorted(column)[-k] for column in inputs.T.tolist()] == targets.tolist()


def test_numbers_are_drawn_with_replacement():
    """Otherwise the answer would be a constant."""
    inputs, targets, _ = KthLargest(length=10, k=3).batch(200, generator())
    assert any(len(set(column)) < 10 for column in inputs.T.tolist())
    assert len(set(targets.tolist())) > 1


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_baseline_is_the_entropy_of_all_sequences(k):
    """All 4⁴ sequences, each as likely as the next."""
    answers = Counter(sorted(numbers)[-k] for numbers in itertools.product(range(4), repeat=4))
    shares = [answers[v] / 4**4 for v in range(4)]
    task = KthLargest(length=4, k=k)
    assert task.answers().tolist() == pytest.approx(shares, abs=ROUNDING)
    assert task.baseline == pytest.approx(-sum(p * math.log(p) for p in shares), abs=ROUNDING)


@pytest.mark.parametrize(("length", "k"), [(20, 3), (100, 10)])
def test_baseline_is_the_loss_of_a_memoryless_guesser(length, k):
    task = KthLargest(length=length, k=k)
    p = task.answers()
    assert p.sum().item() == pytest.approx(1, abs=ROUNDING)
    targets = torch.cat([task.batch(SAMPLES // 10, generator(seed)).targets for seed in range(10)])
    surprise = -p.log()
    spread = ((p * surprise.nan_to_num(posinf=0) ** 2).sum() - task.baseline**2).sqrt().item()
    outputs = p.log().float().expand(SAMPLES, length)
    assert task.loss(outputs, targets).item() == pytest.approx(task.baseline, abs=SIGMAS * spread / SAMPLES**0.5)
    assert not task.solved(task.metric(outputs, targets).item())


def test_long_sequences_have_a_finite_baseline():
    assert 2 < KthLargest(length=400, k=10).baseline < math.log(400)
    assert 2 < KthLargest(length=2000, k=1000).baseline < math.log(2000)


def test_solved_at_99_percent_right():
    task = KthLargest(length=12, k=2)
    _, targets, _ = task.batch(100, generator())
    outputs = 50.0 * torch.nn.functional.one_hot(targets, 12)
    assert (task.metric_name, task.higher_is_better) == ("accuracy", True)
    assert task.metric(outputs, targets).item() == 1
    assert task.metric(-outputs, targets).item() == 0
    assert task.loss(outputs, targets).item() < 1e-6
    assert task.solved(0.99)
    assert not task.solved(0.989)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"length": 1}, "length must be a whole number of at least 2, got 1"),
        ({"k": 0}, "k must be a whole number of at least 1, got 0"),
        ({"length": 9}, "k must be at most length, 9, got 10"),
        ({"embedding": 2.5}, r"embedding must be a whole number of at least 1, got 2\.5"),
    ],
    ids=str,
)
def test_wrong_options(options, sentence):
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        make("kth-largest", **options)
