"""How a stack of layers is shared out: what is chosen can be launched, and what cannot be is refused."""

from __future__ import annotations

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


# Milliseconds of the forward pass on an H200, T=784, B=50, H=128, three layers, by shares and by cluster, lanes, units,
# rows and places (benchmarks/results/stacks-cuda.json).
MEASURED = {
    1: {
        (4, 8, 1, 2, (0, 0, 0)): 2.081,
        (4, 16, 2, 2, (0, 0, 0)): 2.061,
        (4, 32, 4, 2, (0, 0, 0)): 2.178,
        (8, 16, 1, 4, (0, 0, 0)): 3.354,
        (8, 8, 1, 4, (0, 0, 0)): 3.911,
        (8, 32, 2, 4, (0, 0, 0)): 3.219,
        (16, 32, 1, 8, (0, 0, 0)): 5.833,
        (16, 16, 1, 8, (0, 0, 0)): 6.198,
        (16, 32, 2, 8, (0, 0, 0)): 6.365,
    },
    3: {
        (8, 16, 1, 4, (0, 0, 0)): 4.077,
        (4, 8, 1, 2, (0, 1, 1)): 3.701,
        (4, 16, 2, 2, (0, 1, 1)): 3.577,
        (8, 32, 2, 4, (0, 0, 1)): 4.269,
        (4, 32, 4, 2, (0, 1, 1)): 3.460,
        (8, 8, 1, 4, (0, 1, 1)): 5.562,
        (16, 32, 1, 8, (0, 0, 0)): 6.502,
        (16, 16, 1, 8, (0, 0, 1)): 7.807,
        (16, 32, 2, 8, (0, 0, 1)): 9.445,
    },
}
CYCLES_OF_A_MS = 1.98e6 / 784  # of a step


@pytest.mark.parametrize("shares", MEASURED)
def test_the_choice_is_within_5_percent_of_the_fastest_measured(shares: int) -> None:
    stack = choose(128, 3, shares, "forward", False, 50, ON_H200)
    assert stack is not None
    taken = MEASURED[shares][stack.cluster, stack.lanes, stack.units, stack.rows, stack.places]
    assert taken <= 1.05 * min(MEASURED[shares].values())


@pytest.mark.parametrize("shares", MEASURED)
def test_the_cost_model_says_what_was_measured(shares: int) -> None:
    for (cluster, lanes, units, rows, places), ms in MEASURED[shares].items():
        stack = Stack(128, 3, shares, "forward", False, cluster, lanes, units, rows, places)
        assert stack.cycles == pytest.approx(ms * CYCLES_OF_A_MS, rel=0.15), stack


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


@pytest.mark.parametrize(("hidden", "shares"), [(64, 1), (64, 4), (128, 1), (128, 3), (128, 4), (256, 1)])
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
