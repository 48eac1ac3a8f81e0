"""The forward pass of a step as C."""

from __future__ import annotations

from collections.abc import Sequence

from evenflow.step.emit_c.c_direction import CDirection
from evenflow.step.emit_c.c_loops import Spot
from evenflow.step.graph import Node
from evenflow.step.program import flat
from evenflow.step.schedule import PassProduct, Schedule


class CForward(CDirection):
    """Writes all states, and the numbers and marks that the backward pass reads."""

    def arrays(self) -> list[tuple[str, Sequence[Node], str]]:
        found = [(f"before{i}", blocks, "REAL") for i, blocks in enumerate(self.program.states)]
        return [*found, ("a", self.program.a, "REAL")]

    def results_arrays(self) -> list[tuple[str, Sequence[Node], str]]:
        found = [(f"s{i}", blocks, "REAL") for i, blocks in enumerate(self.program.new)]
        return [*found, ("kept", self.places.kept, "REAL"), ("marks", self.places.marks, "int8_t")]

    def made(self) -> list[PassProduct]:
        return [PassProduct(p, x.inputs, tuple(flat(x.outputs))) for p, x in enumerate(self.program.products)]

    def targets(self) -> list[Node]:
        return [*flat(self.program.new), *self.places.kept, *self.places.marks]

    def stores(self) -> dict[Node, list[Spot]]:
        found: dict[Node, list[Spot]] = {}
        for name, blocks, kind in self.results_arrays():
            for k, v in enumerate(blocks):
                found.setdefault(v, []).append(Spot(f"{name} + {self.sizes.of(blocks[:k])}", kind))
        for v, spot in self.buffers.items():
            found.setdefault(v, [spot])
        return found

    def place_results(self, made: Sequence[PassProduct]) -> None:
        for p, product in enumerate(self.program.products):
            depth = self.sizes.of(product.inputs)
            for n, (view, out) in enumerate(zip(product.views, product.outputs, strict=True)):
                name, columns = f"{p}_{n}", f"columns{view.matrix}"
                down, across = (columns, "1") if view.transposed else ("1", columns)
                if self.is_square(p):
                    self.take(f"split{name}", depth)
                    self.packed.append(
                        f"NAME(pack_split)({self.matrix(p, n)}, {depth}, {down}, {across}, &split{name});"
                    )
                else:
                    height = self.sizes.of(out)
                    self.take(f"w{name}", f"{depth} * NAME(padded)({height})")
                    sizes = f"{depth}, {height}, {down}, {across}"
                    self.packed.append(f"NAME(pack)({self.matrix(p, n)}, {sizes}, w{name}, {depth});")
                self.place_result(f"z{name}", out)

    def place_buffers(self, schedule: Schedule, made: Sequence[PassProduct]) -> None:
        super().place_buffers(schedule, made)
        for name, blocks, kind in self.results_arrays():
            for k, v in enumerate(blocks):
                if not self.is_leaf(v):
                    self.buffers.setdefault(v, Spot(f"{name} + {self.sizes.of(blocks[:k])}", kind))
        for m in made:
            for v in m.inputs:
                if not self.is_leaf(v) and v not in self.results:
                    self.save(v)
            if self._direct(m) is None:
                self.take_rows(f"x{m.number}", self.sizes.of(m.inputs))

    def _direct(self, made: PassProduct) -> tuple[str, str] | None:
        states = range(len(self.program.states))
        pointers = {f"before{i}": f"from{i}" for i in states} | {f"state{i}": f"to{i}" for i in states}
        return self.source(self.places.inputs(made.number), pointers | {"a": "a_rows", "kept": "kept_rows"})

    def product_text(self, made: PassProduct) -> list[str]:
        p, depth = made.number, self.sizes.of(made.inputs)
        direct = self._direct(made)
        x, row = direct or (f"x{p}", depth)
        lines = [] if direct else self._joined(made)
        for n, out in enumerate(self.program.products[p].outputs):
            given = f"{x}, running - low, {depth}, {row}"
            if self.is_square(p):
                lines.append(f"NAME(product_split)({given}, &split{p}_{n}, z{p}_{n});")
            else:
                lines.append(f"NAME(product)({given}, w{p}_{n}, {self.sizes.of(out)}, z{p}_{n});")
        return lines

    def _joined(self, made: PassProduct) -> list[str]:
        """Bring the inputs of a product together."""
        row, copies = self.sizes.of(made.inputs), []
        for k, v in enumerate(made.inputs):
            spot = self.streams.get(v) or self.buffers.get(v) or self.results[v]
            to = f"x{made.number} + (b - low) * {row} + {self.sizes.of(made.inputs[:k])}"
            copies.append(f"memcpy({to}, {spot.address}, {self.sizes.of(v)} * sizeof(REAL));")
        inside = [*self.row_text(), *copies]
        return ["for (int64_t b = low; b < running; b++) {", *(f"    {line}" for line in inside), "}"]

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
        return lines

    def step_end(self) -> list[str]:
        return [f"from{i} = to{i};" for i in range(len(self.program.states))]

    def written(self) -> list[tuple[str, str, str]]:
        return [(name, kind, self.sizes.of(blocks)) for name, blocks, kind in self.results_arrays() if blocks]
