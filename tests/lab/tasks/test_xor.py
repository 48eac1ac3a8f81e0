from __future__ import annotations

import math

import pytest
import torch

from evenflow.lab.tasks import Xor, make

# A share of one half among 100,000, or among the about 50,000 that a condition leaves: five standard errors.
SHARE = 5 * 0.5 / 100_000**0.5
SHARE_OF_A_HALF = 5 * 0.5 / 49_000**0.5
# The entropy of a share ½ + δ is ln 2 - 2δ² and smaller terms.
ENTROPY = 3 * SHARE**2


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_shapes_and_targets_by_hand():
    task = Xor(length=40)
    inputs, targets, lengths = task.batch(300, generator())
    assert inputs.shape == (44, 300, task.input_size)
    assert targets.shape == (300, task.output_size)
    assert set(inputs.unique().tolist()) == {0.0, 1.0}
    assert set(lengths.tolist()) == {40, 41, 42, 43, 44}
    for b in range(300):
        steps = inputs[:, b].tolist()
        first, second = (step for step, (_, marker) in enumerate(steps) if marker == 1)
        assert targets[b].item() == int(steps[first][0]) ^ int(steps[second][0])
        assert 10 * first < lengths[b]
        assert 4 * lengths[b] <= 10 * second <= 5 * lengths[b]
        assert all(step == [0, 0] for step in steps[int(lengths[b]) :])


def test_baseline_is_the_loss_of_a_memoryless_guesser():
    task = Xor(length=10)
    inputs, targets, _ = task.batch(100_000, generator())
    share = targets.mean().item()
    assert share == pytest.approx(0.5, abs=SHARE)
    entropy = -share * math.log(share) - (1 - share) * math.log(1 - share)
    assert task.baseline == pytest.approx(entropy, abs=ENTROPY)
    assert task.loss(torch.zeros_like(targets), targets).item() == pytest.approx(task.baseline)
    # One of the two bits alone says nothing: with T = 10 the first marker is always at step 0.
    assert (inputs[0, :, 1] == 1).all()
    assert targets[inputs[0, :, 0] == 1].mean().item() == pytest.approx(0.5, abs=SHARE_OF_A_HALF)


def test_solved_above_99_percent_right():
    task = Xor(length=12)
    _, targets, _ = task.batch(1000, generator())
    right = 2 * targets - 1
    assert (task.metric_name, task.higher_is_better) == ("accuracy", True)
    assert task.metric(right, targets).item() == 1
    assert task.metric(-right, targets).item() == 0
    assert task.loss(30 * right, targets).item() < 1e-6
    assert task.solved(0.991)
    assert not task.solved(0.99)


@pytest.mark.parametrize("length", [9, "20"])
def test_wrong_options(length):
    with pytest.raises(ValueError, match=rf"^length must be a whole number of at least 10, got {length!r}$"):
        make("xor", length=length)
