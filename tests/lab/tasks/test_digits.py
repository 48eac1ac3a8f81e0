from __future__ import annotations

import math
import sys

import pytest
import torch

from evenflow import SequenceModel, create, fit
from evenflow.lab.tasks import Digits, digits, labelled, make

# Labels of the training images predict those held out, 297 of them, a little worse than ln 10: counts differ by chance.
BY_CHANCE = 0.03
# The entropy of all 1,797 labels, whose counts are between 174 and 183, against ln 10.
UNEVEN = 1e-3


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def images():
    pixels, labels = pytest.importorskip("sklearn.datasets").load_digits(return_X_y=True)
    return [(*row, label) for row, label in zip(pixels.tolist(), labels.tolist(), strict=True)]


def rows(task, size=10_000, seed=0):
    """The images of one batch as tuples of 64 whole numbers and the label."""
    inputs, targets, lengths = task.batch(size, generator(seed))
    assert lengths is None
    assert inputs.shape == (64, len(targets), 1)
    assert (inputs.dtype, targets.dtype) == (torch.float32, torch.int64)
    assert inputs.min() == 0
    assert inputs.max() == 1
    pixels = (16 * inputs[..., 0]).T.tolist()
    return [(*row, label) for row, label in zip(pixels, targets.tolist(), strict=True)]


def test_every_image_is_in_one_of_the_two_parts(images):
    task = Digits()
    trained, held_out = rows(task), rows(task.held_out())
    assert (len(trained), len(held_out)) == (1500, 297)
    assert sorted(trained + held_out) == sorted(images)
    assert not set(trained) & set(held_out)


def test_the_split_and_the_order_never_change(images):
    """Values written down once: a drift would make runs incomparable without a word."""
    assert Digits().held_out().sequences()[1][:12].tolist() == [1, 5, 0, 7, 1, 0, 6, 1, 5, 4, 9, 2]
    ordered, permuted = (Digits(order).sequences()[0][..., 0].T for order in digits.ORDERS)
    order = [(ordered == row).all(1).nonzero()[0][0] for row in permuted[:8]]
    assert order == [36, 0, 50, 59, 23, 52, 35, 28]


def test_permuted_is_one_reordering_of_the_pixels(images):
    for ordered, permuted in (
        (Digits(), Digits(order="permuted")),
        (Digits().held_out(), Digits(order="permuted").held_out()),
    ):
        first, second = ordered.batch(100, generator()), permuted.batch(100, generator())
        assert torch.equal(first.targets, second.targets)
        assert not torch.equal(first.inputs, second.inputs)
        assert sorted(first.inputs[..., 0].tolist()) == sorted(second.inputs[..., 0].tolist())


def test_a_batch_holds_no_image_twice(images):
    distinct = len(set(rows(Digits())))
    assert distinct == 1500
    for seed in range(20):
        assert len(set(rows(Digits(), 200, seed))) == 200


def test_baseline_is_the_loss_of_a_memoryless_guesser(images):
    task = Digits()
    share = torch.bincount(torch.tensor([image[-1] for image in images]), minlength=10) / len(images)
    assert task.baseline == pytest.approx(math.log(10))
    assert -(share * share.log()).sum().item() == pytest.approx(task.baseline, abs=UNEVEN)
    trained, held_out = (part.batch(10_000, generator()).targets for part in (task, task.held_out()))
    guess = (torch.bincount(trained, minlength=10) / len(trained)).log().expand(len(held_out), 10)
    assert task.loss(guess, held_out).item() == pytest.approx(task.baseline, abs=BY_CHANCE)
    assert not task.solved(task.metric(guess, held_out).item())


def test_solved_at_95_percent_right(images):
    task = Digits()
    targets = task.batch(100, generator()).targets
    outputs = 50.0 * torch.nn.functional.one_hot(targets, 10)
    assert (task.metric_name, task.higher_is_better) == ("accuracy", True)
    assert task.metric(outputs, targets).item() == 1
    assert task.metric(-outputs, targets).item() == 0
    assert task.solved(0.95)
    assert not task.solved(0.949)


def test_a_short_training_beats_the_baseline_on_unseen_images(images):
    task = Digits()
    model = SequenceModel(create("lstm", 1, 32, generator=generator()), 10, generator=generator(1))
    result = fit(model, task, steps=120, batch_size=100, lr=0.02, validate_every=120, device="cpu", progress=False)
    assert result.valid_loss < 0.9 * task.baseline


def test_wrong_options():
    with pytest.raises(ValueError, match=r"^order must be one of ordered, permuted, got 'shuffled'$"):
        make("digits", order="shuffled")


def test_without_scikit_learn(monkeypatch, tmp_path):
    """The task can be listed; asked for images, it says what to install, before a run folder is made."""
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    labelled._tensors.cache_clear()
    task = make("digits")
    assert task.baseline == pytest.approx(math.log(10))
    sentence = r"^task digits needs scikit-learn, which `pip install evenflow\[sklearn\]` installs$"
    with pytest.raises(ValueError, match=sentence):
        task.batch(2, generator())
    with pytest.raises(ValueError, match=sentence):
        fit(SequenceModel(create("rnn", 1, 4), 10), task, steps=1, folder=tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()
