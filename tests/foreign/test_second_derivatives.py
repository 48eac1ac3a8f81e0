"""Second derivatives as meta-learning and curvature methods take them, of every system."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import nn
from torch.autograd.functional import hessian, hvp, vhp
from torch.func import functional_call

import evenflow
from evenflow.systems import NETWORKS, SYSTEMS

I, H = 2, 4
EXACT = 1e-8  # float64: the roundings of a few hundred operations
TRAINED = [name for name in SYSTEMS if name != "esn"]
# By its definition this layer does not carry its gradient back through h, which finite differences do not know.
DIFFERENTIABLE = [name for name in TRAINED if name != "lstm-1997"]


def module(name: str) -> nn.Module:
    torch.manual_seed(0)
    if name in NETWORKS:
        return NETWORKS[name].network(I, 2, width=H, depth=2, dtype=torch.float64)
    return evenflow.create(name, I, H, dtype=torch.float64)


def batch(name: str) -> torch.Tensor:
    shape = (3, I) if name in NETWORKS else (3, 2, I)
    return torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def outputs(result: object) -> tuple[torch.Tensor, ...]:
    """All tensors of a result: outputs and states."""
    if isinstance(result, torch.Tensor):
        return (result,)
    return tuple(tensor for part in result for tensor in outputs(part))  # type: ignore[attr-defined]


def loss(result: object) -> torch.Tensor:
    return outputs(result)[0].square().mean()


@pytest.mark.parametrize("name", [*DIFFERENTIABLE, *NETWORKS])
def test_the_gradient_of_the_gradient(name):
    layer, names = module(name), [key for key, _ in module(name).named_parameters()]

    def run(x: torch.Tensor, *weights: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return outputs(functional_call(layer, dict(zip(names, weights, strict=True)), (x,)))

    values = [value.detach().clone().requires_grad_() for value in (batch(name), *layer.parameters())]
    assert torch.autograd.gradgradcheck(run, values, fast_mode=True)


@pytest.mark.parametrize("name", [*DIFFERENTIABLE, "esn", *NETWORKS])
def test_products_with_the_hessian(name):
    layer, x = module(name), batch(name)
    along = torch.randn(x.shape, generator=torch.Generator().manual_seed(2), dtype=x.dtype)
    whole = hessian(lambda x: loss(layer(x)), x).reshape(x.numel(), -1)
    for product in (hvp, vhp):
        found = product(lambda x: loss(layer(x)), x, along)[1]
        assert torch.allclose(found.flatten(), whole @ along.flatten(), atol=EXACT)
    assert whole.abs().max() > 0


@pytest.mark.parametrize("name", [*DIFFERENTIABLE, *NETWORKS])
def test_the_gradient_through_an_update(name):
    """MAML: the loss after a step of gradient descent, as a function of the weights before it."""
    layer, x = module(name), batch(name)
    names = [key for key, _ in layer.named_parameters()]

    def after_one_step(*weights: torch.Tensor) -> torch.Tensor:
        before = loss(functional_call(layer, dict(zip(names, weights, strict=True)), (x,)))
        slopes = torch.autograd.grad(before, weights, create_graph=True, allow_unused=True)
        moved = [w if slope is None else w - 0.1 * slope for w, slope in zip(weights, slopes, strict=True)]
        return loss(functional_call(layer, dict(zip(names, moved, strict=True)), (x.flip(0),)))

    weights: Sequence[torch.Tensor] = [p.detach().clone().requires_grad_() for p in layer.parameters()]
    assert torch.autograd.gradcheck(after_one_step, weights, fast_mode=True)
