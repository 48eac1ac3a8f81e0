from __future__ import annotations

import dataclasses
import inspect
import itertools
import logging
import math
import shutil

import numpy as np
import pytest
import torch
from torch import nn

from evenflow import SequenceModel, create
from evenflow.lab.tasks import Adding, Copy, make
from evenflow.lab.training import NonFiniteLoss, Run, Settings, checkpoint, fit
from evenflow.lab.training.config import check_model
from evenflow.lab.training.launch import matmul_precision
from evenflow.lab.training.seeds import derive

# A loop written by hand and the one under test do the same float32 operations.
SAME = 1e-6

TASK = Adding(length=8)
QUICK = {"steps": 12, "batch_size": 4, "validate_every": 4, "validation_batches": 2, "log_every": 3, "device": "cpu"}


def model_for(task=TASK, name="rnn", seed=0, hidden_size=6, **options) -> SequenceModel:
    generator = torch.Generator().manual_seed(seed)
    layer = create(name, task.input_size, hidden_size, generator=generator, **options)
    return SequenceModel(layer, task.output_size, readout=task.readout, generator=generator)


def weights(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def equal(first, second) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def by_hand(model, steps, optimizer, seed=0, lr=lambda step: 1e-3, before_step=lambda model: None):
    """The loop as one would write it in a notebook."""
    losses, norms = [], []
    for step in range(steps):
        batch = TASK.batch(4, torch.Generator().manual_seed(derive(seed, "train", step)))
        loss = TASK.loss(model(batch.inputs)[0], batch.targets)
        optimizer.zero_grad()
        loss.backward()
        norms.append(torch.cat([p.grad.flatten() for p in model.parameters()]).norm().item())
        before_step(model)
        optimizer.param_groups[0]["lr"] = lr(step)
        optimizer.step()
        losses.append(loss.item())
    return losses, norms


@pytest.mark.parametrize("schedule", ["constant", "linear"])
def test_equals_a_loop_written_by_hand(schedule):
    model, twin = model_for(), model_for()
    result = fit(model, TASK, schedule=schedule, **QUICK)

    def lr(step):
        return 1e-3 * (1 - step / 12 if schedule == "linear" else 1)

    losses, norms = by_hand(twin, 12, torch.optim.Adam(twin.parameters()), lr=lr)
    for name, tensor in twin.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], tensor, rtol=SAME, atol=SAME)
    history = result.history
    assert history["step"].tolist() == [3, 4, 6, 8, 9, 12]
    ends = [0, 3, 4, 6, 8, 9, 12]
    for i, (a, b) in enumerate(itertools.pairwise(ends)):
        assert history["loss"][i] == pytest.approx(np.mean(losses[a:b]), rel=SAME * 10)
        assert history["gradient_norm"][i] == pytest.approx(np.mean(norms[a:b]), rel=SAME * 10)
        assert history["lr"][i] == pytest.approx(lr(b - 1), rel=1e-8)
    np.testing.assert_array_equal(np.isnan(history["valid_loss"]), [True, False, True, False, True, False])


@pytest.mark.parametrize("scope", ["all", "recurrent"])
def test_clipping_reaches_the_update(scope):
    model, twin = model_for(), model_for()
    result = fit(model, TASK, optimizer="sgd", lr=0.1, clip_norm=0.01, clip_scope=scope, **QUICK)

    def before_step(m):
        chosen = [p for n, p in m.named_parameters() if scope == "all" or "weight_hh" in n]
        nn.utils.clip_grad_norm_(chosen, 0.01)

    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
    by_hand(twin, 12, optimizer, lr=lambda step: 0.1, before_step=before_step)
    for name, tensor in twin.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], tensor, rtol=SAME, atol=SAME)
    assert result.history["gradient_norm"].min() > 0.01


def test_same_seed_same_run_and_the_global_generator_is_left_alone():
    options = QUICK | {"seed": 3}
    model, again, other = (model_for(name="rnn", num_layers=2, dropout=0.5) for _ in range(3))
    before = torch.get_rng_state()
    fit(model, TASK, **options)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(99)
    fit(again, TASK, **options)
    fit(other, TASK, **(options | {"seed": 4}))
    assert equal(weights(model), weights(again))
    assert not equal(weights(model), weights(other))


