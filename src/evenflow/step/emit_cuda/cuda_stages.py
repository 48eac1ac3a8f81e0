"""The products of a pass as stages of a kernel, and the numbers that its threads read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from evenflow.step.graph import Node, ordered
from evenflow.step.narrow_products import NarrowProducts
from evenflow.step.places import Places
from evenflow.step.schedule import PassProduct, Schedule
from evenflow.step.trace import Untranslatable

SUMS = 1000  # numbers of sums over units begin here, after those of products


@dataclass(frozen=True)
class CudaStage:
    """A product between wide blocks, or several sums over units that can be computed at the same time.

    Args:
        product: the number of the program's product, or None for sums.
        inputs: the blocks that go in; the summands of sums.
        outputs: the blocks that come out; the sums.
        carried: its inputs come from the step before.
    """

    product: int | None
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    carried: bool


class CudaStages:
    """The stages of a pass, and its leaves: the nodes that it reads instead of computing them."""

    backward = False

    def __init__(self, places: Places) -> None:
        self.places, self.program, self.gradient = places, places.program, places.gradient
        nodes = ordered([*self.gradient.targets(), *self.program.nodes()])
        if any(v.op == "amax" for v in nodes):
            raise Untranslatable("the largest number of a row", "the step", "there is no kernel for it on a GPU")
        outputs = (v for product in self.program.products for out in product.outputs for v in out)
        self.width = max(v.width for v in (*nodes, *outputs))
        self.narrow = NarrowProducts(self.program, self.gradient if self.backward else None)
        self.definitions = self.narrow.definitions
        self.entries_on: dict[tuple[int, Any], Any] = {}  # `vectors_by_matrix` as tensors, by matrix and device

    def targets(self) -> list[Node]:
        """The nodes that the pass stores or hands to the next step."""
        raise NotImplementedError

    def is_carried(self, product: PassProduct) -> bool:
        raise NotImplementedError

    @property
    def rows(self) -> list[tuple[str, tuple[Node, ...]]]:
        """Arrays that leaves are copied from, with the blocks of a row."""
        raise NotImplementedError

    def in_registers(self) -> set[Node]:
        """Leaves that a thread has from the step before."""
        raise NotImplementedError

    def operands(self, v: Node) -> tuple[Node, ...]:
        return (self.definitions[v],) if v in self.definitions else v.operands

    @cached_property
    def products(self) -> list[PassProduct]:
        """Matrix products and sums over units."""
        products = self.narrow.products
        outputs = {v for product in products for v in product.outputs}
        roots = [*self.targets(), *(v for product in products for v in product.inputs)]
        sums = sorted((v for v in self._computed(roots, outputs) if v.op == "sum"), key=lambda v: v.id)
        return [*products, *(PassProduct(SUMS + n, (v.args[0],), (v,)) for n, v in enumerate(sums))]

    def _computed(self, roots: Iterable[Node], outputs: set[Node]) -> set[Node]:
        """What the roots are computed from, back to leaves and outputs of products."""
        nodes: set[Node] = set()
        stack = list(roots)
        while stack:
            v = stack.pop()
            if v not in nodes and v not in outputs and not self.is_leaf(v):
                nodes.add(v)
                stack.extend(self.operands(v))
        return nodes

    @cached_property
    def schedule(self) -> Schedule:
        return Schedule(self.products, self.targets(), self.is_leaf, self.definitions)

    @cached_property
    def _in_order(self) -> list[tuple[CudaStage, tuple[int, ...]]]:
        """The stages in the order in which a step runs them, and the numbers of each one's products."""
        by_number = {product.number: product for product in self.products}
        order = [[by_number[n] for n in phase.products] for phase in self.schedule.phases]
        first = [product for phase in order for product in phase if self.is_carried(product)]
        stages: list[tuple[CudaStage, tuple[int, ...]]] = []
        for phase in [first, *([product for product in phase if product not in first] for phase in order)]:
            sums = [product for product in phase if product.number >= SUMS]
            groups = [*([product] for product in phase if product.number < SUMS), *([sums] if sums else [])]
            for group in groups:
                number = group[0].number if group[0].number < SUMS else None
                inputs = tuple(v for product in group for v in product.inputs)
                outputs = tuple(v for product in group for v in product.outputs)
                stages.append((CudaStage(number, inputs, outputs, phase is first), tuple(p.number for p in group)))
        return stages

    @cached_property
    def stages(self) -> list[CudaStage]:
        """The stages in the order in which a step runs them."""
        return [stage for stage, _ in self._in_order]

    @cached_property
    def stage_of(self) -> dict[int, int]:
        """The stage of each of `products`, by number."""
        return {number: n for n, (_, numbers) in enumerate(self._in_order) for number in numbers}

    @cached_property
    def parameters(self) -> dict[Node, tuple[str, int, int]]:
        """Leaves that are the same at every step: which tensor, offset in a row, and size of a row."""
        rows = enumerate(self.program.parameters)
        slots = {v: (f"p{i}", size(blocks[:k]), size(blocks)) for i, blocks in rows for k, v in enumerate(blocks)}
        vectors = self.narrow.vectors
        return slots | {v: ("vectors", n * self.width, len(vectors) * self.width) for n, v in enumerate(vectors)}

    @cached_property
    def vectors_by_matrix(self) -> dict[int, list[int]]:
        """The places of all vectors in their matrices, in the order of `parameters`."""
        return self.narrow.by_matrix([columns for _, columns in self.program.matrices], self.width)

    @cached_property
    def copied(self) -> dict[Node, tuple[str, int, int]]:
        """Leaves in arrays: which array, offset in a row, and size of a row."""
        copied: dict[Node, tuple[str, int, int]] = {}
        for name, blocks in self.rows:
            for k, v in enumerate(blocks):
                copied.setdefault(v, (name, size(blocks[:k]), size(blocks)))
        return copied

    def is_leaf(self, v: Node) -> bool:
        return v.op == "const" or v in self.copied or v in self.parameters or v in self.in_registers()

    @cached_property
    def read(self) -> list[Node]:
        """The leaves that are read, in the order of their streams."""
        outputs = {v for product in self.products for v in product.outputs}
        roots = [*self.targets(), *(v for product in self.products for v in product.inputs)]
        operands = (u for v in self._computed(roots, outputs) for u in self.operands(v))
        return sorted({v for v in (*roots, *operands) if self.is_leaf(v)}, key=lambda v: v.id)

    @cached_property
    def streams(self) -> list[Node]:
        """The leaves that every step copies from device memory, ahead of their use."""
        in_registers = self.in_registers()
        return [v for v in self.read if v in self.copied and v not in in_registers]

    @property
    def stream_count(self) -> int:
        return len(self.streams)

    @property
    def read_parameters(self) -> list[Node]:
        return [v for v in self.read if v in self.parameters]

    def has(self, v: Node) -> str:
        """The condition that a thread has a number of this block for item q; every unit has a number per row."""
        return "true" if v.width == 1 < self.width else f"coords0.unit(q) < {v.width}"


def size(blocks: Iterable[Node]) -> int:
    return sum(v.width for v in blocks)
