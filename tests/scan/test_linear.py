"""Steps that are linear in their states run in pieces, and give what the loop gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import evenflow
from evenflow.cells import Cell
from evenflow.scan import linear, scan
from evenflow.scan.compiled_step import CompiledStep, compiled_step

# Sums over 700 steps, taken in another order.
DOUBLE = 1e-11
SINGLE = 1e-5


@evenflow.cell(matrices=(), parameters=("p",))
def constant(a, h, p):
    return torch.tanh(p) * h + a


@evenflow.cell(matrices=(), parameters=("p",), blocks=2)
def by_input(a, h, p):
    z, n = a.chunk(2, -1)
    return h + torch.sigmoid(z + p) * (n - h)


@evenflow.cell(matrices=(), parameters=("p",))
def rotations(a, h, p):
    (x, y), (u, v), (r, q) = h.chunk(2, -1), a.chunk(2, -1), p.chunk(2, -1)
    c, s = r.sigmoid() * q.cos(), r.sigmoid() * q.sin()
    return torch.cat([c * x - s * y + u, s * x + c * y + v], -1)


@evenflow.cell(states=("y", "z"), matrices=(), parameters=("p",), blocks=2)
def oscillators(a, y, z, p):
    u, d = a.chunk(2, -1)
    d = d.sigmoid()
    z = z + d * (u - p.exp() * y - z)
    return y + d * z, z


@evenflow.cell(states=("h", "unread"), matrices=(), parameters=("p",))
def without_memory(a, h, unread, p):
    return a * p - h / (2 + p.square()), torch.relu(a)


CELLS: dict[str, Cell] = {
    maker.__name__: maker() for maker in (constant, by_input, rotations, oscillators, without_memory)
}


@pytest.fixture
def pieces(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each whole sequence went through in pieces."""
    calls: list[bool] = []
    plain, depth = linear.scan, [0]

    def noted(*values: Any) -> bool:
        depth[0] += 1
        result = plain(*values)
        depth[0] -= 1
        if not depth[0]:
            calls.append(result)
        return result

    monkeypatch.setattr(linear, "scan", noted)
    return calls


