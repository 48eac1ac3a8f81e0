"""The backward pass of a step as C."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

from evenflow.step.emit_c.c_direction import CDirection
from evenflow.step.emit_c.c_loops import Pointer
from evenflow.step.generated_code import backward_products, braces
from evenflow.step.graph import Node
from evenflow.step.program import flat
from evenflow.step.schedule import PassProduct, Schedule


class CBackward(CDirection):
    """The gradients by a, outputs of products, first states and parameters, from the last step to the first.

    The gradient by a state has three parts: what arrives from outside (``g``), what the step after hands over
    (``carry``), and the results of the products of the step after, which are added when they are read.
    """

    backward = True
    loop = "for (int64_t t = T - 1; t >= 0; t--)"

    def arrays(self) -> list[tuple[str, Sequence[Node], str]]:
        before = [(f"before{i}", blocks, "REAL") for i, blocks in enumerate(self.program.states)]
        after = [(f"s{i}", blocks, "REAL") for i, blocks in enumerate(self.program.new)]
        marks = ("marks", self.places.marks, "int8_t")
        read = [
            ("kept", self.places.kept, "REAL"),
            ("a", self.program.a, "REAL"),
            marks,
            ("again", self.places.again, "REAL"),
        ]
        return [*before, *after, *read, ("resets", self.program.resets, "REAL")]

    @cached_property
    def arriving(self) -> dict[Node, tuple[int, int]]:
        """State and block of each gradient by a new state."""
        return {v: (i, k) for i, blocks in enumerate(self.gradient.by_new) for k, v in enumerate(blocks)}

    def is_leaf(self, v: Node) -> bool:
        return super().is_leaf(v) or v in self.arriving

    def leaf(self, v: Node, variable: Callable[[Pointer], str]) -> str | None:
        if v not in self.arriving:
            return super().leaf(v, variable)
        i, k = self.arriving[v]
        from_outside = Pointer(f"g{i} + {self.sizes.of(self.gradient.by_new[i][:k])}", "const REAL")
        return " + ".join(f"{variable(pointer)}[]" for pointer in [from_outside, *self._from_later(i, k)])

    def _from_later(self, i: int, k: int) -> list[Pointer]:
        """The parts of the gradient by block k of state i that come from the step after."""
        carried = [] if self.places.carried[i][k] is None else [self._carry(i, k)]
        return [*carried, *(self.results[v] for v in self.places.deferred[i][k])]

    def _carry(self, i: int, k: int) -> Pointer:
        return Pointer(f"carry{i}_{k} + (b - low) * {self.sizes.of(self.program.states[i][k])}")

    @cached_property
    def carried(self) -> list[tuple[int, int, Node]]:
        """State, block and node of what a step hands to the step before."""
        rows = enumerate(self.places.carried)
        return [(i, k, v) for i, blocks in rows for k, v in enumerate(blocks) if v is not None]

    def products(self) -> list[PassProduct]:
        return backward_products(self.gradient)

    def targets(self) -> list[Node]:
        targets = [*self.gradient.a, *self.places.rest, *(v for _, _, v in self.carried), *self.places.added]
        several = len(Schedule(self.products(), targets, self.is_leaf).passes()) > 1
        return [*(self.arriving if several else []), *targets]

    @property
    def gradient_arrays(self) -> list[tuple[str, Sequence[Node]]]:
        return [("d_a", self.gradient.a), ("d_rest", self.places.rest)]

    def stores(self) -> dict[Node, list[Pointer]]:
        rows = [*self.gradient_arrays]
        rows += [(f"x{p} + (b - low) * {self.sizes.of(blocks)}", blocks) for p, blocks in self.joined.items()]
        pairs = [pair for name, blocks in rows for pair in self.pointers(name, blocks)]
        pairs += [(v, self._carry(i, k)) for i, k, v in self.carried]
        for k, v in enumerate(self.places.added):
            pairs.append((v, Pointer(f"sums{k} + (m * B + b) * {self.sizes.of(v)}", "double")))
        pairs += [(v, pointer) for v, pointer in self.buffers.items() if pointer.address.startswith("saved")]
        stores: dict[Node, list[Pointer]] = {}
        for v, pointer in pairs:
            stores.setdefault(v, []).append(pointer)
        return stores

    @cached_property
    def joined(self) -> dict[int, tuple[Node, ...]]:
        """Gradients by outputs that have to be copied side by side for their product."""
        return {p.number: p.inputs for p in self.products() if self.places.gradients(p.inputs) is None}

    def allocate_products(self, products: Sequence[PassProduct]) -> None:
        states = self.sizes.of(flat(self.program.states))
        self.allocate("nothing", states)  # zeros in place of missing gradients
        self.packing.append(f"memset(nothing, 0, {states} * sizeof(REAL));")
        for each in products:
            p, product = each.number, self.program.products[each.number]
            depth, height = self.sizes.of(each.inputs), self.sizes.of(each.outputs)
            if self.is_square(p):
                self.allocate(f"split{p}", depth)
            else:
                self.allocate(f"w{p}", f"{depth} * NAME(padded)({height})")
            above: list[Node] = []
            for n, (view, out) in enumerate(zip(product.views, product.outputs, strict=True)):
                columns = f"columns{view.matrix}"
                strides = f"1, {columns}" if view.transposed else f"{columns}, 1"
                if self.is_square(p):
                    self.packing.append(f"NAME(pack_split)({self.matrix(p, n)}, {depth}, {strides}, &split{p});")
                else:
                    sizes, start = f"{self.sizes.of(out)}, {height}, {strides}", f"{self.sizes.of(above)} * PANEL"
                    self.packing.append(f"NAME(pack)({self.matrix(p, n)}, {sizes}, w{p} + {start}, {depth});")
                above += out
            self.allocate_result(f"z{p}", each.outputs)

    def allocate_buffers(self, schedule: Schedule, products: Sequence[PassProduct]) -> None:
        super().allocate_buffers(schedule, products)
        if len(schedule.passes()) > 1:  # later passes read arriving gradients after their sources have changed
            for v in self.arriving:
                self.allocate_saved(v)
        for name, blocks in self.gradient_arrays:
            for v, pointer in self.pointers(name, blocks):
                if not self.is_leaf(v):
                    self.buffers.setdefault(v, pointer)
        for i, k, _ in self.carried:
            self.allocate_rows(f"carry{i}_{k}", self.sizes.of(self.program.states[i][k]))
        for p, inputs in self.joined.items():
            self.allocate_rows(f"x{p}", self.sizes.of(inputs))

    def product_text(self, product: PassProduct) -> list[str]:
        p, depth = product.number, self.sizes.of(product.inputs)
        place = self.places.gradients(product.inputs)
        x, row = self.source(place, {"d_a": "d_a_rows", "d_rest": "d_rest_rows"}) or (f"x{p}", depth)
        inputs = f"{x}, running - low, {depth}, {row}"
        if self.is_square(p):
            return [f"NAME(product_split)({inputs}, &split{p}, z{p});"]
        return [f"NAME(product)({inputs}, w{p}, {self.sizes.of(product.outputs)}, z{p});"]

    def model_text(self) -> list[str]:
        lines = [self.row(f"first{i}", f"s0_{i}", "m * B", b) for i, b in enumerate(self.program.states)]
        lines += [self.row(f"p{i}", f"p{i}", "m", b) for i, b in enumerate(self.program.parameters) if b]
        for k in range(len(self.places.added)):
            before = self.sizes.of(self.places.added[:k])
            lines.append(f"double *sums{k} = {self.tensor('sums', 'double')} + job->models * B * {before};")
        zeroed = [(f"z{p.number}", f"NAME(padded)({self.sizes.of(p.outputs)})") for p in self.products()]
        zeroed += [(f"carry{i}_{k}", self.sizes.of(self.program.states[i][k])) for i, k, _ in self.carried]
        return [*lines, *(f"memset({name}, 0, rows * {row} * sizeof(REAL));" for name, row in zeroed)]

    def step_text(self) -> list[str]:
        rows = [("a", self.program.a, "const REAL"), ("d_a", self.program.a, "REAL")]
        rows += [("d_rest", self.places.rest, "REAL")] if self.places.rest else []
        return [self.row(f"{name}_rows", name, "at", blocks, kind) for name, blocks, kind in rows]

    def row_text(self) -> list[str]:
        size = self.sizes.of(self.program.a)
        lines = [f"const REAL *a = a_rows + b * {size};", f"REAL *d_a = d_a_rows + b * {size};"]
        if self.places.rest:
            lines.append(f"REAL *d_rest = d_rest_rows + b * {self.sizes.of(self.places.rest)};")
        for i, blocks in enumerate(self.program.states):
            row, grad = self.sizes.of(blocks), self.tensor(f"g{i}")
            lines.append(self.row(f"s{i}", f"s{i}", "(at + b)", blocks))
            lines.append(f"const REAL *before{i} = t ? s{i} - B * {row} : first{i} + b * {row};")
            lines.append(f"const REAL *g{i} = {grad} ? {grad} + (at + b) * {row} : nothing;")
        if self.places.kept:
            lines.append(self.row("kept", "kept", "(at + b)", self.places.kept))
        if self.places.again:
            lines.append(self.row("again", "again", "(at + b)", self.places.again))
        if self.places.marks:
            lines.append(self.row("marks", "marks", "(at + b)", self.places.marks, "const int8_t"))
        return [*lines, *self.reset_text()]

    def tap_text(self) -> list[str]:
        """Store ∂L/∂h_t, where a call asks for it."""
        blocks = self.gradient.by_new[0]
        lines = [self.row("tap", "tap", "(at + b)", blocks, "REAL")]
        for k, v in enumerate(blocks):
            text = (self.leaf(v, lambda pointer: f"({pointer.address})") or "0").replace("[]", "[j]")
            lines.append(self._each_unit(v, f"tap[{self.sizes.of(blocks[:k])} + j] = {text};"))
        return braces(f"if ({self.tensor('tap')})", lines)

    def _each_unit(self, v: Node, statement: str) -> str:
        return f"for (int64_t j = 0; j < {self.sizes.of(v)}; j++) {statement}"

    def model_end(self) -> list[str]:
        lines = []
        for i, blocks in enumerate(self.program.states):
            lines.append(self.row(f"d_s0_{i}", f"d_s0_{i}", "(m * B + b)", blocks, "REAL"))
            for k, v in enumerate(blocks):
                total = " + ".join(f"({pointer.address})[j]" for pointer in self._from_later(i, k)) or "0"
                lines.append(self._each_unit(v, f"d_s0_{i}[{self.sizes.of(blocks[:k])} + j] = {total};"))
        return braces("for (int64_t b = low; b < high; b++)", lines)

    def written(self) -> list[tuple[str, str, str]]:
        arrays = [("d_a", self.program.a), ("tap", self.program.states[0]), ("d_rest", self.places.rest)]
        return [(name, "REAL", self.sizes.of(blocks)) for name, blocks in arrays if blocks]
