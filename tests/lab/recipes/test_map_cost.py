"""The cost of a map: two networks take turns, and the median of the rounds counts. The clock is made by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from evenflow.lab.recipes import load, map_cost
from evenflow.lab.recipes.configs import RecipeJob
from evenflow.lab.training.loop import Loop


@pytest.fixture
def job():
    row = load("urnn/speed").rows[0]
    config = {
        "task": {"name": "recall-first", "length": 4, "symbols": 3, "embedding": 4},
        "system": {"name": "ugru", "hidden_size": 6},
        "training": {"steps": 100, "batch_size": 5, "device": "cpu", "clip_value": 0.25, "clip_scope": "mapped"},
    }
    return RecipeJob(replace(row, label="uGRU"), 1, None, config, Path())


@pytest.mark.parametrize("interrupted", [False, True])
def test_the_median_over_rounds_in_turns(job, monkeypatch, interrupted):
    clock, order = [0.0], []

    def update(loop: Loop) -> None:
        mapped = any("parametrizations" in name for name, _ in loop.model.named_parameters())
        order.append(mapped)
        # The first updates are slow; so is, if interrupted, every tenth, whichever network it is.
        slow = 50 if len(order) <= 2 * map_cost.WARM_UP else 40 if interrupted and len(order) % 10 == 0 else 1
        clock[0] += slow * (1.07 if mapped else 1.0)

    monkeypatch.setattr(Loop, "update", update)
    monkeypatch.setattr(map_cost, "perf_counter", lambda: clock[0])
    assert map_cost.extra_time(job) == pytest.approx(7.0, abs=1e-6)
    turns = order[2 * map_cost.WARM_UP :]
    assert len(turns) == 2 * map_cost.ROUNDS
    pairs = list(zip(turns[::2], turns[1::2], strict=True))
    assert all(first != second for first, second in pairs), "each round has both"
    assert pairs[::2] == [pairs[0]] * (map_cost.ROUNDS // 2), "each is first in every other round"
    assert pairs[1] == pairs[0][::-1]


def test_real_updates_train_both_networks(job):
    assert map_cost.extra_time(job) > -100