def test_looking_changes_nothing(tmp_path):
    """Rows, validations, probes, checkpoints and the folder leave the weights as they would have been."""
    plain, watched = (model_for(num_layers=2, dropout=0.5) for _ in range(2))
    fit(plain, TASK, **(QUICK | {"validate_every": 100, "log_every": 100}))
    options = QUICK | {"validate_every": 1, "log_every": 1, "probe_every": 1, "checkpoint_every": 2}
    fit(watched, TASK, folder=tmp_path / "run", **options)
    assert equal(weights(plain), weights(watched))


def test_probes(tmp_path):
    result = fit(model_for(), TASK, folder=tmp_path / "run", probe_every=5, **QUICK)
    assert result.probes["step"].tolist() == [0, 5, 10]
    assert result.probes["gradient_norm"].shape == (3, 8)
    assert (result.probes["gradient_norm"] > 0).all()
    for name, array in Run(tmp_path / "run").probes.items():
        np.testing.assert_array_equal(array, result.probes[name])


def test_sequences_of_different_lengths():
    task = Adding(length=12, variant="galvan")
    result = fit(model_for(task), task, probe_every=6, **QUICK)
    assert math.isfinite(result.loss)
    assert result.probes["gradient_norm"].shape == (3, 13)


def test_copy_is_trained_at_every_step():
    task = Copy(length=3, symbols=2, items=2)
    result = fit(model_for(task), task, **(QUICK | {"steps": 40, "lr": 0.02}))
    first, *_, last = result.history["valid_loss"][~np.isnan(result.history["valid_loss"])]
    assert last < 0.8 * first


def test_result_and_run_folder_agree(tmp_path):
    model = model_for()
    result = fit(model, TASK, folder=tmp_path / "run", **QUICK)
    run = Run(result.folder)
    for name, column in result.history.items():
        np.testing.assert_array_equal(run.metrics[name], column)
    assert run.config["task"] == {"name": "adding", "length": 8, "variant": "sgornn"}
    assert Settings.from_dict(run.config["training"]) == Settings(**QUICK)
    assert run.status["state"] == "finished"
    assert run.status["parameters"] == sum(p.numel() for p in model.parameters())
    assert equal(run.weights("last"), weights(model))
    assert equal(run.weights("best"), result.best_weights)
    assert result.best_metric == run.status["best_metric"]
    assert result.best_metric == pytest.approx(np.nanmin(run.metrics["valid_metric"]))
    assert (result.steps, result.stopped_early, result.solved) == (12, False, False)


def test_best_weights_have_the_best_validation():
    model = model_for()
    # A rate this large makes the validation wander, so that the last is not the best.
    result = fit(model, TASK, optimizer="sgd", lr=0.5, clip_norm=1.0, **(QUICK | {"steps": 40}))
    assert result.best_step < 40
    model.load_state_dict(result.best_weights)
    losses = []
    for index in range(2):
        batch = TASK.batch(4, torch.Generator().manual_seed(derive(0, "validation", index)))
        losses.append(TASK.loss(model(batch.inputs)[0], batch.targets).item())
    assert np.mean(losses) == pytest.approx(result.best_loss, rel=SAME * 10)


class Worsening(Adding):
    """Adding, with a metric that is best at the given validation and gets worse from there."""

    def __init__(self, best_at: int) -> None:
        super().__init__(length=8)
        object.__setattr__(self, "best_at", best_at)
        object.__setattr__(self, "calls", 0)

    def metric(self, outputs, targets):
        object.__setattr__(self, "calls", self.calls + 1)
        return torch.tensor(1.0 + abs(self.calls - self.best_at))

    solved_limit = 1.0
    limit_excluded = False


