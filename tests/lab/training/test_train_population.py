"""Runs side by side end as they would alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from made_data import small_options

from evenflow.lab.tasks import TASKS
from evenflow.lab.training import OPTIMIZERS, SCHEDULES, NonFiniteLoss, Result, Run, resume, train
from evenflow.lab.training.loop import Loop
from evenflow.lab.training.population_step import PopulationStep
from evenflow.lab.training.train_population import train_population

# The same float32 sums in another order, over a few updates.
SAME = 1e-4
QUICK = {"steps": 6, "batch_size": 4, "validate_every": 3, "validation_batches": 2, "log_every": 1, "device": "cpu"}


def config(task=None, system=None, **training):
    system = {"name": "rnn", "hidden_size": 5} | (system or {})
    return {"task": task or {"name": "adding", "length": 9}, "system": system, "training": QUICK | training}


def assert_as_alone(configs, results):
    for one, result in zip(configs, results, strict=True):
        alone = train(one, progress=False)
        for column in ("step", "loss", "gradient_norm", "lr", "valid_loss", "valid_metric"):
            np.testing.assert_allclose(result.history[column], alone.history[column], rtol=SAME, atol=SAME)
        for name, tensor in alone.model.state_dict().items():
            torch.testing.assert_close(result.model.state_dict()[name], tensor, rtol=10 * SAME, atol=SAME)
        np.testing.assert_allclose(result.test_metric, alone.test_metric, rtol=SAME)
        assert result.best_step == alone.best_step


@pytest.mark.parametrize(
    "training",
    [
        {"optimizer": "adam"},
        {"optimizer": "rmsprop", "momentum": 0.5},
        {"optimizer": "sgd", "momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
        {"optimizer": "sgd", "clip_norm": 0.1, "clip_scope": "recurrent", "schedule": "linear"},
    ],
    ids=["adam", "rmsprop", "nesterov", "clipped"],
)
def test_seeds_and_rates_side_by_side(training):
    configs = [config(seed=seed, lr=lr, **training) for seed, lr in ((0, 0.01), (1, 0.003), (2, 0.02))]
    assert_as_alone(configs, train_population(configs, progress=False))


def test_runs_of_one_seed_read_one_batch(monkeypatch):
    drawn, draw = [], Loop.next_batch
    monkeypatch.setattr(Loop, "next_batch", lambda loop: drawn.append(loop.settings.seed) or draw(loop))
    configs = [config(seed=seed, lr=lr) for seed, lr in ((3, 0.01), (5, 0.01), (3, 0.003), (5, 0.003))]
    results = train_population(configs, progress=False)
    assert drawn == [3, 5] * QUICK["steps"]
    assert_as_alone(configs, results)


def test_losses_of_bfloat16_models_are_those_of_full_digits():
    """The first update sees the same weights and batch alone and side by side; its loss has more than three digits."""
    task = {"name": "recall-first", "length": 4, "symbols": 3, "embedding": 4}
    configs = [config(task=task, precision="bf16-true", seed=seed, steps=1, validate_every=1) for seed in (1, 2)]
    for one, together in zip(configs, train_population(configs, progress=False), strict=True):
        alone = train(one, progress=False)
        assert together.loss == pytest.approx(alone.loss, rel=1e-4)
        assert together.valid_loss != float(torch.tensor(together.valid_loss).bfloat16())


def test_bases_move_along_geodesics():
    options = {"optimizer": "rmsprop", "bases_lr": 0.01, "lr": 0.01}
    configs = [config(system={"name": "factorized"}, seed=seed, **options) for seed in range(2)]
    assert_as_alone(configs, train_population(configs, progress=False))


def test_margins_and_a_penalty_side_by_side():
    """The rows of a table: one shape, maps with settings of their own, weight decay on the matrix they make."""
    options = {"optimizer": "rmsprop", "bases_lr": 0.01, "lr": 0.01, "penalty": "weight_decay(0.1)"}
    configs = [config(system={"name": "factorized", "margin": margin}, **options) for margin in (0.01, 0.1, 1.0)]
    results = train_population(configs, progress=False)
    assert_as_alone(configs, results)
    without = train(
        config(system={"name": "factorized", "margin": 0.1}, **(options | {"penalty": None})), progress=False
    )
    assert not np.allclose(results[1].history["valid_loss"], without.history["valid_loss"], rtol=10 * SAME)


@pytest.mark.parametrize(
    "options",
    [
        {"input_dropout": 0.5},
        {"output_dropout": 0.5},
        {"score_dropout": 0.5},
        {"num_layers": 2, "dropout": 0.5},
        {"name": "lstm", "recurrent_dropout": 0.3, "zoneout": [0.1, 0.2], "weight_dropout": 0.2},
    ],
    ids=lambda options: "-".join(name for name in options if name != "name"),
)
def test_each_run_draws_the_dropout_of_its_seed(options):
    """The masks are those of the run alone; without a per-run generator they depended on the other runs."""
    configs = [config(system={"hidden_size": 16} | options, seed=seed, lr=0.01) for seed in (1, 2, 1)]
    results = train_population(configs, progress=False)
    assert_as_alone(configs, results)
    assert results[0].loss == results[2].loss
    still = config(system=options, seed=1, lr=1e-9, optimizer="sgd", steps=1)
    without = config(system={"name": options.get("name", "rnn")}, seed=1, lr=1e-9, optimizer="sgd", steps=1)
    noisy, plain = (train_population([each], progress=False)[0] for each in (still, without))
    assert noisy.loss != plain.loss


@pytest.mark.parametrize("name", TASKS)
def test_every_task(name, small_data):
    if name == "digits":
        pytest.importorskip("sklearn")
    task = {"name": name, **small_options(name, small_data)}
    configs = [config(task, seed=seed, steps=3, optimizer="sgd", lr=0.01) for seed in range(2)]
    for one in configs:
        del one["training"]["validation_batches"]
    assert_as_alone(configs, train_population(configs, progress=False))


@pytest.mark.parametrize("name", ["music", "ptb-characters"])
def test_batches_of_several_seeds_are_as_long_as_the_longest(name, small_data, monkeypatch):
    """So that a GPU records an update for each length, and not for each mixture of lengths."""
    seen, drawn, work, draw = [], [], PopulationStep._work, Loop.next_batch

    def noted(self, kinds, inputs, *rest):
        seen.append([len(x) for x in inputs])
        return work(self, kinds, inputs, *rest)

    monkeypatch.setattr(PopulationStep, "_work", noted)
    monkeypatch.setattr(Loop, "next_batch", lambda loop: drawn.append(draw(loop)) or drawn[-1])
    task = {"name": name, **small_options(name, small_data)}
    train_population([config(task, seed=seed, steps=4, batch_size=2) for seed in range(3)], progress=False)
    lengths = [[len(batch.inputs) for batch in drawn[first : first + 3]] for first in range(0, len(drawn), 3)]
    assert any(len(set(each)) > 1 for each in lengths)
    assert seen == [[max(each)] * 3 for each in lengths]


@pytest.fixture
def interrupted(tmp_path, monkeypatch):
    """Train three runs, the first until step `stop`, and interrupt them at step 5: their configs and folders."""

    def run(stop=None):
        configs = [config(seed=seed, checkpoint_every=2) for seed in range(3)]
        folders = [tmp_path / str(seed) for seed in range(3)]
        look = Loop.record

        def broken(loop, found=None):
            if loop.step == 5 and loop.settings.seed == 1:
                raise KeyboardInterrupt
            look(loop, found)
            if loop.step == stop and loop.settings.seed == 0:
                loop.best.stopped = True

        with monkeypatch.context() as patched:
            patched.setattr(Loop, "record", broken)
            with pytest.raises(KeyboardInterrupt):
                train_population(configs, folders, progress=False)
        return configs, folders

    return run


def test_each_run_has_a_folder_and_could_go_on_alone(interrupted):
    configs, folders = interrupted()
    assert [Run(folder).status["state"] for folder in folders] == ["interrupted"] * 3
    alone = resume(folders[0], progress=False)
    results = train_population(configs, folders, resume=True, progress=False)
    assert [Run(folder).status["state"] for folder in folders] == ["finished"] * 3
    assert results[0].loss == alone.loss
    assert_as_alone(configs, results)


def test_what_has_ended_stays_so_when_the_others_are_interrupted(interrupted):
    configs, folders = interrupted(stop=3)
    assert [Run(folder).status["state"] for folder in folders] == ["finished", "interrupted", "interrupted"]
    assert Run(folders[0]).status["step"] == 3
    results = train_population(configs[1:], folders[1:], resume=True, progress=False)
    assert_as_alone(configs[1:], results)


def test_one_that_diverges_leaves_the_others_alone(tmp_path):
    configs = [
        config(system={"name": "irnn"}, seed=seed, optimizer="sgd", lr=lr)
        for seed, lr in ((0, 0.01), (1, 1e30), (2, 0.02))
    ]
    folders = [tmp_path / str(seed) for seed in range(3)]
    first, second, third = train_population(configs, folders, progress=False)
    assert isinstance(second, NonFiniteLoss)
    assert Run(folders[1]).status["state"] == "failed"
    assert_as_alone([configs[0], configs[2]], [first, third])


def test_one_that_stops_early_leaves_the_others_to_go_on():
    configs = [
        config(
            {"name": "recall-first", "length": 1, "symbols": 2},
            seed=seed,
            lr=lr,
            steps=40,
            stop_when_solved=True,
            validate_every=5,
        )
        for seed, lr in ((0, 0.1), (1, 1e-6))
    ]
    quick, slow = train_population(configs, progress=False)
    assert isinstance(quick, Result)
    assert quick.stopped_early
    assert quick.steps < slow.steps == 40


@pytest.mark.parametrize(
    ("configs", "sentence"),
    [
        (lambda: [], "configs must be at least one run, got none"),
        (lambda: [config(steps=3), config(steps=4)], "steps must be the same in all runs of a population, got 3 and 4"),
        (
            lambda: [config(optimizer="hessian-free")],
            f"optimizer must be one of {', '.join(OPTIMIZERS)} in a population, got 'hessian-free'",
        ),
        (
            lambda: [config(schedule="torch.optim.lr_scheduler:StepLR")],
            f"schedule must be one of {', '.join(SCHEDULES)} in a population, got 'torch.optim.lr_scheduler:StepLR'",
        ),
        (
            lambda: [config(clip_value=1.0, clip_scope="mapped")],
            "clip_scope must not be mapped in a population, whose maps run as one, got 'mapped'",
        ),
        (
            lambda: [config(penalty="stabilizer")],
            "penalty must read the weights alone in a population, got 'stabilizer'",
        ),
        (lambda: [config(), config(system={"hidden_size": 6})], "models must be equal except for their parameters"),
    ],
)
def test_what_cannot_walk_in_step(configs, sentence, tmp_path):
    made = configs()
    with pytest.raises(ValueError, match=f"^{sentence}"):
        train_population(made, [tmp_path / str(i) for i in range(len(made))], progress=False)
    assert not list(tmp_path.iterdir())


def test_tensorboard_needs_a_folder():
    with pytest.raises(ValueError, match=r"^logger tensorboard writes into the run folder, got folder None"):
        train_population([config(logger="tensorboard")], progress=False)
