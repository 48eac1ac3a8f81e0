from __future__ import annotations

import itertools

import pytest

from evenflow.lab.training.optimizers import SCHEDULES, lr_factor


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("constant", {0: 1, 1: 1, 999: 1}),
        ("linear", {0: 1, 250: 0.75, 999: 0.001, 1000: 0, 1500: 0}),
        ("exponential", {0: 1, 50: 0.1**0.5, 100: 0.1, 250: 0.1**2.5}),
        ("step", {0: 1, 99: 1, 100: 0.1, 199: 0.1, 200: 0.01, 250: 0.01}),
    ],
)
def test_values(name, expected):
    for step, value in expected.items():
        assert lr_factor(name, step, 1000, decay=0.1, every=100) == pytest.approx(value, abs=1e-15)


def test_every_schedule_begins_at_one_and_never_rises():
    for name in SCHEDULES:
        values = [lr_factor(name, step, 50, decay=0.5, every=10) for step in range(50)]
        assert values[0] == 1
        assert all(later <= earlier for earlier, later in itertools.pairwise(values))