@pytest.mark.parametrize("patience", [1, 2, 4])
def test_early_stopping(tmp_path, patience):
    options = QUICK | {"steps": 40, "validation_batches": 1, "patience": patience}
    result = fit(model_for(), Worsening(3), folder=tmp_path / "run", **options)
    assert result.stopped_early
    assert result.best_step == 3 * 4
    assert result.steps == (3 + patience) * 4
    assert result.solved
    status = Run(tmp_path / "run").status
    assert status["message"] == f"stopped early at step {result.steps}"
    assert checkpoint.find(tmp_path / "run" / "checkpoint") == f"step-{result.steps:09d}"


class Level(Adding):
    """Every validation is as good as every other, in loss and metric."""

    def loss(self, outputs, targets):
        return 0 * outputs.sum() + 1

    def metric(self, outputs, targets):
        return torch.tensor(0.5)


def test_of_equal_validations_the_latest_counts_and_none_puts_off_the_end():
    options = QUICK | {"steps": 40, "validation_batches": 1}
    result = fit(model_for(), Level(length=8), **options)
    assert result.best_step == result.steps == 40
    result = fit(model_for(), Level(length=8), patience=2, **options)
    assert (result.best_step, result.steps, result.stopped_early) == (12, 12, True)


def test_stop_when_solved():
    options = QUICK | {"steps": 40, "validation_batches": 1, "stop_when_solved": True}
    result = fit(model_for(), Worsening(3), **options)
    assert (result.steps, result.stopped_early, result.solved) == (12, True, True)


@pytest.mark.parametrize("precision", ["64-true", "bf16-mixed", "bf16-true"])
def test_precisions(precision, tmp_path):
    model = model_for(name="urnn")
    result = fit(model, TASK, folder=tmp_path / "run", precision=precision, probe_every=6, **QUICK)
    assert math.isfinite(result.loss)
    wanted = {"64-true": torch.float64, "bf16-mixed": torch.float32, "bf16-true": torch.bfloat16}[precision]
    assert {p.dtype for p in model.parameters()} == {wanted}
    assert {t.dtype for t in Run(tmp_path / "run").weights().values()} == {wanted}


class Normalised(nn.Module):
    """A model with a buffer that every pass in training moves."""

    def __init__(self):
        super().__init__()
        self.norm, self.inner = nn.BatchNorm1d(1), model_for()

    def forward(self, x, state=None):
        outputs, state = self.inner(x, state)
        return self.norm(outputs), state


@pytest.mark.parametrize("training", [True, False])
def test_looking_whether_a_model_will_do_leaves_it_as_it_was(training):
    model = Normalised().train(training)
    check_model(model, TASK, Settings(penalty="soft_orthogonality"))
    assert model.norm.num_batches_tracked == 0
    assert torch.equal(model.norm.running_mean, torch.zeros(1))
    assert model.training is training


class Watching(Adding):
    """Adding that notes how a GPU would multiply during each loss."""

    def loss(self, outputs, targets):
        self.seen.append(torch.backends.cuda.matmul.fp32_precision)
        return super().loss(outputs, targets)


@pytest.fixture
def whole():
    """Products in all of float32, whatever was set before."""
    backend = torch.backends.cuda.matmul
    before, backend.fp32_precision = backend.fp32_precision, "ieee"
    yield
    backend.fp32_precision = before


@pytest.mark.parametrize(("precision", "bits"), [("32-true", "ieee"), ("tf32", "tf32")])
def test_tf32_is_allowed_for_the_run_alone(precision, bits, whole):
    task = Watching(length=8)
    object.__setattr__(task, "seen", [])
    model = model_for(name="urnn")
    fit(model, task, precision=precision, **QUICK)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert set(task.seen) == {bits}
    assert torch.backends.cuda.matmul.fp32_precision == "ieee"


def test_tf32_lasts_until_the_last_run_that_asked_for_it_ends(whole):
    first, second = matmul_precision("tf32"), matmul_precision("tf32")
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    second.__exit__(None, None, None)
    assert torch.backends.cuda.matmul.fp32_precision == "ieee"


def test_tf32_is_put_back_after_a_run_that_failed():
    before = torch.backends.cuda.matmul.fp32_precision
    with pytest.raises(NonFiniteLoss):
        fit(model_for(), Exploding(at=3), precision="tf32", **QUICK)
    assert torch.backends.cuda.matmul.fp32_precision == before


