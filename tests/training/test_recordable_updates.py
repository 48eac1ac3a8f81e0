"""Every task and kind of network through the updates that a GPU records; here their work is done and not recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from made_data import small_options

from evenflow import tasks
from evenflow.feedforward import NETWORKS
from evenflow.tasks import TASKS
from evenflow.training import captured, fit
from evenflow.training.methods import GradientMethod, SimplexMethod
from evenflow.training.train import build

SYSTEMS = ("lstm", "urnn", "gated-feedback", "full-urnn")
CLOSE = 1e-5  # rates are float32 numbers on a GPU
NEVER = 10**9


def trained(task: str, system: str, data: Path) -> list[torch.Tensor]:
    made = tasks.make(task, **small_options(task, data))
    model = build(made, {"name": system, "hidden_size": 6}, 0)
    # Not Adam, which makes a step of the rounding of a gradient that is zero, as a vector's along itself is.
    options: dict[str, Any] = {"optimizer": "sgd", "rate": 0.01, "batch_size": 2, "validate_every": 2}
    fit(model, made, steps=4, device="cpu", progress=False, **options)
    return [p.detach().clone() for p in model.parameters()]


def same_recordable(task: str, system: str, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = trained(task, system, data)
    monkeypatch.setattr(captured, "CALLS_BEFORE", NEVER)  # nothing is recorded
    monkeypatch.setattr(GradientMethod, "capturable", True)
    found = trained(task, system, data)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=CLOSE, rtol=0)


@pytest.mark.parametrize("task", TASKS)
def test_every_task(task: str, small_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    same_recordable(task, "rnn", small_data, monkeypatch)


@pytest.mark.parametrize("system", SYSTEMS)
def test_systems_with_other_states(system: str, small_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    same_recordable("copy", system, small_data, monkeypatch)


@pytest.mark.parametrize("network", NETWORKS)
def test_networks_without_time(network: str, small_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    same_recordable("digits", network, small_data, monkeypatch)


@pytest.mark.parametrize("task", ["copy", "temporal-order"])
def test_mixtures_of_shares_in_time(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def found() -> list[torch.Tensor]:
        made = tasks.make(task, length=20)
        model = build(made, {"name": "rnn", "hidden_size": 6}, 0)
        result = fit(model, made, steps=4, device="cpu", progress=False, optimizer="temporal-simplex", batch_size=3)
        assert result.steps == 4
        return [p.detach().clone() for p in model.parameters()]

    expected = found()
    monkeypatch.setattr(captured, "CALLS_BEFORE", NEVER)
    monkeypatch.setattr(SimplexMethod, "capturable", True)
    for one, other in zip(found(), expected, strict=True):
        torch.testing.assert_close(one, other, atol=CLOSE, rtol=0)


def test_a_recording_that_breaks_off_leaves_no_gradients(monkeypatch: pytest.MonkeyPatch, small_data: Path) -> None:
    expected = trained("copy", "rnn", small_data)

    def breaks_off(work: Any, key: Any, given: Any) -> None:
        """Leaves what a backward pass has put there and a step has not been made of."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(GradientMethod, "apply", lambda self, loss, state: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                work(key, *given)

    monkeypatch.setattr(captured, "CALLS_BEFORE", 1)
    monkeypatch.setattr(captured, "_record", breaks_off)
    monkeypatch.setattr(GradientMethod, "capturable", True)
    for one, other in zip(trained("copy", "rnn", small_data), expected, strict=True):
        torch.testing.assert_close(one, other, atol=CLOSE, rtol=0)
