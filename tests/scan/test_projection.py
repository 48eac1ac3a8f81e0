"""The input's product, of one model and of several, and products with a long inner side."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from evenflow.cells import Elman
from evenflow.scan import projection as room
from evenflow.scan import weight_gradient
from evenflow.scan.projection import project, projection
from evenflow.scan.weight_gradient import summed


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def inputs(models: int, width: int, biased: bool) -> tuple[Tensor | None, ...]:
    bias = normal(models, 4, seed=2).requires_grad_() if biased else None
    return normal(models, 6, width).requires_grad_(), normal(models, 4, width, seed=1).requires_grad_(), bias


@pytest.fixture(params=["compiled", "torch, thin", "torch, wide"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiled product, or those of torch that a GPU uses."""
    if request.param != "compiled":
        monkeypatch.setattr(room.cpu, "accepts", lambda *tensors: False)
        monkeypatch.setattr(room, "THIN", 64 if "thin" in request.param else 0)


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("biased", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize("models", [1, 3])
def test_equals_the_equation(models: int, biased: bool) -> None:
    x, weight, bias = inputs(models, 2, biased)
    given = [v for v in (x, weight, bias) if v is not None]

    def product(*v: Tensor) -> Tensor:
        return projection(*v, *[None] * (3 - len(v)))

    assert torch.autograd.gradcheck(product, given)
    assert torch.autograd.gradgradcheck(product, given)
    assert x is not None
    assert weight is not None
    expected = torch.stack([a @ w.mT for a, w in zip(x, weight, strict=True)])
    expected = expected if bias is None else expected + bias[:, None]
    torch.testing.assert_close(projection(x, weight, bias), expected)


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("rows", [1, 7, 300])
@pytest.mark.parametrize("width", [1, 2, 33, 128])
def test_one_model_is_torchs_linear(rows: int, width: int) -> None:
    given = [v.requires_grad_() for v in (normal(rows, 2, width), normal(40, width, seed=1), normal(40, seed=2))]
    twins = [v.detach().clone().requires_grad_() for v in given]
    weights = dict(zip(("weight_ih", "bias"), given[1:], strict=True))
    project(Elman(), given[0], weights).sin().sum().backward()
    torch.nn.functional.linear(*twins).sin().sum().backward()
    for one, other in zip(given, twins, strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_no_gradient_by_the_input_unless_it_is_wanted() -> None:
    x, weight, bias = inputs(1, 2, True)
    assert x is not None
    projection(x.detach(), weight, bias).sum().backward()
    assert x.grad is None


@pytest.mark.parametrize("biased", [False, True], ids=["plain", "bias"])
def test_manners(biased: bool) -> None:
    torch.library.opcheck(torch.ops.evenflow.projection.default, inputs(2, 3, biased))


def test_many_models_by_vmap_are_one_call(operators: Callable[[Callable[[], object]], list[str]]) -> None:
    x, weight, bias = inputs(3, 2, True)
    assert x is not None
    assert weight is not None
    assert bias is not None
    every = torch.vmap(lambda *v: projection(*(each.unsqueeze(0) for each in v))[0])
    torch.testing.assert_close(every(x, weight, bias), projection(x, weight, bias))
    assert len(operators(lambda: every(x, weight, bias))) == 1


@pytest.mark.parametrize("rows", [0, 1, 5, 12, 17])
@pytest.mark.parametrize("models", [1, 2, 5])
def test_a_long_sum_in_parts(models: int, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_gradient, "PARTS", 8)
    monkeypatch.setattr(weight_gradient, "LEAST_ROWS", 3)
    left, right = normal(models, rows, 4), normal(models, rows, 3, seed=1)
    torch.testing.assert_close(summed(left, right), torch.einsum("mnl,mnr->mlr", left, right))