def problem(cell: Cell, steps: int, batch: int, hidden: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(steps + hidden)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    states = {f"{name}0": draw(batch, hidden) for name in cell.states}
    return {"a": draw(steps, batch, cell.blocks * hidden), "p": draw(hidden)} | states


def run(
    cell: Cell,
    given: dict[str, Tensor],
    engine: str,
    sizes: list[int] | None = None,
    resets: Tensor | None = None,
    dtype: torch.dtype = torch.float64,
) -> dict[str, Tensor]:
    """All states, and the gradients by everything."""
    tensors = {name: value.to(dtype).detach().clone().requires_grad_() for name, value in given.items()}
    first = tuple(tensors[f"{name}0"] for name in cell.states)
    tap = torch.zeros(*tensors["a"].shape[:2], first[0].shape[-1], dtype=dtype, requires_grad=True)
    states = scan(cell, tensors["a"], first, tensors, sizes, tap, engine, resets=resets)
    generator = torch.Generator().manual_seed(0)
    sum((s * torch.randn(s.shape, generator=generator).to(s)).sum() for s in states).backward()  # type: ignore[union-attr]
    inputs = tensors | {"tap": tap}
    gradients = {name: torch.zeros_like(v) if v.grad is None else v.grad for name, v in inputs.items()}
    return {f"state {i}": s.detach() for i, s in enumerate(states)} | gradients


def assert_close(found: dict[str, Tensor], wanted: dict[str, Tensor], bound: float) -> None:
    for name, value in wanted.items():
        error = (found[name].double() - value).norm() / value.norm().clamp(min=1e-30)
        assert error <= bound, f"{name} is off by {error:.1e}"


@pytest.mark.parametrize("shape", [(65, 1, 2), (700, 3, 6), (1025, 2, 4)], ids=lambda s: "T{}-B{}-H{}".format(*s))
@pytest.mark.parametrize("name", CELLS)
def test_agrees_with_the_loop(name: str, shape: tuple[int, int, int], pieces: list[bool]) -> None:
    cell, given = CELLS[name], problem(CELLS[name], *shape)
    assert_close(run(cell, given, "torch"), run(cell, given, "reference"), DOUBLE)
    assert pieces == [True, True]


@pytest.mark.parametrize("name", CELLS)
def test_agrees_on_ragged_lengths_with_resets(name: str, pieces: list[bool]) -> None:
    cell, given = CELLS[name], problem(CELLS[name], 150, 4, 6)
    sizes = [4] * 20 + [3] * 70 + [1] * 60
    resets = torch.rand(150, 4, generator=torch.Generator().manual_seed(0)) < 0.03
    assert_close(run(cell, given, "torch", sizes, resets), run(cell, given, "reference", sizes, resets), DOUBLE)
    assert pieces == [True, True]


@pytest.mark.parametrize("name", CELLS)
def test_single_precision_over_ten_thousand_steps(name: str, pieces: list[bool]) -> None:
    cell = CELLS[name]
    given = {name: v.float().double() for name, v in problem(cell, 10_000, 1, 4).items()}
    assert_close(run(cell, given, "torch", dtype=torch.float32), run(cell, given, "auto"), SINGLE)
    assert pieces == [True, True]


def test_restarts_from_learned_states() -> None:
    """A restart from learned states is a part of b."""
    layer = evenflow.Recurrent(by_input(), 2, 4, engine="torch", initial_state="learned", dtype=torch.float64)
    twin = evenflow.Recurrent(by_input(), 2, 4, engine="reference", initial_state="learned", dtype=torch.float64)
    twin.load_state_dict(layer.state_dict() | {"h0_l0": torch.ones(4)})
    layer.load_state_dict(twin.state_dict())
    x, resets = torch.randn(100, 3, 2, dtype=torch.float64), torch.rand(100, 3) < 0.1
    found, wanted = (each(x, resets=resets)[0] for each in (layer, twin))
    torch.testing.assert_close(found, wanted)


def test_numbers_that_overflow_are_left_to_the_loop(pieces: list[bool]) -> None:
    """Zeros stay zeros, where an overflowing product of coefficients would make them NaN."""
    growing = evenflow.cell(matrices=(), parameters=("p",))(lambda a, h, p: p * h + a)
    given = {"a": torch.zeros(700, 1, 2), "h0": torch.zeros(1, 2), "p": torch.full((2,), 1e30)}
    found = run(growing(), given, "torch")
    assert pieces == [False, False]
    assert not found["state 0"].any()


def test_nan_ends_at_a_restart(pieces: list[bool]) -> None:
    given = problem(CELLS["by_input"], 200, 2, 4)
    given["a"][100, 1] = float("nan")
    resets = torch.zeros(200, 2, dtype=torch.bool)
    resets[150] = True
    state = run(CELLS["by_input"], given, "torch", resets=resets)["state 0"]
    assert pieces[0] is False
    assert state[100:150, 1].isnan().all()
    assert not state[150:].isnan().any()
    assert not state[:, 0].isnan().any()


def steps_of(cell: Cell, hidden: int = 4) -> CompiledStep:
    text = cell.program(cell.blocks * hidden, [hidden] * len(cell.states), problem(cell, 1, 1, hidden))
    return compiled_step(str(text))


@pytest.mark.parametrize("name", CELLS)
def test_linear_steps_are_found(name: str) -> None:
    step = steps_of(CELLS[name])
    assert step.linear_forward is not None
    assert step.linear_backward is not None


@pytest.mark.parametrize(
    "step",
    [
        lambda a, h, p: torch.tanh(p * h + a),
        lambda a, h, p: h * h + p * a,
        lambda a, h, p: p * a / (1 + h),
        lambda a, h, p: torch.where(h > 0, a, p * h),
        lambda a, h, p: a + p * h.mean(-1, keepdim=True),
        lambda a, h, p: a + p * torch.cat([h[:, 1:], h[:, :1]], -1),
        lambda a, h, p: a + p * h.detach(),
    ],
    ids=["tanh", "square", "divisor", "condition", "mean", "neighbour", "detached"],
)
def test_other_steps_are_not(step: Callable[..., Tensor]) -> None:
    assert steps_of(evenflow.cell(matrices=(), parameters=("p",))(step)(), 8).linear_forward is None
