"""The fused scans give what the reference loop gives: every state, and every gradient."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from evenflow.activations import ACTIVATIONS
from evenflow.cells import LSTM, Cell, Elman, ScalarGated
from evenflow.scan import scan
from evenflow.scan.elman import elman
from evenflow.scan.lstm import lstm

# Sums of at most 128 terms over 17 steps, taken in another order: a few hundred roundings of 1e-16.
DOUBLE = 1e-12
# What the design promises in single precision at T = 1,000, against a reference in double.
SINGLE = 1e-5

CELLS: dict[str, Cell] = {f"elman-{name}": Elman(name) for name in ACTIVATIONS}
CELLS |= {f"gated-{name}": ScalarGated(name, alpha=0.3, beta=0.6) for name in ACTIVATIONS}
CELLS["lstm"] = LSTM()
SHAPES = [(1, 1, 1), (2, 3, 2), (17, 3, 7), (17, 50, 16), (2, 50, 33), (17, 1, 33), (17, 3, 128), (1, 50, 128)]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """The torch loops here are a thousand tiny steps, which only wait for each other in several threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def problem(cell: Cell, steps: int, batch: int, hidden: int) -> dict[str, Tensor]:
    """Every tensor a scan differentiates by, in double precision."""
    generator = torch.Generator().manual_seed(steps + 100 * batch + 10_000 * hidden)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    blocks = [torch.linalg.qr(normal(hidden, hidden)).Q for _ in range(cell.blocks)]
    tensors = {"a": normal(steps, batch, cell.blocks * hidden), "weight_hh": torch.cat(blocks)}
    tensors |= {name: normal(batch, hidden) for name in ("h0", "c0")[: cell.state_size]}
    tensors |= {name: value.double() for name, value in cell.extra(hidden, generator).items()}
    if "activation" in tensors and tensors["activation"].numel() == hidden > 1:
        tensors["activation"] = 0.3 * normal(hidden)  # modrelu's own start is too near zero to matter
    return tensors


def run(
    cell: Cell,
    tensors: dict[str, Tensor],
    engine: str,
    batch_sizes: list[int] | None = None,
    dtype: torch.dtype | None = None,
) -> dict[str, Tensor]:
    """States, and the gradients of a sum that weighs every state of every step differently."""
    inputs = {name: value.to(dtype).detach().clone().requires_grad_() for name, value in tensors.items()}
    steps, batch = inputs["a"].shape[:2]
    inputs["tap"] = torch.zeros(steps, batch, inputs["h0"].shape[1], dtype=inputs["a"].dtype, requires_grad=True)
    state = tuple(inputs[name] for name in ("h0", "c0") if name in inputs)
    states = scan(cell, inputs["a"], state, inputs, batch_sizes, inputs["tap"], engine)
    generator = torch.Generator().manual_seed(0)
    weighed = [(s * torch.randn(s.shape, generator=generator).to(s)).sum() for s in states]
    torch.stack(weighed).sum().backward()
    gradients = {f"gradient by {name}": value.grad for name, value in inputs.items()}
    return {f"state {i}": s.detach() for i, s in enumerate(states)} | gradients  # type: ignore[return-value]


def assert_close(found: dict[str, Tensor], wanted: dict[str, Tensor], bound: float) -> None:
    for name, value in wanted.items():
        error = (found[name].double() - value).norm() / value.norm().clamp(min=1e-30)
        assert error <= bound or torch.equal(found[name].double(), value), f"{name} is off by {error:.1e}"


def even(cell: Cell, hidden: int) -> int:
    """oplu sorts pairs."""
    pairs = getattr(getattr(cell, "activation", None), "name", "") == "oplu"
    return hidden + hidden % 2 if pairs else hidden


