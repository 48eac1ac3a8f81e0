"""Scans whose states restart: the loop runs the pieces, and every fused scan gives what the loop gives."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from evenflow.activations import ACTIVATIONS
from evenflow.cells import LSTM1997, Cell, ComplexElman, Elman, GRUStep, LSTMStep, PeepholeLSTM, ScalarGated, SCRNStep
from evenflow.scan import reference, scan
from evenflow.scan.backend import LINEARIZED
from evenflow.scan.compiled_step import CompiledStep
from evenflow.step import Untranslatable, program_text, restarting

# Sums of at most 128 terms over 17 steps, taken in another order: a few hundred roundings of 1e-16.
DOUBLE = 1e-12
SINGLE = 1e-5
STEPS, BATCH = 17, 5
RAGGED = [5] * 6 + [4] * 3 + [2] * 5 + [1] * 3

CELLS: dict[str, Cell] = {f"elman-{name}": Elman(name) for name in ACTIVATIONS}
CELLS |= {f"gated-{name}": ScalarGated(name, alpha=0.3, beta=0.6) for name in ACTIVATIONS}
CELLS |= {"gru": GRUStep(), "lstm": LSTMStep(), "lstm-peephole": PeepholeLSTM(), "scrn": SCRNStep()}
CELLS |= {"lstm-1997": LSTM1997(), "lstm-1997-full": LSTM1997("full"), "complex": ComplexElman()}


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def mask() -> Tensor:
    resets = torch.rand(STEPS, BATCH, generator=torch.Generator().manual_seed(3)) < 0.3
    resets[0, 0], resets[:, 1] = True, False
    return resets


def problem(cell: Cell, hidden: int = 6) -> dict[str, Tensor]:
    """Every tensor that a scan reads; the states before the first step and learned ones."""
    weights = {n: v.double() for n, v in cell.start(3, hidden, True, torch.Generator().manual_seed(0)).items()}
    tensors = {n: v + 0.3 * normal(*v.shape, seed=i) for i, (n, v) in enumerate(weights.items())}
    for i, matrix in enumerate(cell.matrices(hidden)):
        shape = (matrix.blocks * matrix.size, matrix.size)
        tensors[matrix.name] = normal(*shape, seed=40 + i) / matrix.size**0.5
        if isinstance(cell, ComplexElman):
            tensors[matrix.name] = torch.complex(tensors[matrix.name], normal(*shape, seed=50) / matrix.size**0.5)
    ready = cell.prepare(tensors)
    tensors["a"] = cell.project(normal(STEPS, BATCH, 3, seed=60), ready).detach()
    for i, (name, size) in enumerate(zip(cell.states, cell.state_sizes(hidden), strict=True)):
        tensors[f"first {name}"], tensors[f"{name}0"] = normal(BATCH, size, seed=70 + i), normal(size, seed=80 + i)
    return tensors


def run(
    cell: Cell, tensors: dict[str, Tensor], engine: str, sizes: list[int] | None, learned: bool
) -> dict[str, Tensor]:
    """States, and the gradients of a sum that weighs every state of every step differently."""
    leaves = {n: v.detach().clone().requires_grad_() for n, v in tensors.items()}
    leaves["tap"] = torch.zeros(STEPS, BATCH, cell.state_sizes(6)[0], dtype=leaves["a"].dtype, requires_grad=True)
    state = tuple(leaves[f"first {name}"] for name in cell.states)
    options = {"resets": mask(), "learned": learned}
    states = scan(cell, leaves["a"], state, cell.prepare(leaves), sizes, leaves["tap"], engine, **options)
    loss = torch.stack([(s * normal(*s.shape, seed=i)).sum() for i, s in enumerate(states)]).sum()
    found = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
    gradients = {f"gradient by {name}": d for name, d in zip(leaves, found, strict=True)}
    return {f"state {i}": s.detach() for i, s in enumerate(states)} | gradients


def assert_close(found: dict[str, Tensor], wanted: dict[str, Tensor], bound: float) -> None:
    for name, value in wanted.items():
        error = (found[name] - value).norm() / value.norm().clamp(min=1e-30)
        assert error <= bound or torch.equal(found[name].to(value.dtype), value), f"{name} is off by {error:.1e}"


@pytest.mark.parametrize("learned", [False, True], ids=["from zero", "from learned"])
@pytest.mark.parametrize("name", ["elman-tanh", "lstm", "scrn"])
def test_the_loop_runs_the_pieces(name: str, learned: bool) -> None:
    cell = CELLS[name]
    tensors, resets = problem(cell), mask()
    weights = cell.prepare(tensors)
    first = tuple(tensors[f"first {n}"] for n in cell.states)
    found = reference.scan(cell, tensors["a"], first, weights, None, None, resets, learned)
    for b in range(BATCH):
        state = tuple(s[b : b + 1] for s in first)
        bounds = [0, *(t for t in range(STEPS) if resets[t, b]), STEPS]
        for n, (low, high) in enumerate(pairwise(bounds)):
            if n:
                state = tuple(tensors[f"{s}0"].unsqueeze(0) * learned for s in cell.states)
            if low < high:
                alone = reference.scan(cell, tensors["a"][low:high, b : b + 1], state, weights)
                for one, many in zip(alone, found, strict=True):
                    torch.testing.assert_close(one[:, 0], many[low:high, b], rtol=DOUBLE, atol=DOUBLE)


@pytest.mark.parametrize("sizes", [None, RAGGED], ids=["even", "ragged"])
@pytest.mark.parametrize("learned", [False, True], ids=["from zero", "from learned"])
@pytest.mark.parametrize("name", CELLS)
def test_agrees_with_the_reference(name: str, learned: bool, sizes: list[int] | None) -> None:
    cell = CELLS[name]
    tensors = problem(cell)
    wanted = run(cell, tensors, "reference", sizes, learned)
    for engine in ("auto", "torch"):
        assert_close(run(cell, tensors, engine, sizes, learned), wanted, DOUBLE)


@pytest.mark.parametrize("learned", [False, True], ids=["from zero", "from learned"])
@pytest.mark.parametrize("name", ["elman-relu", "gated-tanh", "gru", "lstm-peephole"])
def test_single_precision_in_several_threads(name: str, learned: bool) -> None:
    cell = CELLS[name]
    tensors = {n: v.float() for n, v in problem(cell).items()}
    wanted = run(cell, {n: v.double() for n, v in tensors.items()}, "reference", RAGGED, learned)
    threads, results = torch.get_num_threads(), []
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            results.append(run(cell, tensors, "auto", RAGGED, learned))
    finally:
        torch.set_num_threads(threads)
    assert_close(results[0], wanted, SINGLE)
    assert all(torch.equal(v, results[1][n]) for n, v in results[0].items())


@pytest.mark.parametrize("learned", [False, True], ids=["from zero", "from learned"])
@pytest.mark.parametrize("name", ["elman-tanh", "gated-tanh", "gru", "lstm-peephole", "complex"])
def test_the_tangent_restarts_too(name: str, learned: bool) -> None:
    """How a small change of everything that a scan reads spreads, which Gauss-Newton needs."""
    cell, found = CELLS[name], []
    for engine in (LINEARIZED, "reference"):
        leaves = {n: v.requires_grad_() for n, v in problem(cell).items()}
        state = tuple(leaves[f"first {n}"] for n in cell.states)
        h, *_ = scan(cell, leaves["a"], state, cell.prepare(leaves), None, None, engine, resets=mask(), learned=learned)
        grad = normal(*h.shape, seed=1).requires_grad_()
        pulled = torch.autograd.grad(h, list(leaves.values()), grad, create_graph=True, allow_unused=True)
        moving = [d for d in pulled if d is not None and d.requires_grad]
        found.append(torch.autograd.grad(moving, grad, [torch.ones_like(d) for d in moving])[0])
    torch.testing.assert_close(*found, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["elman-tanh", "gru", "lstm"])
def test_restarts_from_zero_store_nothing_more(name: str) -> None:
    """The same numbers are kept and the same gradients stored as without resets, and products read stored states."""
    cell = CELLS[name]
    tensors = problem(cell)
    text = cell.program(tensors["a"].shape[-1], cell.state_sizes(6), cell.prepare(tensors))
    assert not isinstance(text, Untranslatable)
    plain, restarting_step = CompiledStep(text), CompiledStep(CompiledStep(text).from_zero)
    for size in ("kept_size", "marks_size", "rest_size"):
        assert getattr(restarting_step, size) == getattr(plain, size)


def test_the_text_of_a_step_with_restarts_is_read_back() -> None:
    cell = CELLS["lstm"]
    tensors = problem(cell)
    text = cell.program(tensors["a"].shape[-1], cell.state_sizes(6), cell.prepare(tensors))
    for learned in (False, True):
        written = program_text.write(restarting(program_text.read(str(text)), learned))
        assert program_text.write(program_text.read(written)) == written