def test_fabric_gives_no_advice_on_precision_but_speaks_otherwise(monkeypatch):
    """On a GPU it would tell every user to multiply in TF32, and name a call that is not ours."""
    from lightning_fabric.accelerators import cuda
    from lightning_fabric.utilities.rank_zero import rank_zero_info

    fit(model_for(), TASK, **QUICK)
    heard = []
    listener = logging.Handler()
    listener.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    for package in ("lightning_fabric", "pytorch_lightning"):  # the latter takes over where it is imported
        monkeypatch.setattr(logging.getLogger(package), "handlers", [listener])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "a GPU")
    monkeypatch.setattr(cuda, "_is_ampere_or_later", lambda _: True)
    cuda._check_cuda_matmul_precision.__wrapped__(torch.device("cuda"))
    assert heard == []
    rank_zero_info("something else")
    assert heard == ["something else"]


class Exploding(Adding):
    """Adding, until the loss becomes nan at the given update."""

    def __init__(self, at: int) -> None:
        super().__init__(length=8)
        object.__setattr__(self, "at", at)
        object.__setattr__(self, "calls", 0)

    def loss(self, outputs, targets):
        if outputs.requires_grad:
            object.__setattr__(self, "calls", self.calls + 1)
        return super().loss(outputs, targets) * (float("nan") if self.calls == self.at else 1.0)


def test_a_loss_that_is_not_a_number(tmp_path):
    model = model_for()
    with pytest.raises(NonFiniteLoss, match=r"^the loss became infinite or not a number between steps 11 and 12: try"):
        fit(model, Exploding(11), folder=tmp_path / "run", checkpoint_every=5, **QUICK)
    run = Run(tmp_path / "run")
    assert run.status["state"] == "failed"
    assert run.status["message"].startswith("the loss became infinite or not a number")
    assert run.metrics["step"][-1] == 12
    assert np.isnan(run.metrics["loss"][-1])
    assert checkpoint.find(tmp_path / "run" / "checkpoint") == "step-000000010"
    assert all(torch.isfinite(w).all() for w in run.weights().values())
    assert issubclass(NonFiniteLoss, RuntimeError)


def test_a_bad_checkpoint_is_never_written(tmp_path):
    """The bad update is the one a checkpoint is due at."""
    with pytest.raises(NonFiniteLoss):
        fit(model_for(), Exploding(10), folder=tmp_path / "run", checkpoint_every=5, **QUICK)
    assert checkpoint.find(tmp_path / "run" / "checkpoint") == "step-000000005"


def test_weights_that_overflow_are_not_saved(tmp_path):
    """Loss and gradient are finite but the step is not."""
    with pytest.raises(NonFiniteLoss, match=r"^the model's weights became infinite or not a number by step 1: "):
        fit(
            model_for(),
            TASK,
            folder=tmp_path / "run",
            optimizer="sgd",
            lr=1e38,
            weight_decay=1e38,
            **(QUICK | {"steps": 4, "validate_every": 9, "checkpoint_every": 1}),
        )
    assert checkpoint.find(tmp_path / "run" / "checkpoint") == "step-000000000"


class Crashing(Adding):
    """Adding, until the loss has been taken the given number of times, by updates and probes, and then raises."""

    def __init__(self, at: int, error: BaseException) -> None:
        super().__init__(length=8)
        object.__setattr__(self, "left", at)
        object.__setattr__(self, "error", error)

    def loss(self, outputs, targets):
        if outputs.requires_grad:
            object.__setattr__(self, "left", self.left - 1)
            if self.left < 0:
                raise self.error
        return super().loss(outputs, targets)


