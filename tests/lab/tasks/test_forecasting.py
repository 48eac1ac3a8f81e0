"""Chaotic series: their equations, their parts, and the loss without memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from evenflow.lab.tasks import make
from evenflow.lab.tasks.forecasting import SAMPLES, Lorenz, MackeyGlass, runge_kutta

TASKS = {"mackey-glass": MackeyGlass, "lorenz": Lorenz}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("name", TASKS)
def test_targets_are_the_future_of_the_inputs(name):
    task = make(name, length=50, horizon=7)
    inputs, targets, lengths = task.take(torch.tensor([0, 5, task.count() - 1]))
    assert inputs.shape == targets.shape == (50, 3, 1)
    assert lengths is None
    assert torch.equal(inputs[7:], targets[:-7])
    series = torch.from_numpy(task.scaled().astype(np.float32))
    assert torch.equal(inputs[:, 0, 0], series[:50, 0])
    assert torch.equal(inputs[:, 1, 0], series[50:100, 0])  # a sequence begins every ten samples


@pytest.mark.parametrize("name", TASKS)
def test_parts_are_series_of_their_own_in_one_scale(name):
    parts = [make(name), make(name).held_out(), make(name).test()]
    series = [part.scaled() for part in parts]
    assert [each.shape for each in series] == [(SAMPLES, 64), (SAMPLES, 16), (SAMPLES, 16)]
    assert abs(series[0].mean()) < 1e-9
    assert abs(series[0].std() - 1) < 1e-9
    assert all(abs(each.mean()) < 0.1 and abs(each.std() - 1) < 0.1 for each in series[1:])
    starts = np.concatenate([each[0] for each in series])
    assert len(np.unique(starts)) == 96


def test_the_mackey_glass_equation_holds():
    """Central differences of the series, sampled once a unit of time: the curvature of x is small against its slope."""
    x = MackeyGlass().integrate(4, 0)
    slope = (x[2:] - x[:-2]) / 2
    delayed = x[1 : len(x) - 1 - 17]
    wanted = 0.2 * delayed / (1 + delayed**10) - 0.1 * x[18:-1]
    assert np.abs(slope[17:] - wanted).mean() < 0.03 * np.abs(wanted).max()
    assert 0.2 < x.min() < x.max() < 1.5


def test_the_lorenz_attractor():
    x = Lorenz().integrate(32, 0)
    assert 15 < np.abs(x).max() < 22  # both wings
    assert abs(x.mean()) < 1
    assert x.std() == pytest.approx(7.9, abs=0.4)


def test_the_integrator_is_of_fourth_order():
    errors = []
    for steps in (10, 20):
        x = np.ones(1)
        for _ in range(steps):
            x = runge_kutta(lambda now, half: -now, x, 1 / steps)
        errors.append(abs(float(x[0]) - np.exp(-1)))
    assert 14 < errors[0] / errors[1] < 18


@pytest.mark.parametrize("name", TASKS)
def test_the_present_value_leaves_the_future_open(name):
    """Its forecast by nearest values of the training series is as good as the loss without memory says."""
    task = make(name)
    assert 0.1 < task.baseline < 1
    train, test = task.scaled(), task.test().scaled()
    h = task.horizon
    order = np.argsort(train[:-h].ravel())
    present, future = train[:-h].ravel()[order], train[h:].ravel()[order]
    smooth = np.convolve(future, np.ones(400) / 400, "same")
    found = smooth[np.searchsorted(present, test[:-h].ravel()).clip(200, len(smooth) - 201)]
    assert ((found - test[h:].ravel()) ** 2).mean() == pytest.approx(task.baseline, rel=0.15)
    assert task.solved_limit == pytest.approx(task.baseline / 10)
    assert not task.solved(task.solved_limit)


def test_wrong_options():
    words = "^length and horizon must be at most 2000 together, the samples of a series, got 1990 and 15$"
    with pytest.raises(ValueError, match=words):
        make("lorenz", length=1990)
    with pytest.raises(ValueError, match=r"^horizon must be a whole number of at least 1, got 0$"):
        make("mackey-glass", horizon=0)
