from __future__ import annotations

import math

import pytest
import torch

from evenflow.lab.tasks import Copy, make

# A guesser's loss is a constant here (every symbol costs ln 8), so only float32 rounding of the mean remains.
ROUNDING = 1e-5
# 100,000 symbols guessed at 1 in 8: standard deviation 0.00105, five of them.
GUESSING = 0.0053

CONVENTIONS = ["factorized", "spectral"]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_shapes(convention):
    task = Copy(length=7, convention=convention)
    inputs, targets, lengths = task.batch(3, generator())
    assert inputs.shape == (27, 3, task.input_size) == (27, 3, 10)
    assert inputs.dtype == torch.float32
    assert targets.shape == (27, 3)
    assert targets.dtype == torch.int64
    assert int(targets.max()) < task.output_size == 9
    assert lengths is None
    assert torch.equal(inputs.sum(-1), torch.ones(27, 3))


def test_factorized_sentence():
    """Ten symbols of 1..8, T - 1 blanks (class 0), the delimiter (9), ten more blanks."""
    inputs, targets, _ = Copy(length=5, convention="factorized").batch(400, generator())
    classes = inputs.argmax(-1)
    assert set(classes[:10].unique().tolist()) == set(range(1, 9))
    assert (classes[10 : 10 + 5 - 1] == 0).all()
    assert (classes[10 + 5 - 1] == 9).all()
    assert (classes[10 + 5 :] == 0).all()
    assert (targets[:-10] == 0).all()
    assert torch.equal(targets[-10:], classes[:10])


def test_spectral_sentence():
    """x_{1:10} of 0..7, x_{T+10} = a_9 counted from 1, the rest a_8."""
    length = 5
    inputs, targets, _ = Copy(length=length, convention="spectral").batch(400, generator())
    x = dict(enumerate(inputs.argmax(-1), start=1))
    assert len(x) == length + 20
    assert set(torch.stack([x[i] for i in range(1, 11)]).unique().tolist()) == set(range(8))
    assert (x[length + 10] == 9).all()
    assert all((x[i] == 8).all() for i in x if i > 10 and i != length + 10)
    assert (targets[: length + 10] == 8).all()
    assert torch.equal(targets[length + 10 :], torch.stack([x[i] for i in range(1, 11)]))


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_baseline_is_the_loss_of_a_memoryless_guesser(convention):
    task = Copy(length=20, convention=convention)
    _, targets, _ = task.batch(10_000, generator())
    blank, first = (0, 1) if convention == "factorized" else (8, 0)
    outputs = torch.full((*targets.shape, 9), -1e4)
    outputs[:-10, :, blank] = 0
    outputs[-10:, :, first : first + 8] = 0
    assert task.baseline == pytest.approx(10 * math.log(8) / 40)
    assert task.loss(outputs, targets).item() == pytest.approx(task.baseline, abs=ROUNDING)
    guesses = outputs + torch.rand(outputs.shape, generator=generator(1))
    assert task.metric(guesses, targets).item() == pytest.approx(1 / 8, abs=GUESSING)


def test_right_answers_solve_it():
    task = Copy(length=20)
    _, targets, _ = task.batch(50, generator())
    outputs = 100.0 * torch.nn.functional.one_hot(targets, 9)
    assert task.loss(outputs, targets).item() < ROUNDING
    assert task.metric(outputs, targets).item() == 1
    assert task.solved(1.0)
    assert task.solved(0.99)
    assert not task.solved(0.98)


def test_metric_looks_at_the_symbols_alone():
    task = Copy(length=20)
    _, targets, _ = task.batch(50, generator())
    wrong_before = torch.cat((torch.zeros_like(targets[:-10]) + 1, targets[-10:]))
    outputs = torch.nn.functional.one_hot(wrong_before, 9).float()
    assert task.metric(outputs, targets).item() == 1
    wrong_after = torch.cat((targets[:-10], torch.zeros_like(targets[-10:])))
    assert task.metric(torch.nn.functional.one_hot(wrong_after, 9).float(), targets).item() == 0


def test_same_seed_same_batch_and_no_global_draw():
    task = Copy(length=30)
    before = torch.get_rng_state()
    first, again, other = (task.batch(4, generator(seed)).inputs for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), before)


def test_smaller_alphabet():
    task = Copy(length=4, symbols=2, items=3)
    inputs, targets, _ = task.batch(2, generator())
    assert inputs.shape == (10, 2, 4)
    assert targets.shape == (10, 2)
    assert task.baseline == pytest.approx(3 * math.log(2) / 10)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"length": 0}, "length must be a whole number of at least 1, got 0"),
        ({"length": 2.5}, "length must be a whole number of at least 1, got 2.5"),
        ({"symbols": 1}, "symbols must be a whole number of at least 2, got 1"),
        ({"items": True}, "items must be a whole number of at least 1, got True"),
        ({"convention": "both"}, "convention must be one of factorized, spectral, got 'both'"),
    ],
    ids=str,
)
def test_wrong_options(options, sentence):
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        make("copy", **options)


def test_empty_batch_is_refused():
    with pytest.raises(ValueError, match=r"^size must be a whole number of at least 1, got 0$"):
        Copy().batch(0, generator())
