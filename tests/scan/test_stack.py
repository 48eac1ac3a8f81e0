"""How a stack of layers is shared out: what is chosen can be launched, and what cannot be is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from evenflow.scan.cuda import gated_feedback, plan, problem
from evenflow.scan.cuda.stack import (
    BLOCK_BYTES,
    FAR_AWAY,
    IN_REGISTERS,
    MOST_LAYERS,
    MOST_REGISTERS,
    REGISTERS,
    Stack,
    choose,
    clusters,
)

ON_H200 = clusters(plan.H200)


SHARES = {"tanh": 1, "gru": 3, "lstm": 4}
CYCLES_OF_A_MS = 1.98e6 / 784  # of a step


def measured() -> dict[tuple[int, str, str], dict[Stack, float]]:
    """Milliseconds on an H200, B=50, three layers, by hidden units, unit, way and stack."""
    text = (Path(__file__).parents[2] / "benchmarks" / "results" / "stacks-cuda.json").read_text(encoding="utf-8")
    found: dict[tuple[int, str, str], dict[Stack, float]] = {}
    for line in json.loads(text)["results"]:
        shape = (line["cluster"], line["lanes"], line["units"], line["rows"], tuple(line["places"]))
        stack = Stack(line["hidden"], 3, SHARES[line["unit"]], line["way"], False, *shape)
        found.setdefault((line["hidden"], line["unit"], line["way"]), {})[stack] = line["ms"]
    return found


MEASURED = measured()


@pytest.mark.parametrize(("hidden", "unit", "way"), MEASURED)
def test_of_what_was_measured_the_cheapest_is_the_fastest(hidden: int, unit: str, way: str) -> None:
    times = MEASURED[hidden, unit, way]
    turns = {stack: math.ceil(math.ceil(50 / stack.rows) / plan.H200.clusters[stack.cluster]) for stack in times}
    cheapest = min(times, key=lambda stack: stack.cycles * turns[stack])
    assert times[cheapest] <= 1.05 * min(times.values())
    for stack, ms in times.items():
        assert stack.cycles * turns[stack] == pytest.approx(ms * CYCLES_OF_A_MS, rel=0.3), stack


@pytest.mark.parametrize("way", ["forward", "backward"])
@pytest.mark.parametrize("shares", [1, 3, 4])
@pytest.mark.parametrize("layers", [1, 2, 3, 4])
@pytest.mark.parametrize("hidden", [1, 7, 37, 64, 100, 128, 256])
def test_every_choice_can_be_launched(hidden: int, layers: int, shares: int, way: str) -> None:
    for rows in (1, 50, 256, 100_000):
        stack = choose(hidden, layers, shares, way, True, rows, ON_H200)
        assert stack is not None
        assert stack.threads % 32 == 0
        assert stack.threads <= 1024
        assert stack.memory <= BLOCK_BYTES
        assert stack.owned * stack.cluster >= hidden
        assert stack.lanes % stack.values == 0
        assert stack.weights(IN_REGISTERS) < min(MOST_REGISTERS, REGISTERS // stack.threads)


@pytest.mark.parametrize(("hidden", "shares"), [(64, 1), (64, 3), (64, 4), (128, 1), (128, 3)])
def test_a_batch_of_50_runs_at_once_with_all_weights_near(hidden: int, shares: int) -> None:
    for way in ("forward", "backward"):
        stack = choose(hidden, 3, shares, way, False, 50, ON_H200)
        assert stack is not None
        assert -(-50 // stack.rows) <= plan.H200.clusters[stack.cluster]
        assert FAR_AWAY not in stack.places


def test_what_has_no_room_is_not_chosen() -> None:
    assert choose(4096, 3, 4, "forward", False, 50, ON_H200) is None
    assert choose(64, MOST_LAYERS + 1, 1, "forward", False, 50, ON_H200) is None
    assert choose(64, 2, 1, "forward", False, 50, ()) is None, "no clusters"
    assert choose(64, 2, 1, "forward", False, 50, ON_H200, 100) is None, "no shared memory"


def test_the_line_that_makes_a_kernel() -> None:
    stack = Stack(20, 2, 3, "backward", True, 4, 8, 2, 4, (0, 1, 2))
    assert "Stack<20, 2, 3, 4, 8, 2, 4, 0, 1, 2, true, false>" in stack.entry("run")
    assert "ENTRY(run, 32, 4, GatedFeedback, gated_feedback_backward<" in stack.entry("run")
    assert stack.blocks(9) == 12
    for part in ("struct Stack", "struct GatedFeedback", "mbarrier"):
        assert part in stack.text()


@pytest.mark.parametrize(
    ("layers", "hidden", "machine", "why"),
    [
        (2, 64, plan.H200, None),
        (5, 64, plan.H200, "go up to 4 layers, not 5"),
        (3, 4096, plan.H200, "3 layers of 4096 units are too much for a cluster"),
        (2, 64, plan.Machine(80, {}), "needs a GPU with clusters"),
    ],
)
def test_why_a_gpu_cannot(
    layers: int, hidden: int, machine: plan.Machine, why: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(problem, "unable", lambda *_: None)
    monkeypatch.setattr(problem, "machine", lambda _: machine)

    def tensor(*shape: int) -> SimpleNamespace:
        return SimpleNamespace(shape=shape, dim=lambda: len(shape), device=torch.device("cpu"))

    feedback, up = tensor(1, layers, hidden, layers * hidden), tensor(1, layers - 1, 3 * hidden + layers, hidden)
    given = (tensor(1, 5, 7, 3 * hidden + layers), None, feedback, up, tensor(1, 7, layers * hidden))
    found = gated_feedback.missing(feedback, *given)  # type: ignore[arg-type]
    assert found is None if why is None else why in str(found)
