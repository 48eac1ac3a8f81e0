"""Steps of narrow matrices captured as CUDA graphs do what the same steps do kernel by kernel."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from evenflow import init
from evenflow.maps import residual
from evenflow.optim import GeodesicAdam, GeodesicSGD, step_graphs

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

METHODS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "plain": lambda params: GeodesicSGD(params, lr=0.05),
    "momentum": lambda params: GeodesicSGD(params, lr=0.05, momentum=0.9),
    "adam": lambda params: GeodesicAdam(params, lr=0.01),
}


def parameters(count: int, dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    source = torch.Generator().manual_seed(3)
    return [nn.Parameter(init.orthogonal(70, 9, generator=source).to("cuda", dtype)) for _ in range(count)]


def walk(optimizer: torch.optim.Optimizer, moving: list[nn.Parameter], steps: range) -> None:
    for step in steps:
        source = torch.Generator("cuda").manual_seed(step)
        for p in moving:
            p.grad = torch.randn(p.shape, generator=source, device="cuda", dtype=p.dtype)
        optimizer.param_groups[0]["lr"] = 0.05 / (1 + step)
        optimizer.step()


def captured(optimizer: Any) -> int:
    return len(optimizer._graphs.cache.captured)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64], ids=str)
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("method", METHODS)
def test_a_captured_step_is_the_step(
    method: str, count: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, plain = parameters(count, dtype), parameters(count, dtype)
    optimizer = METHODS[method](ours)
    walk(optimizer, ours, range(40))
    assert captured(optimizer) == 1
    monkeypatch.setattr(step_graphs, "LIMIT", 0)
    other = METHODS[method](plain)
    walk(other, plain, range(40))
    assert captured(other) == 0
    tight = 1e-12 if dtype == torch.float64 else 1e-6
    for a, b in zip(ours, plain, strict=True):
        torch.testing.assert_close(a.detach(), b.detach(), atol=tight, rtol=0)
        assert float(residual(a.detach())) < 10 * tight
        for name, value in other.state[b].items():
            torch.testing.assert_close(optimizer.state[a][name], value, atol=10 * tight, rtol=10 * tight)


@pytest.mark.parametrize("method", METHODS)
def test_a_state_loaded_later_is_the_one_that_moves(method: str) -> None:
    straight, resumed = parameters(1), parameters(1)
    first = METHODS[method](straight)
    walk(first, straight, range(10))
    kept, where = copy.deepcopy(first.state_dict()), straight[0].detach().clone()
    walk(first, straight, range(10, 20))
    second = METHODS[method](resumed)
    walk(second, resumed, range(7))
    with torch.no_grad():
        resumed[0].copy_(where)
    second.load_state_dict(kept)
    walk(second, resumed, range(10, 20))
    assert captured(second) == 1
    torch.testing.assert_close(resumed[0].detach(), straight[0].detach(), atol=1e-6, rtol=0)


def test_other_settings_are_another_capture() -> None:
    moving = parameters(1)
    optimizer = GeodesicSGD(moving, lr=0.05, momentum=0.9)
    walk(optimizer, moving, range(6))
    optimizer.param_groups[0]["momentum"] = 0.5
    walk(optimizer, moving, range(6, 12))
    assert captured(optimizer) == 2


def test_square_matrices_are_not_captured() -> None:
    moving = [nn.Parameter(init.orthogonal(16).cuda())]
    optimizer = GeodesicSGD(moving, lr=0.05, momentum=0.9)
    walk(optimizer, moving, range(6))
    assert len(optimizer._graphs.cache) == 0
