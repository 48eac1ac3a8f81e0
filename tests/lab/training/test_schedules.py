from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from torch.optim import lr_scheduler

from evenflow import SequenceModel, create
from evenflow.lab.tasks import Adding
from evenflow.lab.training import NonFiniteLoss, Run, fit
from evenflow.lab.training.schedules import SCHEDULES, lr_factor

TASK = Adding(length=8)
QUICK = {"steps": 12, "batch_size": 4, "validate_every": 2, "validation_batches": 1, "log_every": 1, "device": "cpu"}
FLOAT = 1e-7  # metrics.csv holds nine digits


def model_for(**options):
    generator = torch.Generator().manual_seed(0)
    return SequenceModel(create("rnn", 2, 6, generator=generator, **options), 1, generator=generator)


def lrs(result):
    return result.history["lr"].tolist()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("constant", {0: 1, 1: 1, 999: 1}),
        ("linear", {0: 1, 250: 0.75, 999: 0.001, 1000: 0, 1500: 0}),
        ("cosine", {0: 1, 250: 0.5 + 0.5**1.5, 500: 0.5, 1000: 0, 1500: 0}),
        ("plateau", {0: 1, 999: 1}),
        ("exponential", {0: 1, 50: 0.1**0.5, 100: 0.1, 250: 0.1**2.5}),
        ("step", {0: 1, 99: 1, 100: 0.1, 199: 0.1, 200: 0.01, 250: 0.01}),
    ],
)
def test_values_of_schedules(name, expected):
    for step, value in expected.items():
        assert lr_factor(name, step, 1000, decay=0.1, every=100) == pytest.approx(value, abs=1e-15)


def test_every_schedule_begins_at_one_and_never_rises():
    for name in set(SCHEDULES) - {"one-cycle"}:
        values = [lr_factor(name, step, 50, decay=0.5, every=10) for step in range(50)]
        assert values[0] == 1
        assert all(later <= earlier for earlier, later in itertools.pairwise(values))


@pytest.mark.parametrize("name", sorted(set(SCHEDULES) - {"one-cycle"}))
def test_a_warm_up_rises_in_a_line_and_then_the_schedule_begins(name):
    values = [lr_factor(name, step, 50, decay=0.5, every=10, warmup=4) for step in range(50)]
    assert values[:4] == [0.25, 0.5, 0.75, 1.0]
    assert values[4:] == [lr_factor(name, step, 46, decay=0.5, every=10) for step in range(46)]


@pytest.mark.parametrize(("warmup", "share"), [(0, 0.3), (10, 0.2), (2, 0.04)])
def test_one_cycle_is_torchs(warmup, share):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    cycle = lr_scheduler.OneCycleLR(optimizer, max_lr=1.0, total_steps=50, pct_start=share, cycle_momentum=False)
    for step in range(49):
        assert lr_factor("one-cycle", step, 50, warmup=warmup) == pytest.approx(cycle.get_last_lr()[0], abs=1e-12)
        optimizer.step()
        cycle.step()


def test_plateau_waits_for_validations_without_improvement():
    result = fit(model_for(), TASK, schedule="plateau", decay=0.1, decay_patience=2, lr=0.05, **(QUICK | {"steps": 40}))
    expected, factor, best, stale = [], 1.0, math.inf, 0
    for loss in result.history["valid_loss"]:
        expected.append(0.05 * factor)
        if np.isnan(loss):
            continue
        best, stale = (loss, 0) if math.isinf(best) or loss < best * (1 - 1e-4) else (best, stale + 1)
        if stale == 2:
            factor, stale = factor * 0.1, 0
    assert lrs(result) == pytest.approx(expected, rel=FLOAT)
    assert factor < 1


OWN = {
    "function": lambda optimizer: lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 4),
    "plateau": lambda optimizer: lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5),
}


def test_a_scheduler_of_torch_sets_the_learning_rate():
    result = fit(model_for(), TASK, schedule=OWN["function"], lr=0.01, **QUICK)
    cosines = [0.01 * (1 + math.cos(math.pi * (step % 4) / 4)) / 2 for step in range(12)]
    assert lrs(result) == pytest.approx(cosines, rel=1e-6)


