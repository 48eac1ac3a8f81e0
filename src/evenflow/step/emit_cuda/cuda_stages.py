"""The products of one direction of a step as stages of a kernel, and the numbers that its threads prefetch."""

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
    """The stages of one direction, and its leaves."""

    backward = False

    def __init__(self, places: Places) -> None:
        self.places, self.program, self.gradient = places, places.program, places.gradient
        everything = ordered([*self.targets(), *self.program.nodes()])
        if any(v.op == "amax" for v in everything):
            raise Untranslatable("the largest number of a row", "the step", "there is no kernel for it on a GPU")
        outputs = (v for product in self.program.products for out in product.outputs for v in out)
        self.width = max(v.width for v in (*everything, *outputs))

    def targets(self) -> list[Node]:
        raise NotImplementedError

    def _products(self) -> list[PassProduct]:
        raise NotImplementedError

    @property
    def rows(self) -> list[tuple[str, tuple[Node, ...]]]:
        """Arrays that leaves are fetched from, with the blocks of a row."""
        raise NotImplementedError

    @cached_property
    def made(self) -> list[PassProduct]:
        products = self._products()
        inside = {v for m in products for v in m.outputs}
        roots = [*self.targets(), *(v for m in products for v in m.inputs)]
        sums = sorted((v for v in self._computed(roots, inside) if v.op == "sum"), key=lambda v: v.id)
        return [*products, *(PassProduct(SUMS + n, (v.args[0],), (v,)) for n, v in enumerate(sums))]

    def _computed(self, roots: Iterable[Node], made: set[Node]) -> set[Node]:
        """What the roots are computed from, as far back as leaves and products."""
        found: set[Node] = set()
        stack = list(roots)
        while stack:
            v = stack.pop()
            if v not in found and v not in made and not self.is_leaf(v):
                found.add(v)
                stack.extend(v.operands)
        return found

    @cached_property
    def schedule(self) -> Schedule:
        return Schedule(self.made, self.targets(), self.is_leaf)

    @cached_property
    def stages(self) -> list[CudaStage]:
        """In the order in which a step runs them."""
        by_number = {m.number: m for m in self.made}
        order = [by_number[n] for phase in self.schedule.phases for n in phase.products]
        carried = [m for m in order if self.is_carried(m)]
        return [self._stage(m, m in carried) for m in [*carried, *(m for m in order if m not in carried)]]

    def is_carried(self, made: PassProduct) -> bool:
        raise NotImplementedError

    def _stage(self, made: PassProduct, carried: bool) -> CudaStage:
        views = self.views(made.number) if made.number < SUMS else ()
        return CudaStage(made.number if made.number < SUMS else None, made.inputs, made.outputs, views, carried)

    def views(self, p: int) -> tuple[tuple[View, tuple[Node, ...]], ...]:
        product = self.program.products[p]
        return tuple(zip(product.views, product.outputs, strict=True))

    @property
    def weighted(self) -> list[int]:
        """The stages that have weights."""
        return [n for n, stage in enumerate(self.stages) if stage.number is not None]

    @cached_property
    def parameters(self) -> dict[Node, tuple[int, int]]:
        """Parameter and offset of each block."""
        found = {}
        for i, blocks in enumerate(self.program.parameters):
            for k, v in enumerate(blocks):
                found[v] = (i, size(blocks[:k]))
        return found

    @cached_property
    def fetched(self) -> dict[Node, tuple[str, int, int]]:
        """Leaves in arrays: which array, offset in a row, and size of a row."""
        found: dict[Node, tuple[str, int, int]] = {}
        for name, blocks in self.rows:
            for k, v in enumerate(blocks):
                found.setdefault(v, (name, size(blocks[:k]), size(blocks)))
        return found

    def in_registers(self) -> set[Node]:
        """Leaves that a thread has from the step before."""
        return set()

    def is_leaf(self, v: Node) -> bool:
        return v.op == "const" or v in self.fetched or v in self.parameters or v in self.in_registers()

    @cached_property
    def read(self) -> list[Node]:
        """The leaves that are read, in the order of their streams."""
        made = {v for m in self.made for v in m.outputs}
        roots = [*self.targets(), *(v for m in self.made for v in m.inputs)]
        below = (u for v in self._computed(roots, made) for u in v.operands)
        return sorted({v for v in (*roots, *below) if self.is_leaf(v)}, key=lambda v: v.id)

    @cached_property
    def streams(self) -> list[Node]:
        held = self.in_registers()
        return [v for v in self.read if v in self.fetched and v not in held]

    @property
    def read_parameters(self) -> list[Node]:
        return [v for v in self.read if v in self.parameters]

    def is_rowwise(self, v: Node) -> bool:
        return v.width == 1 < self.width

    def has(self, v: Node) -> str:
        """Whether a thread has a number of this block for item q; a number per row is there for every unit."""
        return "true" if self.is_rowwise(v) else f"coords0.unit(q) < {v.width}"

    @property
    def stream_count(self) -> int:
        return len(self.streams)

    @property
    def waits(self) -> str:
        return "true" if self.stages else "false"


def size(blocks: Iterable[Node]) -> int:
    return sum(v.width for v in blocks)
