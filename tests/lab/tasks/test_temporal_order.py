from __future__ import annotations

import math

import pytest
import torch

from evenflow.lab.tasks import TemporalOrder, make

# A share of 1/4 among 100,000: five standard errors.
SHARE = 5 * (0.25 * 0.75 / 100_000) ** 0.5


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("symbols", [2, 3])
def test_shapes_and_targets_by_hand(symbols):
    task = TemporalOrder(length=30, symbols=symbols)
    inputs, targets, lengths = task.batch(300, generator())
    assert inputs.shape == (30, 300, task.input_size)
    assert targets.shape == (300,)
    assert lengths is None
    assert torch.equal(inputs.sum(-1), torch.ones(30, 300))
    classes = {"xx": 0, "xy": 1, "yx": 2, "yy": 3}
    if symbols == 3:
        classes = {"xxx": 0, "xxy": 1, "xyx": 2, "xyy": 3, "yxx": 4, "yxy": 5, "yyx": 6, "yyy": 7}
    assert task.output_size == len(classes)
    for b in range(300):
        text = "".join("abcdxy"[i] for i in inputs[:, b].argmax(-1).tolist())
        special = "".join(letter for letter in text if letter in "xy")
        assert targets[b].item() == classes[special]
    assert set(inputs.argmax(-1).unique().tolist()) == set(range(6))


def test_special_symbols_may_stand_anywhere():
    inputs, _, _ = TemporalOrder(length=8).batch(2000, generator())
    special = inputs[..., 4:].sum(-1)
    assert (special.sum(0) == 2).all()
    assert (special.sum(1) > 0).all()
    assert TemporalOrder(length=3, symbols=3).batch(5, generator()).inputs[..., 4:].sum(-1).eq(1).all()


@pytest.mark.parametrize("symbols", [2, 3])
def test_baseline_is_the_loss_of_a_memoryless_guesser(symbols):
    task = TemporalOrder(length=6, symbols=symbols)
    _, targets, _ = task.batch(100_000, generator())
    classes = 2**symbols
    for answer in range(classes):
        assert (targets == answer).float().mean().item() == pytest.approx(1 / classes, abs=SHARE)
    assert task.baseline == pytest.approx(symbols * math.log(2))
    assert task.loss(torch.zeros(100_000, classes), targets).item() == pytest.approx(task.baseline, rel=1e-5)
    guesses = torch.rand(100_000, classes, generator=generator(1))
    assert task.metric(guesses, targets).item() == pytest.approx(1 / classes, abs=SHARE)


def test_solved_above_99_percent_right():
    task = TemporalOrder(length=12)
    _, targets, _ = task.batch(100, generator())
    outputs = 50.0 * torch.nn.functional.one_hot(targets, 4)
    assert (task.metric_name, task.higher_is_better) == ("accuracy", True)
    assert task.metric(outputs, targets).item() == 1
    assert task.metric(-outputs, targets).item() == 0
    assert task.loss(outputs, targets).item() < 1e-6
    assert task.solved(0.991)
    assert not task.solved(0.99)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"symbols": 4}, "symbols must be 2 or 3, got 4"),
        ({"symbols": "2"}, "symbols must be 2 or 3, got '2'"),
        ({"symbols": 2.0}, r"symbols must be 2 or 3, got 2\.0"),
        ({"symbols": [2]}, r"symbols must be 2 or 3, got \[2\]"),
        ({"length": 1}, "length must be a whole number of at least 2, got 1"),
        ({"length": 2, "symbols": 3}, "length must be a whole number of at least 3, got 2"),
    ],
    ids=str,
)
def test_wrong_options(options, sentence):
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        make("temporal-order", **options)
