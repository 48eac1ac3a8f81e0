"""Hessian-free learning: one step on a quadratic, the rule of damping, descent, separate batches, resumption."""

from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch
from torch import nn

from evenflow import RNN, SequenceModel
from evenflow.lab.tasks import make
from evenflow.optim import HessianFree

# float64; the conjugate gradients stop at their own rounding.
SOLVED = 1e-6


def squared(outputs, targets):
    return (outputs - targets).square().mean()


def a_task():
    return make("temporal-order", length=8)


def a_model(seed=0, **options):
    source = torch.Generator().manual_seed(seed)
    return SequenceModel(RNN(6, 8, generator=source, **options), 4, generator=source)


def test_a_linear_model_is_solved_in_one_step():
    """Least squares, where the quadratic model is the loss: the normal equations, damped a little."""
    x, y = torch.randn(40, 5, dtype=torch.float64), torch.randn(40, 2, dtype=torch.float64)
    model = nn.Linear(5, 2).double()
    optimizer = HessianFree(model, squared, damping=1e-12, tolerance=0)
    done = optimizer.step((x, y))
    bordered = torch.cat([x, torch.ones(40, 1, dtype=torch.float64)], 1)
    expected = torch.linalg.lstsq(bordered, y).solution
    assert (model.weight - expected[:-1].mT).abs().max() < SOLVED
    assert (model.bias - expected[-1]).abs().max() < SOLVED
    assert done.ratio == pytest.approx(1, abs=SOLVED)
    assert done.rate == 1


def test_damping_is_tikhonovs():
    x, y = torch.randn(40, 5, dtype=torch.float64), torch.randn(40, 1, dtype=torch.float64)
    model = nn.Linear(5, 1, bias=False).double()
    before = model.weight.detach().clone()
    HessianFree(model, squared, damping=0.5, tolerance=0).step((x, y))
    G, g = 2 * x.mT @ x / 40, 2 * x.mT @ (x @ before.mT - y) / 40
    delta = torch.linalg.solve(G + 0.5 * torch.eye(5, dtype=torch.float64), -g)
    assert (model.weight - (before + delta.mT)).abs().max() < SOLVED


def test_rule_of_levenberg_and_marquardt():
    """The ratio decides; it is the true change over the foretold one, with the undamped curvature."""
    task = a_task()
    model = a_model()
    optimizer = HessianFree(model, task.loss, damping=0.3)
    source, seen = torch.Generator().manual_seed(0), set()
    for _ in range(25):
        before = optimizer.param_groups[0]["damping"]
        done = optimizer.step(task.batch(40, source), task.batch(20, source))
        factor = 2 / 3 if done.ratio > 3 / 4 else 3 / 2 if done.ratio < 1 / 4 else 1.0
        assert done.damping == optimizer.param_groups[0]["damping"] == pytest.approx(before * factor)
        seen.add(factor)
    assert seen == {2 / 3, 1.0, 3 / 2}


@pytest.mark.parametrize("structural", [0.0, 0.1])
@pytest.mark.parametrize("map", ["free", "exponential"])
def test_every_step_descends_on_its_batch(map, structural):
    task = a_task()
    model = a_model(map=map)
    optimizer = HessianFree(model, task.loss, structural=structural, iterations=20)
    source = torch.Generator().manual_seed(0)
    for _ in range(4):
        batch = task.batch(60, source)
        done = optimizer.step(batch, task.batch(30, source))
        with torch.no_grad():
            after = task.loss(model(batch.inputs)[0], batch.targets).item()
        assert done.after <= done.before
        assert done.after == pytest.approx(after, rel=1e-5)


def test_learns_temporal_order():
    task = a_task()
    model = a_model()
    optimizer = HessianFree(model, task.loss, structural=0.03, iterations=40)
    source = torch.Generator().manual_seed(0)
    for _ in range(20):
        optimizer.step(task.batch(300, source), task.batch(100, source))
    held_out = task.batch(500, torch.Generator().manual_seed(9))
    with torch.no_grad():
        assert task.metric(model(held_out.inputs)[0], held_out.targets) > 0.95


def test_ragged_batches():
    task = make("xor", length=10)
    source = torch.Generator().manual_seed(0)
    model = SequenceModel(RNN(2, 6, generator=source), 1, generator=source)
    done = HessianFree(model, task.loss, structural=0.1).step(task.batch(50, source))
    assert done.after < done.before


def test_torchs_own_layers():
    task = a_task()
    model = SequenceModel(nn.LSTM(6, 4), 4)
    done = HessianFree(model, task.loss).step(task.batch(50, torch.Generator().manual_seed(0)))
    assert done.after < done.before


