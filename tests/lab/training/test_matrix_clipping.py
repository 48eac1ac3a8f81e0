"""clip_scope "mapped": the gradient by W itself is clipped, and of a GRU the candidate's alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from evenflow import RNN, SequenceModel, create
from evenflow.lab.tasks import make
from evenflow.lab.training import Settings, fit
from evenflow.lab.training.matrix_clipping import clipped_matrices
from evenflow.lab.training.optimizers import clip, clip_groups

VALUE = 1e-3  # below the largest entry of every gradient here
LR = 0.1
SAME = {"rtol": 1e-4, "atol": 1e-7}  # float32, through a matrix exponential
TASK = make("recall-first", length=6, symbols=3, embedding=4)


def model_of(system: str, **options: object) -> SequenceModel:
    torch.manual_seed(0)
    layer = create(system, TASK.input_size, 6, **options)
    return SequenceModel(layer, TASK.output_size, vocabulary=TASK.vocabulary)


def gradients(model: nn.Module, value: float | None = None, norm: float | None = None) -> dict[str, torch.Tensor]:
    """The gradients of a batch, with those by W clipped."""
    batch = TASK.batch(20, torch.Generator().manual_seed(1))
    model.zero_grad()
    with clipped_matrices(model, norm, value):
        TASK.loss(model(batch.inputs)[0], batch.targets).backward()
    for group in clip_groups(model, "mapped"):
        clip(group, norm, value)
    return {name: p.grad.clone() for name, p in model.named_parameters()}


def by_matrix(model: SequenceModel, name: str) -> torch.Tensor:
    """∂L/∂W where W is a plain parameter of the same value, in a copy of the model."""
    free = model_of("gru" if name == "weight_hh_n_l0" else "rnn", **ACTIVATION[name])
    with torch.no_grad():
        for key, p in free.named_parameters():
            p.copy_(getattr(model.layer, name) if key == f"layer.{name}" else dict(model.named_parameters())[key])
    batch = TASK.batch(20, torch.Generator().manual_seed(1))
    TASK.loss(free(batch.inputs)[0], batch.targets).backward()
    return getattr(free.layer, name).grad


ACTIVATION = {"weight_hh_l0": {"activation": "relu"}, "weight_hh_n_l0": {}}


@pytest.mark.parametrize(
    ("system", "options", "name"),
    [("urnn", {"activation": "relu"}, "weight_hh_l0"), ("ugru", {}, "weight_hh_n_l0")],
    ids=["urnn", "ugru"],
)
def test_the_gradient_by_the_matrix_is_clipped_before_that_of_the_map(system, options, name):
    model = model_of(system, gradient="plumbley", init="identity", **options)
    plain, clipped = gradients(model, 1e9), gradients(model, VALUE)
    G, W = by_matrix(model, name), getattr(model.layer, name).detach()
    assert G.abs().max() > VALUE
    raw = f"layer.parametrizations.{name}.original"
    for limit, found in ((1e9, plain), (VALUE, clipped)):
        cut = G.clamp(-limit, limit)
        full = cut @ W.mT - W @ cut.mT  # the document's gradient of B; its numbers are those below the diagonal
        below = full[torch.tril_indices(6, 6, -1).unbind()]
        torch.testing.assert_close(found[raw].abs().sort().values, below.abs().sort().values, **SAME)
    assert not torch.allclose(plain[raw], clipped[raw], rtol=0.01)
    for key in plain.keys() - {raw}:
        assert torch.equal(plain[key], clipped[key]), f"{key} is not the matrix"
    if system == "ugru":
        assert plain["layer.weight_hh_l0"].abs().max() > VALUE, "the gates' gradients would be clipped too"


@pytest.mark.parametrize(("system", "name"), [("rnn", "weight_hh_l0"), ("gru", "weight_hh_n_l0")])
def test_a_free_matrix_is_clipped_as_it_is(system, name):
    model = model_of(system)
    plain, clipped = gradients(model, 1e9), gradients(model, VALUE)
    for key, gradient in plain.items():
        expected = gradient.clamp(-VALUE, VALUE) if key == f"layer.{name}" else gradient
        assert torch.equal(clipped[key], expected)


def test_by_norm_each_matrix_on_its_own():
    model = model_of("urnn", init="identity", activation="relu")
    short = gradients(model, norm=1e-4)["layer.parametrizations.weight_hh_l0.original"]
    shorter = gradients(model, norm=1e-5)["layer.parametrizations.weight_hh_l0.original"]
    torch.testing.assert_close(short, 10 * shorter, rtol=1e-3, atol=0)


def test_fit_clips_and_leaves_no_hook():
    model, same = (model_of("urnn", gradient="plumbley", init="identity", activation="relu") for _ in range(2))
    options = {"optimizer": "sgd", "lr": LR, "steps": 1, "batch_size": 20, "validation_batches": 1, "progress": False}
    fit(model, TASK, clip_value=1e-4, clip_scope="mapped", **options)
    fit(same, TASK, **options)
    assert not any(module._forward_hooks for module in model.modules())
    moved = {
        name: (p - q).abs().max() for (name, p), q in zip(model.named_parameters(), same.parameters(), strict=True)
    }
    raw = "layer.parametrizations.weight_hh_l0.original"
    assert moved.pop(raw) > 1e-4
    assert max(moved.values()) == 0


@pytest.mark.parametrize("layer", [create("lstm", 2, 6), nn.RNN(2, 6), RNN(2, 6).requires_grad_(False)])
def test_a_layer_without_such_a_matrix_is_refused(layer):
    with pytest.raises(ValueError, match=r"^clip_scope 'mapped' needs a layer with a trained recurrent matrix"):
        clip_groups(SequenceModel(layer, 1), "mapped")


def test_the_gradient_of_one_batch_alone_can_be_clipped():
    settings = Settings(clip_value=0.25, clip_scope="mapped", accumulate=2)
    sentence = "clip_scope mapped clips the gradient of one batch, so {} must be 1, got 2"
    with pytest.raises(ValueError) as refused:
        settings.for_task(TASK)
    assert str(refused.value) == sentence.format("accumulate")
    with pytest.raises(ValueError) as refused:
        Settings(clip_value=0.25, clip_scope="mapped").for_task(TASK, processes=2)
    assert str(refused.value) == sentence.format("processes")
