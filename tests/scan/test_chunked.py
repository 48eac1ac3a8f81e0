"""A linear recurrence in pieces gives what the loop gives, and stands aside where it would not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from evenflow.cells import Elman
from evenflow.scan import chunked, scan

# Sums over 700 steps, taken in another order.
DOUBLE = 1e-11
# What the design promises in single precision; in pieces it holds at ten times the length.
SINGLE = 1e-5


@pytest.fixture
def pieces(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each call went through in pieces."""
    calls: list[bool] = []
    plain = chunked.scan

    def noted(*values: Any) -> Tensor | None:
        result = plain(*values)
        calls.append(result is not None)
        return result

    monkeypatch.setattr(chunked, "scan", noted)
    return calls


def problem(steps: int, batch: int, hidden: int, radius: float = 1.0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(steps)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    weight = radius * torch.linalg.qr(draw(hidden, hidden)).Q
    return {"a": draw(steps, batch, hidden), "h0": draw(batch, hidden), "weight_hh": weight}


def run(given: dict[str, Tensor], engine: str, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    tensors = {name: value.to(dtype).detach().clone().requires_grad_() for name, value in given.items()}
    tap = torch.zeros_like(tensors["a"]).requires_grad_()
    (states,) = scan(Elman("identity"), tensors["a"], (tensors["h0"],), tensors, None, tap, engine)
    weights = torch.randn(states.shape, generator=torch.Generator().manual_seed(0))
    (states * weights.to(states)).sum().backward()
    gradients: dict[str, Any] = {name: value.grad for name, value in (tensors | {"tap": tap}).items()}
    return {"states": states.detach()} | gradients


def assert_close(found: dict[str, Tensor], wanted: dict[str, Tensor], bound: float) -> None:
    for name, value in wanted.items():
        error = (found[name].double() - value).norm() / value.norm().clamp(min=1e-30)
        assert error <= bound, f"{name} is off by {error:.1e}"


@pytest.mark.parametrize(
    ("steps", "batch", "hidden"), [(512, 1, 1), (529, 2, 5), (700, 3, 16), (601, 1, 33)], ids=lambda n: str(n)
)
@pytest.mark.parametrize("radius", [0.0, 0.5, 1.0])
def test_agrees_with_the_loop(steps: int, batch: int, hidden: int, radius: float, pieces: list[bool]) -> None:
    given = problem(steps, batch, hidden, radius)
    assert_close(run(given, "torch"), run(given, "reference"), DOUBLE)
    assert pieces == [True, True]


def test_single_precision_over_ten_thousand_orthogonal_steps(pieces: list[bool]) -> None:
    given = {name: value.float().double() for name, value in problem(10_000, 2, 16).items()}
    assert_close(run(given, "torch", torch.float32), run(given, "auto"), SINGLE)
    assert pieces == [True, True]


def test_models_are_independent() -> None:
    members = [problem(600, 2, 6, radius) for radius in (0.5, 0.9, 1.0)]
    a, h0, weight = (torch.stack([m[name] for m in members]) for name in ("a", "h0", "weight_hh"))
    together = chunked.scan(a, weight, h0)
    assert together is not None
    for m in range(3):
        alone = chunked.scan(a[m : m + 1], weight[m : m + 1], h0[m : m + 1])
        assert alone is not None
        torch.testing.assert_close(together[m], alone[0], rtol=DOUBLE, atol=DOUBLE)


@pytest.mark.parametrize("radius", [1.2, 1e20])
def test_growing_powers_are_left_to_the_loop(radius: float, pieces: list[bool]) -> None:
    """A state that is zero stays so, where an overflowing power would make it NaN."""
    given = problem(600, 2, 6, radius)
    given["a"][:] = 0
    given["h0"][:] = 0
    found = run(given, "torch")
    assert pieces == [False, False]
    assert not found["states"].any()


def test_nan_propagates(pieces: list[bool]) -> None:
    given = problem(600, 2, 6)
    given["a"][300, 1] = float("nan")
    states = run(given, "torch")["states"]
    assert pieces[0]
    assert states[300:, 1].isnan().all()
    assert not states[:300].isnan().any()
    assert not states[:, 0].isnan().any()


def test_when_it_pays() -> None:
    assert chunked.pays(torch.empty(1, 10_000, 2, 128))
    assert not chunked.pays(torch.empty(1, 10_000, 20, 128)), "the loop is faster on a CPU"
    assert not chunked.pays(torch.empty(1, 100, 1, 128)), "too short"
    assert not chunked.pays(torch.empty(1, 10_000, 0, 128)), "nothing to do"
    assert not chunked.pays(torch.empty(1, 10_000, 1, 16, dtype=torch.bfloat16))
    assert chunked.pays(torch.empty(1, 10_000, 20, 128, device="meta")), "another device"


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("pieces", [1, 3, 7, 60])
def test_any_number_of_pieces_and_any_loop(pieces: int, batch: int) -> None:
    """On a GPU the pieces are few and the loop is a kernel, which takes contiguous tensors."""
    given = problem(61, batch, 5)
    a, weight, h0 = (given[name].unsqueeze(0).contiguous() for name in ("a", "weight_hh", "h0"))
    calls = []

    def loop(a: Tensor, weight: Tensor, h: Tensor) -> Tensor:
        assert all(value.is_contiguous() for value in (a, weight, h))
        calls.append(a.shape)
        return torch.stack([h := row + h @ weight.mT for row in a.unbind(1)], 1)

    found = chunked.scan(a, weight, h0, pieces, loop)
    assert found is not None
    assert calls[0] == (1, 61 // pieces, 61 // (61 // pieces) * batch, 5)
    torch.testing.assert_close(found, loop(a, weight, h0), atol=1e-11, rtol=1e-11)
