"""The backward pass of a step as C."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

from evenflow.step.emit_c.c_direction import CDirection
from evenflow.step.emit_c.c_loops import Spot
from evenflow.step.graph import Node
from evenflow.step.program import flat
from evenflow.step.schedule import PassProduct, Schedule


class CBackward(CDirection):
    """The gradients by a, outputs of products, first states and parameters, from the last step to the first.

    The gradient by a state is what arrives from outside, what the step after has left (`carry`), and what the products
    of the step after return, which is added when it is read.
    """

    backward = True
    loop = "for (int64_t t = T - 1; t >= 0; t--) {"

    def arrays(self) -> list[tuple[str, Sequence[Node], str]]:
        found = [(f"before{i}", blocks, "REAL") for i, blocks in enumerate(self.program.states)]
        found += [(f"s{i}", blocks, "REAL") for i, blocks in enumerate(self.program.new)]
        found += [("kept", self.places.kept, "REAL"), ("a", self.program.a, "REAL")]
        return [*found, ("marks", self.places.marks, "int8_t")]

    @cached_property
    def arrived(self) -> dict[Node, tuple[int, int]]:
        """State and block of each gradient by a new state."""
        return {v: (i, k) for i, blocks in enumerate(self.gradient.by_new) for k, v in enumerate(blocks)}

    def is_leaf(self, v: Node) -> bool:
        return super().is_leaf(v) or v in self.arrived

    def leaf(self, v: Node, pointer: Callable[[Spot], str]) -> str | None:
        if v not in self.arrived:
            return super().leaf(v, pointer)
        i, k = self.arrived[v]
        from_outside = Spot(f"g{i} + {self.sizes.of(self.gradient.by_new[i][:k])}", "const REAL")
        return " + ".join(f"{pointer(spot)}[]" for spot in [from_outside, *self._left(i, k)])

    def _left(self, i: int, k: int) -> list[Spot]:
        """What the step after has left for block k of state i."""
        carried = [] if self.places.carried[i][k] is None else [self._carry(i, k)]
        return [*carried, *(self.results[v] for v in self.places.deferred[i][k])]

    def _carry(self, i: int, k: int) -> Spot:
        return Spot(f"carry{i}_{k} + (b - low) * {self.sizes.of(self.program.states[i][k])}")

    @cached_property
    def carried(self) -> list[tuple[int, int, Node]]:
        listed = enumerate(self.places.carried)
        return [(i, k, v) for i, blocks in listed for k, v in enumerate(blocks) if v is not None]

    def made(self) -> list[PassProduct]:
        listed = enumerate(zip(self.gradient.outputs, self.gradient.returned, strict=True))
        return [PassProduct(p, tuple(flat(views)), returned) for p, (views, returned) in listed if views and returned]

    def targets(self) -> list[Node]:
        wanted = [*self.gradient.a, *self.places.rest, *(v for _, _, v in self.carried), *self.places.added]
        several = len(Schedule(self.made(), wanted, self.is_leaf).passes()) > 1
        return [*(self.arrived if several else []), *wanted]

    def stores(self) -> dict[Node, list[Spot]]:
        found: dict[Node, list[Spot]] = {}
        for name, blocks in (("d_a", self.gradient.a), ("d_rest", self.places.rest)):
            for k, v in enumerate(blocks):
                found.setdefault(v, []).append(Spot(f"{name} + {self.sizes.of(blocks[:k])}"))
        for p, blocks in self.joined.items():
            for k, v in enumerate(blocks):
                place = f"x{p} + (b - low) * {self.sizes.of(blocks)} + {self.sizes.of(blocks[:k])}"
                found.setdefault(v, []).append(Spot(place))
        for i, k, v in self.carried:
            found.setdefault(v, []).append(self._carry(i, k))
        for k, v in enumerate(self.places.added):
            found.setdefault(v, []).append(Spot(f"sums{k} + (m * B + b) * {self.sizes.of(v)}", "double"))
        for v, spot in self.buffers.items():
            if spot.address.startswith("saved"):
                found.setdefault(v, []).append(spot)
        return found

    @cached_property
    def joined(self) -> dict[int, tuple[Node, ...]]:
        """Gradients by outputs that have to be brought together for their product."""
        return {m.number: m.inputs for m in self.made() if self.places.gradients(m.inputs) is None}

    def place_results(self, made: Sequence[PassProduct]) -> None:
        states = self.sizes.of(flat(self.program.states))
        self.take("nothing", states)  # in place of gradients that are not there
        self.packed.append(f"memset(nothing, 0, {states} * sizeof(REAL));")
        for m in made:
            p, product = m.number, self.program.products[m.number]
            depth, height = self.sizes.of(m.inputs), self.sizes.of(m.outputs)
            self.take(*((f"split{p}", depth) if self.is_square(p) else (f"w{p}", f"{depth} * NAME(padded)({height})")))
            above: list[Node] = []
            for n, (view, out) in enumerate(zip(product.views, product.outputs, strict=True)):
                columns = f"columns{view.matrix}"
                down, across = ("1", columns) if view.transposed else (columns, "1")
                if self.is_square(p):
                    self.packed.append(f"NAME(pack_split)({self.matrix(p, n)}, {depth}, {down}, {across}, &split{p});")
                else:
                    sizes, start = (
                        f"{self.sizes.of(out)}, {height}, {down}, {across}",
                        f"w{p} + {self.sizes.of(above)} * PANEL",
                    )
                    self.packed.append(f"NAME(pack)({self.matrix(p, n)}, {sizes}, {start}, {depth});")
                above += out
            self.place_result(f"z{p}", m.outputs)

    def place_buffers(self, schedule: Schedule, made: Sequence[PassProduct]) -> None:
        super().place_buffers(schedule, made)
        if len(schedule.passes()) > 1:  # what arrived is read by later passes after its sources have changed
            for v in self.arrived:
                self.save(v)
        for name, blocks in (("d_a", self.gradient.a), ("d_rest", self.places.rest)):
            for k, v in enumerate(blocks):
                if not self.is_leaf(v):
                    self.buffers.setdefault(v, Spot(f"{name} + {self.sizes.of(blocks[:k])}"))
        for i, k, _ in self.carried:
            self.take_rows(f"carry{i}_{k}", self.sizes.of(self.program.states[i][k]))
        for p, inputs in self.joined.items():
            self.take_rows(f"x{p}", self.sizes.of(inputs))

    def product_text(self, made: PassProduct) -> list[str]:
        p, depth = made.number, self.sizes.of(made.inputs)
        place = self.places.gradients(made.inputs)
        x, row = self.source(place, {"d_a": "d_a_rows", "d_rest": "d_rest_rows"}) or (f"x{p}", depth)
        given = f"{x}, running - low, {depth}, {row}"
        if self.is_square(p):
            return [f"NAME(product_split)({given}, &split{p}, z{p});"]
        return [f"NAME(product)({given}, w{p}, {self.sizes.of(made.outputs)}, z{p});"]

    def model_text(self) -> list[str]:
        lines = [self.row(f"first{i}", f"s0_{i}", "m * B", b) for i, b in enumerate(self.program.states)]
        lines += [self.row(f"p{i}", f"p{i}", "m", b) for i, b in enumerate(self.program.parameters) if b]
        for k in range(len(self.places.added)):
            before = self.sizes.of(self.places.added[:k])
            lines.append(f"double *sums{k} = {self.tensor('sums', 'double')} + job->models * B * {before};")
        for m in self.made():
            row = f"NAME(padded)({self.sizes.of(m.outputs)})"
            lines.append(f"memset(z{m.number}, 0, rows * {row} * sizeof(REAL));")
        for i, k, _ in self.carried:
            row = self.sizes.of(self.program.states[i][k])
            lines.append(f"memset(carry{i}_{k}, 0, rows * {row} * sizeof(REAL));")
        return lines

    def step_text(self) -> list[str]:
        lines = [
            self.row("a_rows", "a", "at", self.program.a),
            self.row("d_a_rows", "d_a", "at", self.program.a, "REAL"),
        ]
        return [
            *lines,
            *([self.row("d_rest_rows", "d_rest", "at", self.places.rest, "REAL")] if self.places.rest else []),
        ]

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
        if self.places.marks:
            lines.append(self.row("marks", "marks", "(at + b)", self.places.marks, "const int8_t"))
        return lines

    def tap_text(self) -> list[str]:
        """∂L/∂h_t, where a call asks for it."""
        row = self.gradient.by_new[0]
        lines = [f"if ({self.tensor('tap')}) {{", f"    {self.row('tap', 'tap', '(at + b)', row, 'REAL')}"]
        for k, v in enumerate(row):
            arrives = (self.leaf(v, lambda spot: f"({spot.address})") or "0").replace("[]", "[j]")
            each = f"for (int64_t j = 0; j < {self.sizes.of(v)}; j++)"
            lines.append(f"    {each} tap[{self.sizes.of(row[:k])} + j] = {arrives};")
        return [*lines, "}"]

    def model_end(self) -> list[str]:
        lines = ["for (int64_t b = low; b < high; b++) {"]
        for i, blocks in enumerate(self.program.states):
            lines.append(f"    {self.row(f'd_s0_{i}', f'd_s0_{i}', '(m * B + b)', blocks, 'REAL')}")
            for k, v in enumerate(blocks):
                total = " + ".join(f"({spot.address})[j]" for spot in self._left(i, k)) or "0"
                each = f"for (int64_t j = 0; j < {self.sizes.of(v)}; j++)"
                lines.append(f"    {each} d_s0_{i}[{self.sizes.of(blocks[:k])} + j] = {total};")
        return [*lines, "}"]

    def written(self) -> list[tuple[str, str, str]]:
        listed = [("d_a", self.program.a), ("tap", self.program.states[0]), ("d_rest", self.places.rest)]
        return [(name, "REAL", self.sizes.of(blocks)) for name, blocks in listed if blocks]
