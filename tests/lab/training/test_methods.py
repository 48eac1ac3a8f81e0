"""Every way to learn, from `fit`: it descends, it resumes to the same bits, it refuses what it cannot do."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from evenflow import SequenceModel, create, penalties
from evenflow.lab.tasks import Adding, RecallFirst, make
from evenflow.lab.training import Run, checkpoint, evaluation, fit, resume, train
from evenflow.lab.training.loop import Loop
from evenflow.lab.training.method import GradientMethod
from evenflow.lab.training.seeds import derive
from evenflow.maps import mapped, residual
from evenflow.optim import stiefel

TASK = Adding(length=8)
QUICK = {"steps": 6, "batch_size": 8, "validate_every": 3, "log_every": 1, "device": "cpu", "progress": False}
# A loop written by hand and the one under test do the same float32 operations.
SAME = 1e-5
# Orthonormal columns after a hundred float32 steps.
ORTHONORMAL = 1e-5

METHODS = {
    "temporal-simplex": {"optimizer": "temporal-simplex", "lr": 0.1},
    "temporal-simplex with psi": {"optimizer": "temporal-simplex", "lr": 0.1, "psi": 0.5},
    "hessian-free": {"optimizer": "hessian-free", "curvature_size": 4},
    "hessian-free, structural": {"optimizer": "hessian-free", "structural": 0.1},
    **{name: {"optimizer": "sgd", "lr": 0.01, "penalty": name} for name in penalties.PENALTIES},
    "two penalties": {"optimizer": "sgd", "lr": 0.01, "penalty": "stabilizer(1.0) + weight_decay(0.01)"},
    "clipped each": {"optimizer": "sgd", "lr": 0.1, "clip_norm": 0.1, "clip_scope": "each"},
    "a rate for the map": {"system": "urnn", "optimizer": "adam", "map_lr": 1e-4},
    "geodesic sgd": {"system": "factorized", "optimizer": "rmsprop", "bases_lr": 1e-3},
    "geodesic adam": {"system": "factorized", "optimizer": "adam", "bases": "adam"},
}


def model_for(task=TASK, system="rnn", seed=0, **options):
    generator = torch.Generator().manual_seed(seed)
    layer = create(system, task.input_size, 6, generator=generator, **options)
    return SequenceModel(layer, task.output_size, readout=task.readout, vocabulary=task.vocabulary, generator=generator)


def config_for(name):
    options = dict(METHODS[name])
    system = {"name": options.pop("system", "rnn"), "hidden_size": 6}
    settings = {key: value for key, value in QUICK.items() if key != "progress"}
    return {"task": {"name": "adding", "length": 8}, "system": system, "training": settings | options}


@pytest.mark.parametrize("name", METHODS)
def test_every_method_resumes_to_the_same_bits(name, tmp_path, monkeypatch):
    config = config_for(name)
    config["training"]["checkpoint_every"] = 2
    alone = train(config, tmp_path / "alone", progress=False)
    update = Loop.update

    def interrupted(loop):
        if loop.step == 5:
            raise KeyboardInterrupt
        update(loop)

    with monkeypatch.context() as patched:
        patched.setattr(Loop, "update", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train(config, tmp_path / "run", progress=False)
    again = resume(tmp_path / "run", progress=False)
    expected, found = checkpoint.weights_of(alone.model), checkpoint.weights_of(again.model)
    assert all(torch.equal(expected[key], found[key]) for key in expected)
    for column in ("loss", "gradient_norm", "valid_loss"):
        np.testing.assert_array_equal(again.history[column], alone.history[column])
    assert np.isfinite(alone.history["gradient_norm"]).all()
    assert (alone.history["gradient_norm"] > 0).all()


@pytest.mark.parametrize("name", METHODS)
def test_every_method_descends(name):
    """On one batch that stays the same, the loss of the task falls."""
    config = config_for(name)
    system = config["system"]["name"]

    class Same(Adding):
        def training_batch(self, size, position, generator):
            return self.batch(size, torch.Generator().manual_seed(7))

    steps = 4 if config["training"]["optimizer"] == "hessian-free" else 30
    options = config["training"] | {"steps": steps, "validate_every": steps, "log_every": 1}
    result = fit(model_for(TASK, system), Same(length=8), progress=False, **options)
    assert result.history["loss"][-1] < result.history["loss"][0]


def test_a_penalty_equals_a_loop_written_by_hand():
    model, twin = model_for(), model_for()
    options = {"optimizer": "sgd", "lr": 0.05, "penalty": "soft_orthogonality(0.01)"}
    result = fit(model, TASK, **QUICK | options)
    losses = []
    for step in range(QUICK["steps"]):
        batch = TASK.batch(8, torch.Generator().manual_seed(derive(0, "train", step)))
        W = twin.layer.weight_hh_l0
        loss = TASK.loss(twin(batch.inputs)[0], batch.targets)
        (loss + 0.01 * (W.T @ W - torch.eye(6)).square().sum()).backward()
        with torch.no_grad():
            for p in twin.parameters():
                p -= 0.05 * p.grad
                p.grad = None
        losses.append(loss.item())
    np.testing.assert_allclose(result.history["loss"], losses, rtol=SAME)  # the task's loss, without the penalty
    for name, tensor in twin.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], tensor, rtol=SAME, atol=SAME)


@pytest.mark.parametrize("bases", ["sgd", "adam"])
def test_bases_stay_orthonormal(bases):
    model = model_for(system="factorized")
    before = [p.detach().clone() for p in model.parameters()]
    fit(model, TASK, **QUICK | {"steps": 100, "lr": 0.01, "bases": bases, "validate_every": 100})
    raw = model.layer.parametrizations.weight_hh_l0
    squares = [p for p in raw.parameters(recurse=False) if p.dim() == 2]
    assert len(squares) == 2
    assert all(residual(p) < ORTHONORMAL for p in squares)
    assert all(not torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))


def test_the_schedule_reaches_every_group():
    model = model_for(system="factorized")
    lrs = []
    step = torch.optim.SGD.step

    def watched(optimizer, *args, **kwargs):
        lrs.append([group["lr"] for group in optimizer.param_groups])
        return step(optimizer, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(torch.optim.SGD, "step", watched)
        fit(model, TASK, **QUICK | {"optimizer": "sgd", "lr": 0.1, "schedule": "linear"})
    first, last = lrs[0], lrs[-1]
    assert len(set(first)) == len(first) == 2, "the spectrum has a rate of its own"
    assert [b / a for a, b in zip(first, last, strict=True)] == pytest.approx([last[0] / first[0]] * 2)
    assert last[0] < first[0]


@pytest.mark.parametrize(
    ("options", "system", "sentence"),
    [
        ({"optimizer": "temporal-simplex"}, "lstm", r".*"),
        ({"optimizer": "temporal-simplex"}, "factorized", "TemporalSimplex would move the bases"),
        ({"optimizer": "hessian-free"}, "factorized", "HessianFree would move the bases"),
        ({"optimizer": "hessian-free", "precision": "bf16-mixed"}, "rnn", "optimizer hessian-free needs precision"),
        ({"optimizer": "hessian-free", "precision": "tf32"}, "rnn", "optimizer hessian-free needs precision"),
        ({"penalty": "norm_preserving"}, "lstm", r".*"),
        ({"penalty": "soft_orthogonality"}, "esn", "soft_orthogonality needs a layer whose recurrent"),
        ({"bases_lr": 0.1}, "rnn", "bases_lr goes with a factorized map"),
        ({"precision": "bf16-true"}, "factorized", "precision must not be bf16-true with a factorized map"),
        ({"optimizer": "hessian-free", "structural": 0.1}, "esn", "structural damping needs a recurrent layer"),
    ],
    ids=lambda value: value.get("optimizer", value.get("penalty")) if isinstance(value, dict) else None,
)
def test_what_a_method_cannot_do_is_refused_before_anything_is_written(options, system, sentence, tmp_path):
    with pytest.raises(ValueError, match=f"^{sentence}"):
        fit(model_for(system=system), TASK, folder=tmp_path / "run", **QUICK | options)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("optimizer", ["temporal-simplex", "hessian-free"])
def test_what_a_model_at_rest_will_drop_is_refused_before_anything_is_written(optimizer, tmp_path):
    model = SequenceModel(create("rnn", TASK.input_size, 4), TASK.output_size, output_dropout=0.5).eval()
    with pytest.raises(ValueError, match="dropout"):
        fit(model, TASK, folder=tmp_path / "run", **QUICK | {"optimizer": optimizer})
    assert not (tmp_path / "run").exists()
    assert not model.training


@pytest.mark.parametrize("optimizer", ["temporal-simplex", "hessian-free"])
def test_methods_in_double_precision(optimizer):
    model = SequenceModel(create("rnn", TASK.input_size, 4), TASK.output_size)
    result = fit(model, TASK, **QUICK | {"optimizer": optimizer, "precision": "64-true"})
    assert np.isfinite(result.loss)
    assert {p.dtype for p in model.parameters()} == {torch.float64}


def test_curvature_of_ragged_sequences_is_the_same_padded_and_packed(monkeypatch):
    options = QUICK | {"optimizer": "hessian-free", "structural": 0.1, "precision": "64-true", "steps": 3}

    def losses():
        model = SequenceModel(create("rnn", 2, 6, dtype=torch.float64), 1, generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            model.layer.weight_ih_l0.copy_(torch.linspace(-1, 1, 12).view(6, 2))
            model.layer.weight_hh_l0.copy_(0.9 * torch.eye(6).roll(1, 0))
        return fit(model, Adding(length=12, variant="galvan"), **options).history["loss"]

    padded = losses()
    monkeypatch.setattr(evaluation, "runs_padded", lambda model: False)
    # Products agree to rounding (test_gauss_newton), of which conjugate gradients make a ten-thousandth in three steps.
    np.testing.assert_allclose(losses(), padded, rtol=1e-3)


def test_running_text_needs_a_gradient_method(small_data):
    task = make("ptb-words", data=str(small_data), length=5, embedding=3)
    sentence = r"^optimizer hessian-free starts every batch anew, and task ptb-words reads on$"
    with pytest.raises(ValueError, match=sentence):
        fit(model_for(task), task, **QUICK | {"optimizer": "hessian-free"})


def test_curvature_may_see_fewer_sequences():
    """With words as input and an answer at every step the first sequences are cut along the right dimension."""
    for task in (RecallFirst(length=4), make("copy", length=3)):
        result = fit(model_for(task), task, **QUICK | {"optimizer": "hessian-free", "curvature_size": 2, "steps": 2})
        assert result.loss > 0


def test_the_run_folder_names_the_method(tmp_path):
    fit(model_for(), TASK, folder=tmp_path / "run", **QUICK | {"penalty": "stabilizer(2)"})
    assert Run(tmp_path / "run").config["training"]["penalty"] == "stabilizer(2)"


@pytest.mark.parametrize("recorded", [False, True])
def test_rounding_of_bases_is_taken_back_in_time(recorded, monkeypatch):
    """By the steps themselves, or between them where they are recorded: there they know no count."""
    monkeypatch.setattr(GradientMethod, "capturable", recorded)
    monkeypatch.setattr(GradientMethod, "set_lr", lambda self, lr_factor: None)
    monkeypatch.setattr(GradientMethod, "captures", lambda self, batch: False)
    seen, polish = [], stiefel.polish
    monkeypatch.setattr(stiefel, "polish", lambda M: seen.append(len(M)) or polish(M))
    model = model_for(system="factorized")
    fit(model, TASK, **(QUICK | {"steps": 70, "optimizer": "rmsprop", "bases_lr": 1e-3}))
    assert seen == [2, 2]  # both bases, after 32 and 64 updates
    bases = [p for p, _, stays in mapped(model) if stays]
    assert len(bases) == 2
    assert all(residual(p.detach()) < ORTHONORMAL for p in bases)