@pytest.mark.parametrize(
    ("error", "state"),
    [(KeyboardInterrupt(), "interrupted"), (MemoryError("no room\nat all"), "failed")],
    ids=["interrupted", "failed"],
)
def test_the_folder_says_how_it_ended_and_fit_goes_on(tmp_path, error, state):
    alone = model_for(num_layers=2, dropout=0.5)
    expected = fit(alone, TASK, **QUICK, probe_every=2)
    options = {"folder": tmp_path / "run", "checkpoint_every": 5, "probe_every": 2}
    with pytest.raises(type(error)):
        # Six updates and four probes, the first of which takes the loss twice, less the one that raises.
        fit(model_for(num_layers=2, dropout=0.5), Crashing(10, error), **options, **QUICK)
    status = Run(tmp_path / "run").status
    assert (status["state"], status["step"]) == (state, 6)
    assert "\n" not in status["message"]
    # Other starting weights: the checkpoint's count.
    model = model_for(seed=1, num_layers=2, dropout=0.5)
    result = fit(model, TASK, **options, **QUICK, resume=True)
    assert equal(weights(model), weights(alone))
    assert Run(tmp_path / "run").status["state"] == "finished"
    np.testing.assert_array_equal(result.probes["gradient_norm"], expected.probes["gradient_norm"])
    assert result.best_metric == expected.best_metric


def test_regularisers_draw_after_an_interruption_what_they_would_have_drawn(tmp_path):
    system = {"recurrent_dropout": 0.3, "zoneout": [0.1, 0.4], "layer_norm": True, "weight_dropout": 0.2}
    alone, model = (model_for(name="lstm", num_layers=2, **system) for _ in range(2))
    fit(alone, TASK, **QUICK)
    options = {"folder": tmp_path / "run", "checkpoint_every": 5}
    with pytest.raises(KeyboardInterrupt):
        fit(model, Crashing(8, KeyboardInterrupt()), **options, **QUICK)
    assert 0 < Run(tmp_path / "run").status["step"] < QUICK["steps"]
    model = model_for(seed=1, name="lstm", num_layers=2, **system)
    fit(model, TASK, **options, **QUICK, resume=True)
    assert equal(weights(model), weights(alone))


def test_resuming_a_finished_run_reads_it_back(tmp_path):
    first = fit(model_for(), TASK, folder=tmp_path / "run", probe_every=4, **QUICK)
    model = model_for(seed=1)
    again = fit(model, TASK, folder=tmp_path / "run", probe_every=4, resume=True, **QUICK)
    assert equal(weights(model), weights(first.model))
    assert equal(again.best_weights, first.best_weights)
    for field in ("steps", "loss", "valid_loss", "best_step", "best_metric", "solved", "stopped_early", "seconds"):
        assert getattr(again, field) == getattr(first, field)
    np.testing.assert_array_equal(again.probes["step"], first.probes["step"])


def test_resuming_with_something_else(tmp_path):
    fit(model_for(), TASK, folder=tmp_path / "run", **QUICK)

    def resume(model=None, task=TASK, **changed):
        fit(model or model_for(), task, folder=tmp_path / "run", resume=True, **(QUICK | changed))

    with pytest.raises(ValueError, match=r"^lr must stay as the run '.*run' began, 0.001, got 0.01$"):
        resume(lr=0.01)
    with pytest.raises(ValueError, match=r"^clip_norm must stay as the run '.*run' began, its default, got 1.0$"):
        resume(clip_norm=1.0)
    with pytest.raises(
        ValueError, match=r"^task must stay as the run '.*run' began, .*'length': 8.*, got .*'length': 9"
    ):
        resume(task=Adding(length=9))
    with pytest.raises(ValueError, match=r"^weights in '.*run' do not fit the model: layer.* has shape"):
        resume(model_for(hidden_size=8))
    resume()


def test_a_run_goes_on_with_its_data_elsewhere(tmp_path, small_data):
    shutil.copytree(small_data, tmp_path / "moved")
    reached = []
    for place in (small_data, tmp_path / "moved"):
        task = make("mnist", data=str(place), width=14)
        model = model_for(task, seed=len(reached))
        fit(model, task, folder=tmp_path / "run", resume=bool(reached), **(QUICK | {"steps": 4}))
        reached.append(weights(model))
        assert Run(tmp_path / "run").config["task"]["data"] == str(place)
    assert equal(*reached)


