from __future__ import annotations

import pytest
import torch
from torch import nn

from evenflow.training.optimizers import OPTIMIZERS, make_optimizer
from evenflow.training.settings import Settings

# Equations below in float64 against torch's, ten steps.
ROUNDING = 1e-12


def trajectory(settings: Settings, steps: int = 10) -> list[float]:
    """Minimise (w - 3)²/2 from w = 0."""
    w = nn.Parameter(torch.zeros((), dtype=torch.float64))
    optimizer = make_optimizer([w], settings)
    path = []
    for _ in range(steps):
        optimizer.zero_grad()
        ((w - 3) ** 2 / 2).backward()
        optimizer.step()
        path.append(w.item())
    return path


def written_out(step, steps: int = 10) -> list[float]:
    w, memory, path = 0.0, {}, []
    for t in range(1, steps + 1):
        w = step(w, w - 3, memory, t)
        path.append(w)
    return path


def sgd(w, g, memory, t):
    return w - 0.1 * g


def with_momentum(w, g, memory, t):
    memory["v"] = 0.9 * memory.get("v", 0.0) + g
    return w - 0.1 * memory["v"]


def with_nesterov(w, g, memory, t):
    memory["v"] = 0.9 * memory.get("v", 0.0) + g
    return w - 0.1 * (g + 0.9 * memory["v"])


def with_weight_decay(w, g, memory, t):
    return w - 0.1 * (g + 0.5 * w)


def rmsprop(w, g, memory, t):
    memory["s"] = 0.9 * memory.get("s", 0.0) + 0.1 * g * g
    return w - 0.1 * g / (memory["s"] ** 0.5 + 1e-8)


def adam(w, g, memory, t):
    memory["m"] = 0.9 * memory.get("m", 0.0) + 0.1 * g
    memory["s"] = 0.999 * memory.get("s", 0.0) + 0.001 * g * g
    return w - 0.1 * (memory["m"] / (1 - 0.9**t)) / ((memory["s"] / (1 - 0.999**t)) ** 0.5 + 1e-8)


@pytest.mark.parametrize(
    ("options", "equation"),
    [
        ({"optimizer": "sgd"}, sgd),
        ({"optimizer": "sgd", "momentum": 0.9}, with_momentum),
        ({"optimizer": "sgd", "momentum": 0.9, "nesterov": True}, with_nesterov),
        ({"optimizer": "sgd", "weight_decay": 0.5}, with_weight_decay),
        ({"optimizer": "rmsprop", "smoothing": 0.9}, rmsprop),
        ({"optimizer": "adam"}, adam),
    ],
    ids=["sgd", "momentum", "nesterov", "weight decay", "rmsprop", "adam"],
)
def test_each_follows_its_equation(options, equation):
    assert trajectory(Settings(rate=0.1, **options)) == pytest.approx(written_out(equation), abs=ROUNDING)


def test_rmsprop_takes_momentum():
    assert trajectory(Settings(optimizer="rmsprop", momentum=0.9)) != trajectory(Settings(optimizer="rmsprop"))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_frozen_parameters_are_left_out(name):
    free, frozen = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2), requires_grad=False)
    (group,) = make_optimizer([free, frozen], Settings(optimizer=name)).param_groups
    assert group["params"] == [free]


def test_nothing_to_train():
    with pytest.raises(ValueError, match=r"^model has no parameter to train, at least one must require a gradient$"):
        make_optimizer([], Settings())
