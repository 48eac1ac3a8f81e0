from __future__ import annotations

import pytest
import torch

from evenflow.lab.tasks import Adding, Multiplication, make

# (u v - 1/4)² has standard deviation 0.0713 over sequences; five standard errors of 100,000 of them.
SAMPLING = 5 * 0.0713 / 100_000**0.5


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_shapes_and_targets_by_hand():
    task = Multiplication(length=40)
    inputs, targets, lengths = task.batch(300, generator())
    assert inputs.shape == (44, 300, task.input_size)
    assert targets.shape == (300, task.output_size)
    assert set(lengths.tolist()) == {40, 41, 42, 43, 44}
    for b in range(300):
        steps = inputs[:, b].tolist()
        marked = [step for step, (_, marker) in enumerate(steps) if marker == 1]
        first, second = marked
        assert targets[b].item() == pytest.approx(steps[first][0] * steps[second][0], rel=1e-6)
        assert 10 * first < lengths[b]
        assert 4 * lengths[b] <= 10 * second <= 5 * lengths[b]
        assert all(step == [0, 0] for step in steps[int(lengths[b]) :])
    assert 0 <= inputs[..., 0].min() < inputs[..., 0].max() < 1


def test_markers_stand_where_the_addition_has_them():
    for seed in range(3):
        product, _, lengths = Multiplication(length=57).batch(100, generator(seed))
        total, _, same = Adding(length=57, variant="galvan").batch(100, generator(seed))
        assert torch.equal(product[..., 1], total[..., 1])
        assert torch.equal(lengths, same)


def test_baseline_is_the_loss_of_a_memoryless_guesser():
    task = Multiplication(length=10)
    _, targets, _ = task.batch(100_000, generator())
    best_guess = torch.full_like(targets, 0.25)
    assert task.baseline == pytest.approx(0.0486, abs=1e-4)
    assert task.loss(best_guess, targets).item() == pytest.approx(task.baseline, abs=SAMPLING)
    assert not task.solved(task.metric(best_guess, targets).item())


def test_solved_by_answers_within_four_hundredths():
    task = Multiplication(length=12)
    _, targets, _ = task.batch(1000, generator())
    assert (task.metric_name, task.higher_is_better) == ("accuracy", True)
    assert task.metric(targets + 0.039, targets).item() == 1
    assert task.metric(targets - 0.041, targets).item() == 0
    assert task.solved(0.991)
    assert not task.solved(0.99)


@pytest.mark.parametrize("length", [9, 12.0])
def test_wrong_options(length):
    with pytest.raises(ValueError, match=rf"^length must be a whole number of at least 10, got {length}$"):
        make("multiplication", length=length)
