"""The forward pass of a step as C."""

from __future__ import annotations

from collections.abc import Sequence

from evenflow.step.emit_c.c_direction import CDirection
from evenflow.step.emit_c.c_loops import Pointer
from evenflow.step.generated_code import forward_products
from evenflow.step.graph import Node
from evenflow.step.program import flat
from evenflow.step.schedule import PassProduct, Schedule


class CForward(CDirection):
    """Writes all states, and the numbers and marks that the backward pass reads."""

    def arrays(self) -> list[tuple[str, Sequence[Node], str]]:
        before = [(f"before{i}", blocks, "REAL") for i, blocks in enumerate(self.program.states)]
        return [*before, ("a", self.program.a, "REAL"), ("resets", self.program.resets, "REAL")]

    def written_arrays(self) -> list[tuple[str, Sequence[Node], str]]:
        states = [(f"s{i}", blocks, "REAL") for i, blocks in enumerate(self.program.new)]
        return [*states, ("kept", self.places.kept, "REAL"), ("marks", self.places.marks, "int8_t")]

    def products(self) -> list[PassProduct]:
        return forward_products(self.program)

    def targets(self) -> list[Node]:
        return [*flat(self.program.new), *self.places.kept, *self.places.marks]

    def stores(self) -> dict[Node, list[Pointer]]:
        stores: dict[Node, list[Pointer]] = {}
        for array in self.written_arrays():
            for v, pointer in self.pointers(*array):
                stores.setdefault(v, []).append(pointer)
        for v, pointer in self.buffers.items():
            stores.setdefault(v, [pointer])
        return stores

    def allocate_products(self, products: Sequence[PassProduct]) -> None:
        for p, product in enumerate(self.program.products):
            depth = self.sizes.of(product.inputs)
            for n, (view, out) in enumerate(zip(product.views, product.outputs, strict=True)):
                name, columns = f"{p}_{n}", f"columns{view.matrix}"
                strides = f"{columns}, 1" if view.transposed else f"1, {columns}"
                if self.is_square(p):
                    self.allocate(f"split{name}", depth)
                    self.packing.append(f"NAME(pack_split)({self.matrix(p, n)}, {depth}, {strides}, &split{name});")
                else:
                    height = self.sizes.of(out)
                    self.allocate(f"w{name}", f"{depth} * NAME(padded)({height})")
                    sizes = f"{depth}, {height}, {strides}"
                    self.packing.append(f"NAME(pack)({self.matrix(p, n)}, {sizes}, w{name}, {depth});")
                self.allocate_result(f"z{name}", out)

    def allocate_buffers(self, schedule: Schedule, products: Sequence[PassProduct]) -> None:
        super().allocate_buffers(schedule, products)
        for array in self.written_arrays():
            for v, pointer in self.pointers(*array):
                if not self.is_leaf(v):
                    self.buffers.setdefault(v, pointer)
        for product in products:
            for v in product.inputs:
                if not self.is_leaf(v) and v not in self.results:
                    self.allocate_saved(v)
            if self._in_place(product) is None:
                self.allocate_rows(f"x{product.number}", self.sizes.of(product.inputs))

    def _in_place(self, product: PassProduct) -> tuple[str, str] | None:
        """Where a product's inputs are side by side in an array, see `source`."""
        states = range(len(self.program.states))
        pointers = {f"before{i}": f"from{i}" for i in states} | {f"state{i}": f"to{i}" for i in states}
        return self.source(self.places.inputs(product.number), pointers | {"a": "a_rows", "kept": "kept_rows"})

    def product_text(self, product: PassProduct) -> list[str]:
        p, depth = product.number, self.sizes.of(product.inputs)
        in_place = self._in_place(product)
        x, row = in_place or (f"x{p}", depth)
        lines = [] if in_place else self._join_inputs(product)
        for n, out in enumerate(self.program.products[p].outputs):
            inputs = f"{x}, running - low, {depth}, {row}"
            if self.is_square(p):
                lines.append(f"NAME(product_split)({inputs}, &split{p}_{n}, z{p}_{n});")
            else:
                lines.append(f"NAME(product)({inputs}, w{p}_{n}, {self.sizes.of(out)}, z{p}_{n});")
        return lines

    def _join_inputs(self, product: PassProduct) -> list[str]:
        """Copy the inputs of a product side by side."""
        row, copies = self.sizes.of(product.inputs), []
        for v, to in self.pointers(f"x{product.number} + (b - low) * {row}", product.inputs):
            pointer = self.streams.get(v) or self.buffers.get(v) or self.results[v]
            copies.append(f"memcpy({to.address}, {pointer.address}, {self.sizes.of(v)} * sizeof(REAL));")
        return self.each_row([*self.row_text(), *copies])

    def model_text(self) -> list[str]:
        lines = [self.row(f"from{i}", f"s0_{i}", "m * B", b) for i, b in enumerate(self.program.states)]
        return lines + [self.row(f"p{i}", f"p{i}", "m", b) for i, b in enumerate(self.program.parameters) if b]

    def step_text(self) -> list[str]:
        lines = [self.row("a_rows", "a", "at", self.program.a)]
        lines += [self.row(f"to{i}", f"s{i}", "at", blocks, "REAL") for i, blocks in enumerate(self.program.new)]
        return [*lines, *([self.row("kept_rows", "kept", "at", self.places.kept, "REAL")] if self.places.kept else [])]

    def row_text(self) -> list[str]:
        lines = [f"const REAL *a = a_rows + b * {self.sizes.of(self.program.a)};"]
        for i, blocks in enumerate(self.program.states):
            row = self.sizes.of(blocks)
            lines += [f"const REAL *before{i} = from{i} + b * {row};", f"REAL *s{i} = to{i} + b * {row};"]
        if self.places.kept:
            lines.append(f"REAL *kept = kept_rows + b * {self.sizes.of(self.places.kept)};")
        if self.places.marks:
            lines.append(self.row("marks", "marks", "(at + b)", self.places.marks, "int8_t"))
        return [*lines, *self.reset_text()]

    def step_end(self) -> list[str]:
        return [f"from{i} = to{i};" for i in range(len(self.program.states))]

    def written(self) -> list[tuple[str, str, str]]:
        return [(name, kind, self.sizes.of(blocks)) for name, blocks, kind in self.written_arrays() if blocks]