def test_a_scheduler_on_an_optimiser_of_the_users_own():
    model, twin = model_for(), model_for()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02, betas=(0.8, 0.9), weight_decay=0.1)
    scheduler = lr_scheduler.StepLR(optimizer, 5, gamma=0.1)
    result = fit(model, TASK, optimizer=optimizer, schedule=scheduler, **QUICK)
    assert lrs(result) == pytest.approx([0.02] * 5 + [0.002] * 5 + [0.0002] * 2, rel=1e-6)

    class Own(torch.optim.AdamW):
        def __init__(self, params, lr):
            super().__init__(params, lr, betas=(0.8, 0.9), weight_decay=0.1)

    fit(twin, TASK, optimizer=Own, lr=0.02, schedule="step", decay=0.1, decay_every=5, **QUICK)
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a, b)


class Stop(Adding):
    """Adding that raises at the given loss of an update."""

    def __init__(self, at):
        super().__init__(length=8)
        object.__setattr__(self, "left", at)

    def loss(self, outputs, targets):
        if outputs.requires_grad:
            object.__setattr__(self, "left", self.left - 1)
            if self.left == 0:
                raise NonFiniteLoss("stopped")
        return super().loss(outputs, targets)


@pytest.mark.parametrize(
    ("schedule", "optimizer"),
    [
        *((name, "adam") for name in ("cosine", "one-cycle")),
        *(("plateau", name) for name in ("adamw", "nadam", "radam", "adamax", "adagrad", "muon")),
        (OWN["function"], torch.optim.AdamW),
        (OWN["plateau"], "object"),
    ],
)
def test_a_run_that_failed_goes_on_to_the_same_bits(tmp_path, schedule, optimizer):
    if optimizer == "muon" and not hasattr(torch.optim, "Muon"):
        pytest.skip("this torch has no Muon")
    own = {"decay_patience": 1} if schedule == "plateau" else {}

    def run(task, **more):
        model = model_for()
        chosen = torch.optim.RAdam(model.parameters(), lr=0.1) if optimizer == "object" else optimizer
        lr = {} if optimizer == "object" else {"lr": 0.1}
        return fit(model, task, optimizer=chosen, schedule=schedule, **lr, **own, **QUICK, **more)

    alone = run(TASK)
    options = {"folder": tmp_path / "run", "checkpoint_every": 5}
    with pytest.raises(NonFiniteLoss):
        run(Stop(9), **options)
    assert Run(tmp_path / "run").status["step"] == 8
    again = run(TASK, **options, resume=True)
    assert lrs(again) == lrs(alone)
    for a, b in zip(alone.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(a, b)


def other_model():
    return torch.optim.Adam(model_for().parameters())


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"optimizer": other_model()},
            r"^optimizer must hold parameters of the model, got one that is not the model's$",
        ),
        ({"optimizer": other_model(), "lr": 0.1}, r"^lr is that of the optimizer, which is made already, got 0.1$"),
        ({"optimizer": 3}, r"^optimizer must be a name, a class of torch optimizers or an optimizer, got 3$"),
        ({"optimizer": torch.optim.LBFGS, "weight_decay": 0.1}, r"^optimizer .*:LBFGS cannot be made with lr and"),
        ({"optimizer": "no_such_package:Lion"}, r"^optimizer 'no_such_package:Lion' cannot be imported: No module"),
        ({"optimizer": "torch.nn:Linear"}, r"^optimizer must be a class of torch optimizers, got torch.nn:Linear$"),
        ({"schedule": 3}, r"^schedule must be a name, a scheduler of torch or a function, got 3$"),
        ({"schedule": lambda optimizer: 3}, r"^schedule must make a scheduler of torch, got a int$"),
        ({"schedule": lr_scheduler.StepLR}, r"^schedule must make a scheduler of an optimizer alone"),
        ({"schedule": lr_scheduler.StepLR(other_model(), 3)}, r"^schedule must be a scheduler of the optimizer that"),
        (
            {"schedule": OWN["function"], "warmup": 3},
            r"^warmup goes with a schedule that has a name, got 3 without it$",
        ),
    ],
)
def test_what_is_refused(tmp_path, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        fit(model_for(), TASK, folder=tmp_path / "run", **options, **QUICK)
    assert not (tmp_path / "run").exists()


def test_bases_need_an_optimiser_of_their_own():
    model = model_for(map="factorized")
    with pytest.raises(ValueError, match=r"^optimizer must be a name or a class for a model with a factorized map"):
        fit(model, TASK, optimizer=torch.optim.Adam(model.parameters()), **QUICK)
    fit(model, TASK, optimizer=torch.optim.Adam, **(QUICK | {"steps": 1}))


def test_an_optimiser_may_train_twice():
    model = model_for()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    for _ in range(2):
        assert lrs(fit(model, TASK, optimizer=optimizer, schedule="linear", **QUICK))[0] == 0.02
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.02 / 12)
