"""What is derived from a step: its text, the order of its work, what is kept for the backward pass, its tangent."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from evenflow import GRU, LSTM, RNN, Recurrent
from evenflow.scan.compiled_step import CompiledStep, compiled_step
from evenflow.step import emit_c, hoisted, program_text, translate
from evenflow.step.graph import Graph
from evenflow.step.schedule import Schedule
from evenflow.step.tangent import tangent

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
from own_cells import CELLS


def made(layer: Recurrent) -> CompiledStep:
    weights = layer.cell.prepare({name: getattr(layer, f"{name}_l0") for name in layer._names})
    H = layer.hidden_size
    return compiled_step(layer.cell.program(layer.cell.blocks * H, [H] * layer.cell.state_size, weights))


@pytest.mark.parametrize(
    ("layer", "kept"),
    [
        (RNN(2, 6), []),
        (RNN(2, 6, activation="relu"), []),
        (RNN(2, 6, activation="abs"), ["sign"]),
        (RNN(2, 6, activation="leaky"), ["less"]),
        (RNN(2, 6, activation="oplu"), ["less"]),
        (GRU(2, 6), ["add", "sigmoid", "sigmoid", "tanh"]),
        (LSTM(2, 6), ["sigmoid", "sigmoid", "sigmoid", "tanh"]),
        (Recurrent(CELLS["mgu"](), 2, 6), ["mul", "sigmoid", "tanh"]),
        (Recurrent(CELLS["lem"](), 2, 6), ["sigmoid", "sigmoid", "tanh", "tanh"]),
        (Recurrent(CELLS["ugrnn"](), 2, 6), ["sigmoid", "tanh"]),
    ],
    ids=["tanh", "relu", "abs", "leaky", "oplu", "gru", "lstm", "mgu", "lem", "ugrnn"],
)
def test_what_is_kept(layer: Recurrent, kept: list[str]) -> None:
    """The GRU keeps r, z, n and what r is times; the LSTM its four gates; a state says how tanh and relu came about."""
    assert sorted(v.op for v in made(layer).places.gradient.kept) == kept


def test_marks_take_a_byte() -> None:
    step = made(RNN(2, 6, activation="abs"))
    assert (step.kept_size, step.marks_size) == (0, 6)


def test_a_mark_that_a_product_takes_is_kept_as_numbers() -> None:
    step = CompiledStep(program_text.write(translate(lambda a, h, U: (a + h).sign() @ U.mT, 4, [4], [(4, 4)], [])))
    assert (step.kept_size, step.marks_size) == (4, 0)


def test_the_tangent_of_a_product_of_scaled_states() -> None:
    """The scale, a function of a parameter, is moved out of the step, and the product's inputs are made anew."""
    program = hoisted(translate(lambda a, h, U, p: torch.tanh(a + (h * p.exp()) @ U.mT), 4, [4], [(4, 4)], [4]))
    nodes = program.nodes()
    (product,) = program.products
    assert max(map(nodes.index, product.inputs)) < nodes.index(product.outputs[0][0])
    moved = tangent(program)
    assert len(moved.products) == 2, "of the change of U, and of the change of the scaled states"


def test_a_step_of_many_operations_is_ready_soon() -> None:
    """The search for what to keep looks at each change in turn where there are too many to compare."""

    def step(a, h, U):  # type: ignore[no-untyped-def]
        x = a + h @ U.mT
        for n in range(150):
            x = torch.tanh(x * (1 + n)) + h
        return torch.sin(x)

    found = CompiledStep(program_text.write(translate(step, 3, [3], [(3, 3)], [])))
    assert found.places.kept


def test_phases_of_a_step_whose_products_wait_for_each_other() -> None:
    """r from one product, U_n (r h) by another: two products, each followed by a pass over the units."""
    step = made(Recurrent(CELLS["gru u(r h)"](), 2, 6))
    forward = emit_c.CForward(step.places)
    schedule = Schedule(forward.products(), forward.targets(), lambda v: v.op == "input" or v.op == "const")
    assert [len(phase.products) for phase in schedule.phases] == [0, 1, 1]
    assert [len(phase.passes) for phase in schedule.phases] == [0, 1, 1]


def test_phases_of_a_normalised_step() -> None:
    """A mean, then the variance that needs it, then what needs both: three passes after the products."""
    step = made(Recurrent(CELLS["layer-norm gru"](), 2, 6))
    forward = emit_c.CForward(step.places)
    schedule = Schedule(forward.products(), forward.targets(), lambda v: v.op == "input" or v.op == "const")
    assert [len(each.sums) for each in schedule.passes()] == [1, 1, 0]


def test_equal_steps_give_equal_text() -> None:
    def step(a, h, U):  # type: ignore[no-untyped-def]
        return torch.tanh(a + h @ U.mT)

    def same(x, y, W):  # type: ignore[no-untyped-def]
        return torch.tanh(y @ W.mT + x)

    one, other = (program_text.write(translate(each, 3, [3], [(3, 3)], [])) for each in (step, same))
    assert one == other
    assert program_text.write(program_text.read(one)) == one


@pytest.mark.parametrize("name", CELLS)
def test_text_round_trip(name: str) -> None:
    step = made(Recurrent(CELLS[name](), 2, 6))
    assert program_text.write(program_text.read(step.text)) == step.text


def test_nodes_that_compute_the_same_are_one() -> None:
    graph = Graph()
    x, y = (graph.leaf("input", "a", 0, k, width=3) for k in range(2))
    assert graph.make("add", x, y) is graph.make("add", y, x)
    assert graph.make("mul", x, 1.0) is x
    assert graph.make("tanh", 0.5).args == (torch.tensor(0.5, dtype=torch.float64).tanh().item(),)
    assert graph.make("neg", graph.make("neg", x)) is x