@pytest.mark.parametrize("engine", ["auto", "torch"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "T{}-B{}-H{}".format(*s))
@pytest.mark.parametrize("name", CELLS)
def test_agrees_with_the_reference(name: str, shape: tuple[int, int, int], engine: str) -> None:
    cell, (steps, batch, hidden) = CELLS[name], shape
    tensors = problem(cell, steps, batch, even(cell, hidden))
    assert_close(run(cell, tensors, engine), run(cell, tensors, "reference"), DOUBLE)


@pytest.mark.parametrize("engine", ["auto", "torch"])
@pytest.mark.parametrize("name", CELLS)
def test_agrees_on_ragged_lengths(name: str, engine: str) -> None:
    cell = CELLS[name]
    tensors, sizes = problem(cell, 9, 5, 6), [5, 5, 4, 4, 4, 2, 1, 1, 1]
    assert_close(run(cell, tensors, engine, sizes), run(cell, tensors, "reference", sizes), DOUBLE)


@pytest.mark.parametrize("name", [*(f"elman-{a}" for a in ACTIVATIONS), "gated-relu", "gated-tanh", "lstm"])
def test_single_precision_over_a_thousand_steps(name: str) -> None:
    cell = CELLS[name]
    tensors = {key: value.float().double() for key, value in problem(cell, 1000, 3, 32).items()}
    wanted = run(cell, tensors, "reference")
    for engine in ("auto", "torch"):
        assert_close(run(cell, tensors, engine, dtype=torch.float32), wanted, SINGLE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["single", "double"])
@pytest.mark.parametrize("name", ["elman-tanh", "elman-oplu", "gated-prelu", "gated-modrelu", "lstm"])
def test_same_bits_for_any_number_of_threads(name: str, dtype: torch.dtype) -> None:
    cell = CELLS[name]
    tensors, sizes = problem(cell, 40, 13, 34), [13] * 20 + [7] * 10 + [2] * 10
    results = []
    for count in (1, 2, 3, 5):
        torch.set_num_threads(count)
        results.append(run(cell, tensors, "auto", sizes, dtype))
    for other in results[1:]:
        assert all(torch.equal(other[key], value) for key, value in results[0].items())


@pytest.mark.parametrize("engine", ["auto", "torch"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_models_are_independent(activation: str, engine: str) -> None:
    cell = ScalarGated(activation, alpha=0.3, beta=0.6)
    members = [problem(cell, steps, 4, 6) for steps in (5, 5, 5)]
    for index, member in enumerate(members):
        for value in member.values():
            value.mul_(1 + 0.1 * index)
    names = ["a", "weight_hh", "h0", "gate_alpha", "gate_beta", "activation"]
    stacked = [torch.stack([m[n] for m in members]).requires_grad_() if n in members[0] else None for n in names]
    states, _ = elman(*stacked, None, activation, None, engine)
    states.sin().sum().backward()
    for index, member in enumerate(members):
        alone = [member[n].unsqueeze(0).requires_grad_() if n in member else None for n in names]
        state, _ = elman(*alone, None, activation, None, engine)
        state.sin().sum().backward()
        torch.testing.assert_close(states[index], state[0], rtol=DOUBLE, atol=DOUBLE)
        for one, all_ in zip(alone, stacked, strict=True):
            if one is not None and all_ is not None:
                torch.testing.assert_close(all_.grad[index], one.grad[0], rtol=DOUBLE, atol=DOUBLE)  # type: ignore[index]


@pytest.mark.parametrize("engine", ["auto", "torch"])
def test_models_of_an_lstm_are_independent(engine: str) -> None:
    members = [{k: v * (1 + 0.1 * i) for k, v in problem(LSTM(), 5, 4, 6).items()} for i in range(3)]
    names = ["a", "weight_hh", "h0", "c0"]
    stacked = [torch.stack([m[n] for m in members]).requires_grad_() for n in names]
    h, c, _ = lstm(*stacked, None, None, engine)
    (h.sin() + c.cos()).sum().backward()
    for index, member in enumerate(members):
        alone = [member[n].unsqueeze(0).requires_grad_() for n in names]
        h1, c1, _ = lstm(*alone, None, None, engine)
        (h1.sin() + c1.cos()).sum().backward()
        torch.testing.assert_close(h[index], h1[0], rtol=DOUBLE, atol=DOUBLE)
        for one, all_ in zip(alone, stacked, strict=True):
            torch.testing.assert_close(all_.grad[index], one.grad[0], rtol=DOUBLE, atol=DOUBLE)  # type: ignore[index]


@pytest.mark.parametrize("engine", ["auto", "torch"])
@pytest.mark.parametrize("name", CELLS)
def test_nan_propagates(name: str, engine: str) -> None:
    cell = CELLS[name]
    tensors = problem(cell, 6, 3, 6)
    tensors["a"][2, 1] = float("nan")
    found = run(cell, tensors, engine)
    assert found["state 0"][2:, 1].isnan().all()
    assert not found["state 0"][:2].isnan().any()
    assert not found["state 0"][:, [0, 2]].isnan().any()


@pytest.mark.parametrize("engine", ["auto", "torch"])
@pytest.mark.parametrize("name", CELLS)
def test_an_empty_batch(name: str, engine: str) -> None:
    cell = CELLS[name]
    found = run(cell, problem(cell, 4, 0, 6), engine)
    assert found["state 0"].shape == (4, 0, 6)
    assert not found["gradient by weight_hh"].any()
