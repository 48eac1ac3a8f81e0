"""`CompiledStep`: everything that engines derive from a step, computed on first use and shared by equal steps."""

from __future__ import annotations

import ctypes
import functools
from functools import cached_property
from typing import Any, NamedTuple

import torch

from evenflow.step import emit_c, program_text, restarting
from evenflow.step.compute import Evaluator
from evenflow.step.differentiate import differentiate
from evenflow.step.graph import Node, View, ordered
from evenflow.step.linear_step import LinearStep, is_plain_product, linear_gradient, linear_step
from evenflow.step.places import Place, Places, layout
from evenflow.step.program import Program, flat


class Use(NamedTuple):
    """One use of a matrix in a step, for its gradient.

    Attributes:
        inputs: the blocks that went into the product.
        place: where they are stored side by side, or None.
        runs: where the gradients by its outputs are stored.
        whole: the view is the whole matrix, not transposed.
        restarts: where a row restarts its input counts as zero.
    """

    view: View
    inputs: tuple[Node, ...]
    place: Place | None
    runs: list[tuple[Place, tuple[Node, ...]]]
    whole: bool
    restarts: bool


class CompiledStep:
    """A program with its gradient and its code.

    Args:
        source: the text of a program.
    """

    def __init__(self, source: str) -> None:
        self.text = source
        self.program: Program = program_text.read(source)
        self.libraries: dict[torch.dtype, ctypes.CDLL | None] = {}  # compiled code by dtype
        self.directions: dict[bool, Any] = {}  # the CUDA code, by whether it is that of the backward pass
        self.kernels: dict[Any, Any] = {}  # of a GPU, see `cuda.cuda_recurrence`
        self.without_kernels: dict[torch.device, str | None] = {}  # by GPU, why it has no kernels

    @cached_property
    def places(self) -> Places:
        return Places(differentiate(self.program))

    @cached_property
    def leaves(self) -> list[Node]:
        program = self.program
        return [*program.a, *flat(program.states), *flat(program.parameters), *program.resets]

    @cached_property
    def forward_plan(self) -> Evaluator:
        return Evaluator(flat(self.program.new), self.leaves, self.program.products)

    @cached_property
    def derived_plan(self) -> Evaluator:
        """Values that depend on parameters alone, computed once for all steps."""
        return Evaluator(self.program.derived, flat(self.program.parameters[: -len(self.program.derived)]))

    @cached_property
    def storing_plan(self) -> Evaluator:
        """One step with all that the forward pass stores."""
        roots = [*flat(self.program.new), *self.places.kept, *self.places.marks]
        return Evaluator(roots, self.leaves, self.program.products)

    @cached_property
    def keeping_plan(self) -> Evaluator:
        """The numbers and marks that the forward pass stores, from all states."""
        return Evaluator([*self.places.kept, *self.places.marks], self.leaves, self.program.products)

    @cached_property
    def _stored(self) -> list[Node]:
        places = self.places
        return [*self.leaves, *flat(self.program.new), *places.kept, *places.marks, *places.again]

    @cached_property
    def loop_plans(self) -> list[tuple[int | None, Evaluator]]:
        """One step of the backward pass: product by product, then the gradients by the states."""
        gradient = self.places.gradient
        available = [*self._stored, *flat(gradient.by_new), *self._hoisted]
        plans: list[tuple[int | None, Evaluator]] = []
        left = [p for p, nodes in enumerate(gradient.returned) if nodes]
        while left:
            for p in left:
                roots = [v for blocks in gradient.passed[p] or [] for v in blocks]
                try:
                    plan = Evaluator(roots, available)
                except KeyError:  # it reads what a product that is still to come returns
                    continue
                plans.append((p, plan))
                available += [*roots, *gradient.returned[p]]
                left.remove(p)
                break
        return [*plans, (None, Evaluator(flat(gradient.states), available))]

    @cached_property
    def _hoisted(self) -> list[Node]:
        """Nodes of the backward pass that depend on no gradient."""
        gradients = {*flat(self.places.gradient.by_new), *flat(self.places.gradient.returned)}
        stored = set(self._stored)
        free: dict[Node, bool] = {}
        everything = ordered([*self.places.gradient.targets(), *self.added])
        for v in everything:
            free[v] = v not in gradients and (v in stored or all(free[u] for u in v.operands))
        read = {u for v in everything if not free[v] for u in v.operands if free[u] and u not in stored}
        return sorted((v for v in read if v.op != "const"), key=lambda v: v.id)

    @cached_property
    def hoisting_plan(self) -> Evaluator:
        return Evaluator(self._hoisted, self._stored)

    @cached_property
    def loop_reads(self) -> list[Node]:
        """Nodes that the loop of the backward pass reads from arrays over all steps."""
        available = {*self._stored, *self._hoisted}
        read = {v for _, plan in self.loop_plans for v in plan.reads}
        return [v for v in available if v in read]

    @cached_property
    def collecting_plan(self) -> Evaluator:
        """All gradients but those by the states, for all steps at once."""
        gradient = self.places.gradient
        available = [*self._stored, *self._hoisted, *flat(gradient.by_new), *flat(gradient.returned)]
        return Evaluator([*gradient.a, *self.places.rest, *self.added], available)

    @cached_property
    def is_linear(self) -> bool:
        """Whether the step is ``h = a + U h`` and nothing else."""
        return is_plain_product(self.program)

    @cached_property
    def linear_forward(self) -> LinearStep | None:
        """The step as one that is linear in its states unit by unit, or None."""
        return linear_step(self.program, self.leaves)

    @cached_property
    def linear_backward(self) -> LinearStep | None:
        """The gradients by the states before the step, from those by the new states; None as above."""
        return linear_gradient(self.places.gradient, [*self._stored, *self._hoisted])

    @cached_property
    def reads_a(self) -> bool:
        """Whether the backward pass reads a itself."""
        places = self.places
        available = [v for v in self._stored if v not in self.program.a]
        gradient = places.gradient
        available += [*flat(gradient.by_new), *flat(gradient.returned)]
        products = [p for p, outputs in enumerate(gradient.outputs) if outputs]
        if any((place := places.inputs(p)) is None or place.array == "a" for p in products):
            return True
        try:
            Evaluator([*gradient.targets(), *self.added], available)
        except KeyError:
            return True
        return False

    @cached_property
    def added(self) -> list[Node]:
        """Nodes that the backward pass sums over all steps and rows, for the gradients by parameters."""
        return self.places.added

    @cached_property
    def parameter_sums(self) -> list[list[tuple[int, Node, Place | None]]]:
        """For each block of each parameter its width, the node whose sum is its gradient, and where that is stored."""
        places = self.places
        pairs = zip(self.program.parameters, places.parameters, strict=True)
        return [
            [(block.width, v, places.gradients([v])) for block, v in zip(blocks, nodes, strict=True)]
            for blocks, nodes in pairs
        ]

    @cached_property
    def from_zero(self) -> str:
        """The text of the step whose states restart from zero, see `step.restart`."""
        return program_text.write(restarting(self.program, learned=False))

    @cached_property
    def from_learned(self) -> str:
        """The text of the step whose states restart from learned ones, its last parameters."""
        return program_text.write(restarting(self.program, learned=True))

    @cached_property
    def state_moves(self) -> list[bool]:
        """For each state whether any gradient reaches the one before the first step."""
        return [self.places.state_moves(i) for i in range(len(self.program.states))]

    @cached_property
    def forward_c(self) -> str:
        return emit_c.text(self.places, backward=False)

    @cached_property
    def backward_c(self) -> str:
        return emit_c.text(self.places, backward=True)

    @cached_property
    def uses(self) -> list[Use]:
        """Every use of a matrix; the gradient by the matrix is a sum over its uses."""
        uses, places = [], self.places
        for p, n, view in places.views:
            if places.gradient.outputs[p] is None:
                continue
            whole = not view.transposed and (view.rows, view.columns) == self.program.matrices[view.matrix]
            product = self.program.products[p]
            restarts = self.program.restarts(product)
            uses.append(Use(view, product.inputs, places.inputs(p), places.outputs(p, n), whole, restarts))
        return uses

    @cached_property
    def number_array(self) -> ctypes.Array[ctypes.c_int64]:
        return (ctypes.c_int64 * len(self.numbers))(*self.numbers)

    @cached_property
    def numbers(self) -> list[int]:
        """The sizes that a call of compiled code passes, see `emit_c.number_names`."""
        sizes = list(layout(self.program))
        for rows, columns in self.program.matrices:
            sizes += [columns, rows * columns]
        return [*sizes, *(v.row * self.program.matrices[v.matrix][1] + v.column for _, _, v in self.places.views)]

    @cached_property
    def a_size(self) -> int:
        return sum(v.width for v in self.program.a)

    @cached_property
    def state_sizes(self) -> list[int]:
        return [sum(v.width for v in blocks) for blocks in self.program.states]

    @cached_property
    def kept_size(self) -> int:
        return sum(v.width for v in self.places.kept)

    @cached_property
    def marks_size(self) -> int:
        return sum(v.width for v in self.places.marks)

    @cached_property
    def rest_size(self) -> int:
        return sum(v.width for v in self.places.rest)


@functools.lru_cache(1024)
def compiled_step(source: str) -> CompiledStep:
    return CompiledStep(source)
