from __future__ import annotations

import pytest
import torch

from evenflow.lab.tasks import Adding, make

# (y - 1)² has standard deviation 0.197 over sequences; five standard errors of 100,000 of them.
SAMPLING = 5 * 0.197 / 100_000**0.5
# The share of positions falling on one of n places, 20,000 draws: five standard errors of a share of 1/5.
SHARE = 5 * (0.2 * 0.8 / 20_000) ** 0.5

VARIANTS = ["sgornn", "factorized", "galvan"]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def markers(inputs):
    """Positions of the first and the second marker of each sequence; there are exactly two."""
    assert set(inputs[..., 1].unique().tolist()) <= {0.0, 1.0}
    assert (inputs[..., 1].sum(0) == 2).all()
    steps = torch.arange(len(inputs))[:, None].expand(inputs.shape[:2])
    marked = inputs[..., 1] == 1
    return steps.masked_fill(~marked, len(inputs)).amin(0), steps.masked_fill(~marked, -1).amax(0)


@pytest.mark.parametrize("variant", VARIANTS)
def test_shapes_and_targets(variant):
    task = Adding(length=40, variant=variant)
    inputs, targets, lengths = task.batch(500, generator())
    assert inputs.shape == (44 if variant == "galvan" else 40, 500, task.input_size)
    assert targets.shape == (500, task.output_size)
    assert inputs.dtype == targets.dtype == torch.float32
    assert (lengths is not None) == (variant == "galvan")
    share = 0.5 if variant == "galvan" else 1.0
    torch.testing.assert_close(targets[:, 0], share * (inputs[..., 0] * inputs[..., 1]).sum(0))
    low = -1 if variant == "galvan" else 0
    assert low <= inputs[..., 0].min() < low + 0.01
    assert 0.99 < inputs[..., 0].max() < 1


@pytest.mark.parametrize(
    ("variant", "length", "firsts", "seconds"),
    [
        ("sgornn", 10, range(0, 5), range(5, 10)),
        ("sgornn", 9, range(0, 4), range(4, 9)),
        ("factorized", 10, range(0, 5), range(5, 10)),
        ("factorized", 9, range(0, 4), range(5, 9)),
        ("sgornn", 2, range(0, 1), range(1, 2)),
        ("factorized", 3, range(0, 1), range(2, 3)),
    ],
)
def test_markers_are_uniform_where_the_document_says(variant, length, firsts, seconds):
    inputs, _, _ = Adding(length=length, variant=variant).batch(20_000, generator())
    for found, allowed in zip(markers(inputs), (firsts, seconds), strict=True):
        assert set(found.tolist()) == set(allowed)
        for place in allowed:
            assert (found == place).float().mean().item() == pytest.approx(1 / len(allowed), abs=SHARE)


@pytest.mark.parametrize("length", [10, 13, 57, 100])
def test_galvan_markers_and_lengths(length):
    inputs, _, lengths = Adding(length=length, variant="galvan").batch(20_000, generator())
    assert set(lengths.tolist()) == set(range(length, length + length // 10 + 1))
    first, second = markers(inputs)
    assert (first < lengths / 10).all()
    assert (10 * second >= 4 * lengths).all()
    assert (10 * second <= 5 * lengths).all()
    longest = lengths == lengths.max()
    top = int(lengths.max())
    assert set(first[longest].tolist()) == set(range(top // 10))
    assert set(second[longest].tolist()) == set(range(-(-4 * top // 10), top // 2 + 1))
    beyond = torch.arange(len(inputs))[:, None] >= lengths
    assert (inputs[beyond] == 0).all()
    assert (inputs[..., 0][~beyond] != 0).float().mean() > 0.999


@pytest.mark.parametrize("variant", VARIANTS)
def test_baseline_is_the_loss_of_a_memoryless_guesser(variant):
    task = Adding(length=12, variant=variant)
    _, targets, _ = task.batch(100_000, generator())
    best_guess = torch.full_like(targets, 0.0 if variant == "galvan" else 1.0)
    assert task.baseline == pytest.approx(0.1667, abs=1e-4)
    assert task.loss(best_guess, targets).item() == pytest.approx(task.baseline, abs=SAMPLING)
    assert not task.solved(task.metric(best_guess, targets).item())


def test_solved_by_an_error_below_a_thousandth():
    task = Adding(length=12)
    _, targets, _ = task.batch(100, generator())
    assert (task.metric_name, task.higher_is_better) == ("mse", False)
    assert task.solved(task.metric(targets + 0.031, targets).item())
    assert not task.solved(task.metric(targets + 0.033, targets).item())


def test_galvan_solved_by_answers_within_four_hundredths():
    task = Adding(length=12, variant="galvan")
    _, targets, _ = task.batch(1000, generator())
    assert (task.metric_name, task.higher_is_better) == ("accuracy", True)
    assert task.metric(targets + 0.039, targets).item() == 1
    assert task.metric(targets - 0.041, targets).item() == 0
    off = torch.zeros_like(targets)
    off[:10] = 1
    assert task.metric(targets + off, targets).item() == pytest.approx(0.99)
    assert task.solved(0.991)
    assert not task.solved(0.99)


@pytest.mark.parametrize("variant", VARIANTS)
def test_same_seed_same_bytes(variant):
    task = Adding(length=30, variant=variant)
    first, again, other = (task.batch(4, generator(seed)) for seed in (1, 1, 2))
    for a, b in zip(first, again, strict=True):
        assert (a is None and b is None) or a.numpy().tobytes() == b.numpy().tobytes()
    assert not torch.equal(first.inputs, other.inputs)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"length": 1}, "length must be a whole number of at least 2, got 1"),
        ({"length": 9, "variant": "galvan"}, "length must be a whole number of at least 10, got 9"),
        ({"length": "100"}, "length must be a whole number of at least 2, got '100'"),
        ({"variant": "galvin"}, "variant must be one of sgornn, factorized, galvan, got 'galvin'"),
    ],
    ids=str,
)
def test_wrong_options(options, sentence):
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        make("adding", **options)
