"""Products with numbers per row, written as pointwise operations and sums over units.

A block of one number per row that a product makes of a wide block is a sum over units, ``(w * x).sum(-1)``, where the
row w of the matrix is as wide as x. Where a product takes a number per row, its part of a wide result is ``w * x`` with
a column w. So no matrix as wide as the blocks is needed for such a number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from evenflow.step.differentiate import Gradient
from evenflow.step.generated_code import backward_products, forward_products
from evenflow.step.graph import Graph, Node
from evenflow.step.program import Program
from evenflow.step.schedule import PassProduct


@dataclass(frozen=True)
class Vector:
    """``width`` numbers of a matrix from (row, column) on, down the column or along the row."""

    matrix: int
    row: int
    column: int
    width: int
    down: bool


class NarrowProducts:
    """The products of one pass between wide blocks, and what the others are made of.

    Args:
        program, gradient: the step; with a gradient the pass is the backward pass.

    Attributes:
        products: the products between wide blocks.
        vectors: leaves, parts of matrices that are used like parameters.
        parts: for each output that is not of a product between wide blocks alone: the output of such a product, or
            None, and what is added to it.
    """

    def __init__(self, program: Program, gradient: Gradient | None = None) -> None:
        self._graph: Graph = program.graph
        self.products: list[PassProduct] = []
        self.vectors: dict[Node, Vector] = {}
        self.parts: dict[Node, tuple[Node | None, Node]] = {}
        listed = forward_products(program) if gradient is None else backward_products(gradient)
        for each in listed:
            weight = self._weights(program, each.number)
            self._take_apart(each, weight if gradient else lambda i, o, weight=weight: weight(o, i))  # type: ignore[misc]
        self.vectors = dict(sorted(self.vectors.items(), key=lambda pair: pair[1].matrix))

    @property
    def definitions(self) -> dict[Node, Node]:
        """The outputs in `parts`, with the node that each of them is."""
        make = self._graph.make
        return {v: rest if wide is None else make("add", wide, rest) for v, (wide, rest) in self.parts.items()}

    def _weights(self, program: Program, p: int) -> Callable[[int, int], Node]:
        """The part of product p's matrices from its input number i to its output number o, if that is no matrix."""
        product = program.products[p]
        places = [
            (view, sum(v.width for v in out[:k]), v.width)
            for view, out in zip(product.views, product.outputs, strict=True)
            for k, v in enumerate(out)
        ]

        def leaf(o: int, i: int) -> Node:
            (view, above, height), before, x = places[o], sum(v.width for v in product.inputs[:i]), product.inputs[i]
            row, column = (before, above) if view.transposed else (above, before)
            down = (x.width if view.transposed else height) > 1
            place = Vector(view.matrix, view.row + row, view.column + column, max(height, x.width), down)
            v = self._graph.leaf("input", "vector", p, o, i, width=place.width)
            self.vectors[v] = place
            return v

        return leaf

    def _take_apart(self, product: PassProduct, weight: Callable[[int, int], Node]) -> None:
        """Take a product apart; `weight` gives the part of its matrices from an input to an output, by number."""
        graph = self._graph
        wide_inputs = tuple(x for x in product.inputs if x.width > 1)
        results: list[Node] = []
        for o, v in enumerate(product.outputs):
            total: Node | None = None
            for i, x in enumerate(product.inputs):
                if v.width > 1 and x.width > 1:
                    continue
                term = graph.make("mul", weight(i, o), x)
                term = graph.reduce("sum", term) if v.width == 1 else term
                total = term if total is None else graph.make("add", total, term)
            wide = v if total is None else None
            if total is not None and v.width > 1 and wide_inputs:
                wide = graph.leaf("product", "wide", product.number, o, width=v.width)
            if wide is not None:
                results.append(wide)
            if total is not None:
                self.parts[v] = (wide, graph.widened(total, v.width))
        if results:
            self.products.append(PassProduct(product.number, wide_inputs, tuple(results)))

    def by_matrix(self, columns: Sequence[int], width: int) -> dict[int, list[int]]:
        """The places of the vectors' numbers in each matrix, `width` places for each vector.

        Args:
            columns: of each matrix.
        """
        places_of_matrix: dict[int, list[int]] = {}
        for v in self.vectors.values():
            first, stride = v.row * columns[v.matrix] + v.column, columns[v.matrix] if v.down else 1
            places = [first + stride * min(n, v.width - 1) for n in range(width)]
            places_of_matrix.setdefault(v.matrix, []).extend(places)
        return places_of_matrix