def test_a_direction_that_does_not_descend_is_not_taken():
    """A start that the loss cannot leave: the weights stay, and the next step does not begin with that direction."""

    def loss(outputs, targets):
        return torch.where(outputs == start, outputs, outputs.detach() + 100).sum()

    model = nn.Linear(1, 1, bias=False).double()
    x = torch.ones(1, 1, dtype=torch.float64)
    start = model(x).detach()
    before = model.weight.detach().clone()
    optimizer = HessianFree(model, loss)
    done = optimizer.step((x, x))
    assert done.rate == 0
    assert done.after == done.before
    assert torch.equal(model.weight, before)
    assert done.damping > 0.1
    assert not optimizer.state[model.weight]["direction"].any()


@pytest.mark.parametrize("slope", [0.0, math.nan], ids=["flat", "not a number"])
def test_without_a_direction_there_is_no_step(slope):
    model = nn.Linear(1, 1, bias=False).double()
    one, before = torch.ones(1, 1, dtype=torch.float64), model.weight.detach().clone()
    done = HessianFree(model, lambda o, t: t.sum() + Sloped.apply(o, slope).sum()).step((one, one))
    assert done.rate == 0
    assert done.evaluations == 1, "no line search"
    assert torch.equal(model.weight, before)


class Sloped(torch.autograd.Function):
    """Zero, with any gradient."""

    @staticmethod
    def forward(ctx, x, slope):
        ctx.slope = slope
        return 0 * x

    @staticmethod
    def backward(ctx, grad):
        return ctx.slope * grad, None


def test_infinite_losses_are_stepped_back_from():
    def loss(outputs, targets):
        return torch.where(outputs.abs() > 1.5, math.inf, (outputs - targets).square()).mean()

    model = nn.Linear(1, 1, bias=False).double()
    nn.init.zeros_(model.weight)
    one = torch.ones(1, 1, dtype=torch.float64)
    done = HessianFree(model, loss, damping=1e-9).step((one, 2 * one))
    assert 0 < done.rate < 1
    assert math.isfinite(done.after)


def test_resumed_to_the_last_bit():
    task = a_task()
    model = a_model()
    optimizer = HessianFree(model, task.loss, structural=0.1, iterations=15)
    batches = [task.batch(30, torch.Generator().manual_seed(seed)) for seed in range(6)]
    for batch in batches[:3]:
        optimizer.step(batch)
    other = copy.deepcopy(model)
    resumed = HessianFree(other, task.loss)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for batch in batches[3:]:
        assert optimizer.step(batch) == resumed.step(batch)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("again", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["copy", "pickle"])
def test_copied_to_the_last_bit(again):
    task = a_task()
    model = a_model()
    optimizer = HessianFree(model, task.loss, structural=0.1, iterations=15, padded=True)
    batches = [task.batch(30, torch.Generator().manual_seed(seed)) for seed in range(3)]
    optimizer.step(batches[0])
    other, copied = again((model, optimizer))
    assert copied.model is other
    assert copied.padded
    assert all(p is q for p, q in zip(copied.param_groups[0]["params"], other.parameters(), strict=True))
    for batch in batches[1:]:
        assert optimizer.step(batch) == copied.step(batch)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), other.parameters(), strict=True))
    alone = copy.deepcopy(optimizer)
    alone.step(batches[0])
    assert alone.model is not model
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), other.parameters(), strict=True))
    assert not all(torch.equal(p, q) for p, q in zip(model.parameters(), alone.model.parameters(), strict=True))


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda: HessianFree(a_model(), squared, damping=0), "damping must be a number above 0, got 0"),
        (
            lambda: HessianFree(a_model(), squared, structural=-1),
            "structural must be a number of at least 0, got -1",
        ),
        (
            lambda: HessianFree(a_model(), squared, warmth=2),
            "warmth must be a number of at least 0 and at most 1, got 2",
        ),
        (
            lambda: HessianFree(a_model(), squared, iterations=0),
            "iterations must be a whole number of at least 1, got 0",
        ),
        (
            lambda: HessianFree(a_model(num_layers=2, dropout=0.1), squared),
            "HessianFree needs a model without dropout, because it compares losses",
        ),
        (
            lambda: HessianFree(nn.Sequential(nn.Linear(1, 1), nn.Dropout(0.5)), squared),
            "HessianFree needs a model without dropout, because it compares losses",
        ),
        (
            lambda: HessianFree(a_model(map="factorized"), squared),
            "HessianFree would move the bases of a factorized map off the orthogonal matrices",
        ),
        (
            lambda: HessianFree(nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1).double()), squared),
            "HessianFree needs real parameters of one dtype on one device",
        ),
    ],
    ids=["damping", "structural", "warmth", "iterations", "dropout", "dropout-module", "stiefel", "dtypes"],
)
def test_refused(build, sentence):
    with pytest.raises(ValueError) as error:
        build()
    assert str(error.value) == sentence
