"""The products of a pass as stages of a kernel, and the numbers that its threads read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from evenflow.step.graph import Node, View, ordered
from evenflow.step.places import Places
from evenflow.step.schedule import PassProduct, Schedule
from evenflow.step.trace import Untranslatable

SUMS = 1000  # numbers of sums over units begin here, after those of products


@dataclass(frozen=True)
class CudaStage:
    """One product: blocks that go in, blocks that come out, and what its weights are.

    Args:
        number: of the program's product, or None for a sum over units.
        views: the matrices, with the blocks that come out of each.
        carried: its inputs come from the step before.
    """

    number: int | None
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    views: tuple[tuple[View, tuple[Node, ...]], ...]
    carried: bool


class CudaStages:
    """The stages of a pass, and its leaves: the nodes that it reads instead of computing them."""

    backward = False

    def __init__(self, places: Places) -> None:
        self.places, self.program, self.gradient = places, places.program, places.gradient
        nodes = ordered([*self.targets(), *self.program.nodes()])
        if any(v.op == "amax" for v in nodes):
            raise Untranslatable("the largest number of a row", "the step", "there is no kernel for it on a GPU")
        outputs = (v for product in self.program.products for out in product.outputs for v in out)
        self.width = max(v.width for v in (*nodes, *outputs))

    def targets(self) -> list[Node]:
        """The nodes that the pass stores or hands to the next step."""
        raise NotImplementedError

    def matrix_products(self) -> list[PassProduct]:
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

    @cached_property
    def products(self) -> list[PassProduct]:
        """Matrix products and sums over units."""
        products = self.matrix_products()
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
                stack.extend(v.operands)
        return nodes

    @cached_property
    def schedule(self) -> Schedule:
        return Schedule(self.products, self.targets(), self.is_leaf)

    @cached_property
    def stages(self) -> list[CudaStage]:
        """The stages in the order in which a step runs them."""
        by_number = {product.number: product for product in self.products}
        order = [by_number[n] for phase in self.schedule.phases for n in phase.products]
        carried = [product for product in order if self.is_carried(product)]
        return [self._stage(p, p in carried) for p in [*carried, *(p for p in order if p not in carried)]]

    def _stage(self, product: PassProduct, carried: bool) -> CudaStage:
        if product.number >= SUMS:
            return CudaStage(None, product.inputs, product.outputs, (), carried)
        of_program = self.program.products[product.number]
        views = tuple(zip(of_program.views, of_program.outputs, strict=True))
        return CudaStage(product.number, product.inputs, product.outputs, views, carried)

    @cached_property
    def parameters(self) -> dict[Node, tuple[int, int]]:
        """Parameter and offset of each block."""
        return {
            v: (i, size(blocks[:k])) for i, blocks in enumerate(self.program.parameters) for k, v in enumerate(blocks)
        }

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
        operands = (u for v in self._computed(roots, outputs) for u in v.operands)
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