def test_what_is_refused_before_any_work(tmp_path):
    folder = tmp_path / "run"

    class Frozen(nn.Module):
        pass

    class Bare(nn.Linear):
        def forward(self, inputs):
            return super().forward(inputs[-1])

    cases = [
        (
            (Bare(2, 1), TASK),
            {},
            r"model must answer with outputs and a state \(or None\), as SequenceModel does, got a Tensor",
        ),
        (
            (model_for().double(), TASK),
            {},
            "input must be torch.float64 as the layer's weights are, got torch.float32: convert one of them",
        ),
        ((model_for(), TASK), {"lr": -1.0}, "lr must be a number above 0, got -1.0"),
        ((model_for(), TASK), {"stepz": 3}, r"unknown training setting 'stepz', did you mean steps\?"),
        (
            (model_for(), "adding"),
            {},
            r"task must be a task, arrays \(x, y\), a Dataset or a DataLoader, got 'adding': "
            r"write evenflow.tasks.make\('adding'\)",
        ),
        (
            (model_for(), (torch.zeros(8, 3, 2), torch.zeros(3, 1))),
            {},
            r"cannot read 'the data': 'y' must have shape .* for regression, readout last, got \(3, 1\)",
        ),
        ((model_for(), 3), {}, r"task must be a task, .*, got a int"),
        ((Frozen(), TASK), {}, "model has no parameter to train, at least one must require a gradient"),
        (
            (SequenceModel(create("rnn", 2, 4), 3), TASK),
            {},
            r"model must answer two sequences of task adding with shape \(2, 1\), got \(2, 3\)",
        ),
        (
            (SequenceModel(create("rnn", 2, 4), 1, readout="every"), TASK),
            {},
            r"model must answer two sequences of task adding with shape \(2, 1\), got \(8, 2, 1\)",
        ),
        ((model_for(), TASK), {"resume": True}, "folder '.*run' holds no run: it has no config.toml"),
        (
            (SequenceModel(nn.RNN(2, 4), 1), TASK),
            {"probe_every": 1},
            "probe_every needs a model whose layer is one of evenflow's, because it listens to the states",
        ),
    ]
    if not torch.cuda.is_available():
        missing = "device 'cuda' is not there: this machine offers 0 CUDA devices"
        cases.append(((model_for(), TASK), {"device": "cuda"}, missing))
    for arguments, options, sentence in cases:
        with pytest.raises(ValueError, match=f"^{sentence}$"):
            fit(*arguments, folder=folder, **options)
        assert not folder.exists()
    with pytest.raises(ValueError, match=r"^resume needs the folder of the run, got folder None$"):
        fit(model_for(), TASK, resume=True)


def test_inputs_of_the_wrong_width_are_refused_by_the_layer(tmp_path):
    with pytest.raises(ValueError, match="input"):
        fit(SequenceModel(create("rnn", 3, 4), 1), TASK, folder=tmp_path / "run", **QUICK)
    assert not (tmp_path / "run").exists()


def test_torch_layers_can_be_trained():
    assert math.isfinite(fit(SequenceModel(nn.GRU(2, 4), 1), TASK, **QUICK).loss)


def test_signature_shows_every_setting():
    parameters = inspect.signature(fit).parameters
    assert list(parameters)[:2] == ["model", "task"]
    for field in dataclasses.fields(Settings):
        assert parameters[field.name].default == field.default
        assert parameters[field.name].kind is inspect.Parameter.KEYWORD_ONLY
    assert {"folder", "resume", "progress"} < set(parameters)


def test_the_mode_of_the_model_is_kept():
    for training in (True, False):
        model = model_for().train(training)
        fit(model, TASK, **QUICK)
        assert model.training is training


def test_gradients_of_an_earlier_backward_pass_do_not_count():
    model, twin = model_for(), model_for()
    for p in twin.parameters():
        p.grad = torch.ones_like(p)
    results = [fit(m, TASK, **QUICK) for m in (model, twin)]
    np.testing.assert_array_equal(results[0].history["loss"], results[1].history["loss"])
