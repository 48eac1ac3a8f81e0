from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from evenflow import SequenceModel, create
from evenflow.lab.tasks import Adding, Position
from evenflow.lab.tasks.chosen_loss import LOSSES, METRICS
from evenflow.lab.tasks.given_data import given_task

RANDOM = np.random.default_rng(0)
X = (RANDOM.normal(size=(20, 6, 2)) * 5 + 3).astype(np.float32)
WORDS = np.where(X[:, 0, 0] > 3, "up", "down")
Y = X.sum((1, 2)) * 10


def model(outputs=2, **options):
    return SequenceModel(create("rnn", 2, 3), outputs, **options)


def whole(task):
    """All sequences of a part as one batch."""
    return task.take(torch.arange(task.count()))


class Items(Dataset):
    def __init__(self, x, y) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class Stream(IterableDataset):
    def __iter__(self):
        yield from zip(X, Y, strict=True)


def test_a_task_stays_itself():
    task = Adding(length=5)
    assert given_task(task, model()) is task


@pytest.mark.parametrize("form", [lambda a: a, torch.from_numpy], ids=["numpy", "tensors"])
def test_arrays_and_datasets_give_the_same_batches(form):
    x, y = form(X), form(Y)
    tasks = [
        given_task(data, model(1)) for data in ((x, y), TensorDataset(torch.tensor(X), torch.tensor(Y)), Items(x, y))
    ]
    first = whole(tasks[0])
    assert first.inputs.shape == (6, 18, 2)
    for task in tasks[1:]:
        for a, b in zip(first, whole(task), strict=True):
            assert a is b is None or torch.equal(a, b)
    flat = first.inputs.flatten(0, 1).double()
    torch.testing.assert_close(flat.mean(0), torch.zeros(2, dtype=torch.float64), atol=1e-5, rtol=0)
    torch.testing.assert_close(flat.std(0, correction=0), torch.ones(2, dtype=torch.float64), atol=1e-5, rtol=0)


@pytest.mark.parametrize("words", [WORDS, WORDS.tolist(), WORDS.astype(object)], ids=["text", "list", "objects"])
def test_labels(words):
    task = given_task((X, words), model())
    assert task.schema().labels == ("down", "up")
    assert (task.metric_name, task.output_size) == ("accuracy", 2)


def test_sequences_of_different_lengths_with_targets_at_every_step():
    x = [row[: 3 + i % 4] for i, row in enumerate(X)]
    y = [row[:, :1] * 2 for row in x]
    task = given_task((x, y), model(1, readout="every"))
    batch = whole(task)
    assert sorted(batch.lengths.unique().tolist()) == [3, 4, 5, 6]
    outputs = torch.zeros_like(batch.targets)
    present = batch.targets[~batch.targets.isnan()]
    assert len(present) == int(batch.lengths.sum())
    assert task.loss(outputs, batch.targets).item() == pytest.approx(present.square().mean().item(), rel=1e-5)


@pytest.mark.parametrize(("validation", "count"), [(0.25, 5), ((X[:3], Y[:3]), 3), (Items(X[:4], Y[:4]), 4)])
def test_validation(validation, count):
    task = given_task((X, Y), model(1), validation=validation)
    assert task.held_out().count() == count
    assert task.count() == (15 if count == 5 else 20)


def test_losses_and_metrics_are_in_the_users_units():
    deviation = Y[given_rows()].std()
    outputs, targets = torch.tensor([[0.5], [1.0]]), torch.tensor([[0.0], [3.0]])
    expected = {"mse": 2.125, "mae": 1.25, "huber": (0.125 + 1.5) / 2}
    for loss, value in expected.items():
        task = given_task((X, Y), model(1), loss=loss, metric="mae")
        assert task.loss(outputs, targets).item() == pytest.approx(value)
        unit = {"mse": deviation**2, "mae": deviation, "huber": 1.0}[loss]
        assert task.loss_unit == pytest.approx(unit, rel=1e-4)
        assert task.metric(outputs, targets).item() == pytest.approx(1.25 * deviation, rel=1e-4)
        assert not task.higher_is_better
        assert not task.solved(0.0)
        assert task.criterion == "No mae counts as solved."
    task = given_task((X, Y), model(1), metric=(lambda o, t: t.max(), "max"))
    mean = Y[given_rows()].mean()
    assert task.metric(outputs, targets).item() == pytest.approx(3 * deviation + mean, rel=1e-4)
    assert task.higher_is_better


def given_rows():
    """The rows of Y that are trained on."""
    task = given_task((X, Y), model(1))
    mean, deviation = task.schema().output_scale
    trained = whole(task).targets[:, 0].double().numpy() * deviation + mean
    return [int(np.abs(Y - value).argmin()) for value in trained]


