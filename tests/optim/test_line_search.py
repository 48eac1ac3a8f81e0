"""Line search: every accepted step lowers the loss by Armijo's rule, and a run with it resumes to the same bits."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from evenflow import SequenceModel, create, fit
from evenflow.lab.tasks import make
from evenflow.lab.training import resume, train
from evenflow.optim import LineSearchDescent

SAME = 1e-12  # float64
ADDING = make("adding", length=10)


def quadratic(condition: float) -> tuple[torch.Tensor, torch.nn.Parameter]:
    scales = torch.logspace(0, np.log10(condition), 6, dtype=torch.float64)
    return scales, torch.nn.Parameter(torch.ones(6, dtype=torch.float64))


@pytest.mark.parametrize("lr", [1e-6, 1.0, 1e3])
def test_a_quadratic_is_minimised_from_any_first_learning_rate(lr: float) -> None:
    scales, w = quadratic(10.0)
    optimizer = LineSearchDescent([w], lr=lr)
    losses = []
    for _ in range(200):
        loss = 0.5 * (scales * w**2).sum()
        w.grad = None
        loss.backward()
        losses.append(optimizer.step(lambda: 0.5 * (scales * w**2).sum()))
    assert losses[-1] < 1e-6
    assert all(after <= before for before, after in itertools.pairwise(losses))


def test_the_step_is_the_first_that_lowers_the_loss_enough() -> None:
    w = torch.nn.Parameter(torch.tensor([1.0], dtype=torch.float64))
    optimizer = LineSearchDescent([w], lr=8.0, shrink=0.5, sufficient=0.1)
    (0.5 * w**2).sum().backward()
    tried: list[float] = []

    def loss() -> torch.Tensor:
        tried.append(float(w))
        return (0.5 * w**2).sum()

    # With g = 1: (1 - η)² / 2 <= 1/2 - 0.1 η holds for η <= 1.8, so 8, 4 and 2 fail.
    assert optimizer.step(loss) == pytest.approx(0.0)
    assert tried == pytest.approx([1.0, -7.0, -3.0, -1.0, 0.0])
    assert optimizer.param_groups[0]["lr"] == 2.0


def test_weights_stay_where_no_step_helps() -> None:
    w = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
    w.grad = torch.tensor([-1.0, -1.0])  # uphill
    optimizer = LineSearchDescent([w], lr=1.0)
    assert optimizer.step(lambda: (w**2).sum()) == 5
    assert w.tolist() == [1.0, 2.0]
    assert optimizer.param_groups[0]["lr"] < 1e-8


def test_a_loss_that_is_not_finite_is_no_step() -> None:
    w = torch.nn.Parameter(torch.tensor([1.0]))
    w.grad = torch.tensor([1.0])
    optimizer = LineSearchDescent([w], lr=4.0)
    after = optimizer.step(lambda: torch.where(w < 0, torch.nan, w).sum())
    assert 0 <= float(w) == after < 1


def config(**training: Any) -> dict[str, Any]:
    system = {"name": "rnn", "hidden_size": 6, "recurrent_dropout": 0.2}
    settings = {
        "steps": 8,
        "batch_size": 16,
        "optimizer": "line-search",
        "lr": 1.0,
        "validate_every": 4,
        "log_every": 1,
    }
    return {"task": {"name": "adding", "length": 10}, "system": system, "training": settings | training}


def test_a_run_resumes_to_the_same_bits(tmp_path: Path) -> None:
    whole = train(config(), tmp_path / "whole")
    train(config(steps=4, checkpoint_every=2), tmp_path / "cut")
    cut = resume(tmp_path / "cut", steps=8)
    assert whole.history["loss"].tolist() == cut.history["loss"].tolist()
    assert all(torch.equal(a, b) for a, b in zip(whole.model.parameters(), cut.model.parameters(), strict=True))


def test_a_batch_that_stays_the_same_is_learned_without_a_rate_to_choose() -> None:
    generator = torch.Generator().manual_seed(0)
    batch = ADDING.batch(20, generator)
    data = (batch.inputs.transpose(0, 1).contiguous(), batch.targets.squeeze(-1))
    losses = {}
    for lr in (1e-4, 1e2):
        torch.manual_seed(0)
        model = SequenceModel(create("rnn", 2, 8), 1)
        options = {"steps": 60, "batch_size": 18, "log_every": 1, "validation": 0.1, "device": "cpu"}
        losses[lr] = fit(model, data, optimizer="line-search", lr=lr, **options).history["loss"]
    for loss in losses.values():
        assert (np.diff(loss) <= SAME).all()  # the whole training part is every batch
        assert loss[-1] < 0.9 * loss[0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"schedule": "linear"}, "schedule goes with an optimizer other than hessian-free and line-search"),
        ({"clip_norm": 1.0}, "clip_norm goes with an optimizer that follows the gradient"),
    ],
)
def test_settings_without_an_effect(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        train(config(**options))


def test_what_it_cannot_train() -> None:
    table = config()
    table["system"] = {"name": "factorized", "hidden_size": 6}
    with pytest.raises(ValueError, match="line-search needs a model without orthonormal bases, got a factorized map"):
        train(table)
    with pytest.raises(ValueError, match=r"^closure must evaluate the loss, got None$"):
        LineSearchDescent([torch.nn.Parameter(torch.ones(1))]).step()
    groups = [{"params": [torch.nn.Parameter(torch.ones(1))]} for _ in range(2)]
    with pytest.raises(ValueError, match="params must be one group"):
        LineSearchDescent(groups)
