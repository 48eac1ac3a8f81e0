from __future__ import annotations

import pytest
import torch
from torch import nn

from evenflow import SequenceModel, create
from evenflow.lab.training.optimizers import clip, clip_groups, gradient_norm

# The clipped norm is norm * c / (norm + 1e-6), a float32 product.
ROUNDING = 1e-5


@pytest.fixture
def model():
    model = SequenceModel(create("urnn", 2, 6), 1)
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.grad = 3 * torch.randn(parameter.shape, generator=generator)
    return model


def grads(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters()}


def norm_of(tensors) -> float:
    return torch.cat([t.flatten() for t in tensors]).norm().item()


def test_norm_is_that_of_one_long_vector(model):
    assert gradient_norm(model.parameters()).item() == pytest.approx(norm_of(grads(model).values()), rel=ROUNDING)


def test_scopes(model):
    recurrent = clip_groups(model, "recurrent")[0]
    assert [p for n, p in model.named_parameters() if "weight_hh" in n] == recurrent
    assert 0 < len(recurrent) < len(clip_groups(model, "all")[0]) == len(list(model.parameters()))


def test_frozen_parameters_are_left_out(model):
    model.output.bias.requires_grad_(False)
    assert all(p is not model.output.bias for p in clip_groups(model, "all")[0])


def test_by_norm(model):
    before = grads(model)
    clip(clip_groups(model, "all")[0], 1.0, None, gradient_norm(model.parameters()))
    assert norm_of(grads(model).values()) == pytest.approx(1, rel=ROUNDING)
    scale = 1 / norm_of(before.values())
    for name, grad in grads(model).items():
        torch.testing.assert_close(grad, before[name] * scale)


def test_a_short_gradient_is_left_bit_for_bit(model):
    before = grads(model)
    clip(clip_groups(model, "all")[0], 1e6, 1e6)
    assert all(torch.equal(grad, before[name]) for name, grad in grads(model).items())


def test_by_value(model):
    before = grads(model)
    clip(clip_groups(model, "all")[0], None, 0.25)
    assert all(torch.equal(grad, before[name].clamp(-0.25, 0.25)) for name, grad in grads(model).items())


@pytest.mark.parametrize(("norm", "value"), [(1.0, None), (None, 0.25)], ids=["by norm", "by value"])
def test_recurrent_scope_leaves_the_rest(model, norm, value):
    before = grads(model)
    clip(clip_groups(model, "recurrent")[0], norm, value)
    for name, grad in grads(model).items():
        assert torch.equal(grad, before[name]) == ("weight_hh" not in name)
    clipped = [grad for name, grad in grads(model).items() if "weight_hh" in name]
    if norm:
        assert norm_of(clipped) == pytest.approx(norm, rel=ROUNDING)
    else:
        assert max(g.abs().max() for g in clipped) == value


def test_value_comes_before_norm(model):
    before = grads(model)
    clip(clip_groups(model, "all")[0], 0.5, 0.25, gradient_norm(model.parameters()))
    after_value = {name: grad.clamp(-0.25, 0.25) for name, grad in before.items()}
    scale = 0.5 / norm_of(after_value.values())
    for name, grad in grads(model).items():
        torch.testing.assert_close(grad, after_value[name] * scale)


def test_each_tensor_by_itself(model):
    groups = clip_groups(model, "each")
    assert [len(group) for group in groups] == [1] * len(list(model.parameters()))
    before = [p.grad.clone() for p in model.parameters()]
    for group in groups:
        clip(group, 0.1, None)
    for p, g in zip(model.parameters(), before, strict=True):
        torch.testing.assert_close(p.grad, g * min(1.0, 0.1 / g.norm().item()), rtol=1e-5, atol=1e-7)