def test_whole_numbers_are_classes_unless_the_loss_says_otherwise():
    y = np.arange(20) % 3
    assert given_task((X, y), model(3)).output_size == 3
    assert given_task((X, y), model(1), loss="mse").output_size == 1


def test_other_arrays_have_another_digest():
    first, again, other = (given_task((X, y), model(1)).sha256() for y in (Y, Y.copy(), Y + 1))
    assert first == again != other


def loader(y, size=5, **options):
    return DataLoader(TensorDataset(torch.tensor(X), torch.tensor(y)), batch_size=size, **options)


def test_a_loader_gives_its_batches_as_they_come():
    task = given_task(loader(Y), model(1), validation=loader(Y, 7))
    generator = torch.Generator()
    for start in (0, 5, 10, 15, 0):
        batch = task.training_batch(50, Position(0, 10), generator)
        assert torch.equal(batch.inputs, torch.tensor(X[start : start + 5]).transpose(0, 1))
        assert torch.equal(batch.targets[:, 0], torch.tensor(Y[start : start + 5]))
    every = list(task.held_out().every_batch(3, Position(0, 10), torch.device("cpu")))
    assert [len(batch.targets) for batch in every] == [7, 7, 6]
    assert task.epoch_steps(3) == 4
    assert (task.input_size, task.output_size, task.readout, task.metric_name) == (2, 1, "last", "rmse")


def test_a_loader_with_lengths_and_targets_at_every_step():
    lengths = torch.arange(20) % 6 + 1
    data = DataLoader(TensorDataset(torch.tensor(X), torch.tensor(X[..., :1]), lengths), batch_size=20)
    task = given_task(data, model(1, readout="every"), validation=data)
    batch = task.batch(20, torch.Generator())
    assert task.readout == "every"
    assert int((~batch.targets.isnan()).sum()) == int(lengths.sum())
    assert math.isfinite(task.loss(torch.zeros_like(batch.targets), batch.targets))


@pytest.mark.parametrize(
    ("data", "options", "sentence"),
    [
        ("adding", {}, r"^task must be a task, .* got 'adding': write evenflow.tasks.make\('adding'\)$"),
        (X, {}, r"^task must be a task, arrays \(x, y\), a Dataset or a DataLoader, got a ndarray$"),
        ((X,), {}, r"^task must be .* got a tuple of 1$"),
        (Adding(), {"loss": "mse"}, r"^loss goes with data of your own, and task adding has its own$"),
        ((X, WORDS), {"loss": "foo"}, rf"^loss must be one of {', '.join(LOSSES)}, got 'foo'$"),
        ((X, WORDS), {"metric": "foo"}, rf"^metric must be one of {', '.join(METRICS)}, got 'foo'$"),
        ((X, WORDS), {"metric": len}, r"^metric must say which value is better: metric=\(len, 'max'\) or"),
        ((X, WORDS), {"metric": (len, "up")}, r"^the second part of metric must be one of max, min, got 'up'$"),
        ((X, Y), {"loss": "mse", "metric": "accuracy"}, r"^loss and metric must go with the same targets, got 'mse'"),
        ((X, None), {"metric": "accuracy"}, r"'y', which classification needs$"),
        ((X, Y[:3]), {}, r"'y' must have shape"),
        ((X, Y), {"validation": 1.5}, r"^validation must be a number above 0 and below 1, got 1.5$"),
        ((X, Y), {"validation": 3}, r"^validation must be a share, arrays \(x, y\) or a Dataset, got a int$"),
        ((X, Y), {"validation": (X[..., :1], Y)}, r"differ from 'x' and 'y'"),
        ((list(X), [Y[:2], Y[:3]]), {}, r"^y must hold one target for each sequence of x, or one for each"),
        (([X[0], X[0, :, :1]], [0, 1]), {}, r"^x must hold sequences \(T, C\) with one C"),
        (Stream(), {}, r"^a Dataset must have a length"),
        (loader(Y), {}, r"^validation must be a DataLoader where the data are one, got NoneType$"),
        (DataLoader(TensorDataset(torch.tensor(X))), {"validation": loader(Y)}, r"^a DataLoader must yield tensors"),
        (loader(np.arange(20)), {"validation": loader(Y)}, r"^the model must output a score for each class, it has 2"),
    ],
)
def test_what_is_refused(data, options, sentence):
    with pytest.raises(ValueError, match=sentence) as error:
        given_task(data, model(), **options)
    assert "\n" not in str(error.value)


def test_a_loss_may_be_a_module():
    task = given_task((X, Y), model(1), loss=nn.SmoothL1Loss())
    assert task.options()["loss"] == "SmoothL1Loss"
    assert task.loss(torch.tensor([[1.0]]), torch.tensor([[0.0]])).item() == pytest.approx(0.5)
