"""A step's passes over all time steps as C, around the register-tiled product of ``scan/cpu``.

Each thread owns some rows of the batch for all steps. A step is a few phases: products of all its rows, then passes over
the units of each row, one loop for each width of blocks. The text is the same for every size; a call brings the widths.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from evenflow.step.graph import Node
from evenflow.step.places import Place, Places, layout
from evenflow.step.program import flat
from evenflow.step.schedule import Made, Pass, Schedule

INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
MASKS = {"positive": "{0} <= 0 ? 0 : 1", "less": "{0} < {1} ? 1 : 0", "less_equal": "{0} <= {1} ? 1 : 0"}
MASKS |= {"equal": "{0} == {1} ? 1 : 0", "sign": "({0} > 0) - ({0} < 0)"}
CHOICES = {
    "relu": "{0} <= 0 ? 0 : {0}",  # a comparison with NaN is false: NaN passes
    "abs": "{0} < 0 ? -{0} : {0}",
    "max": "{0} > {1} || {0} != {0} ? {0} : {1}",
    "min": "{0} < {1} || {0} != {0} ? {0} : {1}",
    "where": "{0} != 0 ? {1} : {2}",
    "neg": "-{0}",
    "detach": "{0}",
    "wide": "{0}",
}


class Sizes:
    """Widths as text: ``n0``, ``n1``, ... in the order of a program's layout; 1 where a block is one number per row."""

    def __init__(self, widths: Sequence[int]) -> None:
        self.widths = widths
        self.rowwise = (
            None if set(widths) == {1} else 1
        )  # with units of one number alone there is nothing to tell apart

    def of(self, nodes: Sequence[Node] | Node) -> str:
        """Numbers in some blocks side by side."""
        several = [nodes] if isinstance(nodes, Node) else nodes
        counts: dict[str, int] = {}
        for v in several:
            name = self.name(v.width)
            counts[name] = counts.get(name, 0) + 1
        parts = [name if n == 1 else str(n) if name == "1" else f"{n} * {name}" for name, n in counts.items()]
        return "0" if not parts else parts[0] if len(parts) == 1 and " " not in parts[0] else f"({' + '.join(parts)})"

    def name(self, width: int) -> str:
        return "1" if width == self.rowwise else f"n{self.widths.index(width)}"


class Tensors:
    """The tensors of a call in order, and the numbers: what the struct of a call holds."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)

    def at(self, name: str) -> str:
        return f"job->tensor[{self.names.index(name)}]"


def tensor_names(places: Places, backward: bool) -> list[str]:
    """What a call of one direction takes and writes, in order."""
    program = places.program
    names = ["a", *(f"s0_{i}" for i in range(len(program.states))), *(f"w{i}" for i in range(len(program.matrices)))]
    names += [f"p{i}" for i in range(len(program.parameters))]
    names += [*(f"s{i}" for i in range(len(program.states))), "kept", "marks"]
    if backward:
        names += [*(f"g{i}" for i in range(len(program.states))), "d_a", "d_rest"]
        names += [*(f"d_s0_{i}" for i in range(len(program.states))), "tap", "sums"]
    return names


def number_names(places: Places) -> list[str]:
    """The numbers of a call beyond its sizes: widths, then of each matrix its columns and size, then where views begin."""
    names = [f"n{i}" for i in range(len(layout(places.program)))]
    for i in range(len(places.program.matrices)):
        names += [f"columns{i}", f"size{i}"]
    return [*names, *(f"view{p}_{n}" for p, n, _ in places.views)]


class _Direction:
    """What both passes have in common; one of them for each."""

    backward = False

    def __init__(self, places: Places) -> None:
        self.places, self.program, self.gradient = places, places.program, places.gradient
        self.sizes = Sizes(layout(self.program))
        self.tensors = Tensors(tensor_names(places, self.backward))
        self.scratch: list[tuple[str, str, str]] = []  # name, numbers, numbers of a row (for those that have rows)
        self.buffers: dict[Node, tuple[str, str]] = {}  # nodes that a pass stores for what comes later in the step
        self.matrices: list[str] = []
        self.packed: list[str] = []

    # --- what is there at the start of a step

    @cached_property
    def streams(self) -> dict[Node, tuple[str, str]]:
        """Leaves in arrays: pointer to their row, and their place in it."""
        found: dict[Node, tuple[str, str]] = {}
        for i, blocks in enumerate(self.program.states):
            self._row(found, f"before{i}", blocks)
        self._row(found, "a", self.program.a)
        return found

    def _row(self, found: dict[Node, tuple[str, str]], name: str, blocks: Sequence[Node]) -> None:
        for k, v in enumerate(blocks):
            found.setdefault(v, (name, self.sizes.of(blocks[:k])))

    @cached_property
    def parameters(self) -> dict[Node, str]:
        found: dict[Node, str] = {}
        for i, blocks in enumerate(self.program.parameters):
            for k, v in enumerate(blocks):
                found[v] = f"p{i} + {self.sizes.of(blocks[:k])}"
        return found

    def is_leaf(self, v: Node) -> bool:
        return v.op == "const" or v in self.streams or v in self.parameters

    # --- products

    def made(self) -> list[Made]:
        raise NotImplementedError

    def product_text(self, made: Made) -> list[str]:
        raise NotImplementedError

    def take(self, name: str, numbers: str) -> None:
        self.scratch.append((name, numbers, ""))

    def take_rows(self, name: str, row: str) -> None:
        self.scratch.append((name, f"rows * {row}", row))

    # --- one pass over the units of a row

    def stores(self) -> dict[Node, list[str]]:
        """Where computed nodes are stored: pointers to their place in the row."""
        raise NotImplementedError

    def pass_text(self, each: Pass, schedule: Schedule) -> list[str]:
        stored = self.stores()
        roots = list(dict.fromkeys([*each.roots, *each.saved]))
        known = {v: None for v in self.buffers if v in self.done}
        computed = schedule.computed(each, known)
        pointers: dict[str, str] = {}  # text of the place: name in this pass
        declared: list[str] = []

        def pointer(place: str, kind: str = "const REAL") -> str:
            if place not in pointers:
                pointers[place] = f"q{len(pointers)}"
                declared.append(f"{kind} *restrict {pointers[place]} = {place};")
            return pointers[place]

        def load(v: Node, j: str) -> str | None:
            at = "0" if self.sizes.name(v.width) == "1" else j
            if v.op == "const":
                return f"(REAL){v.args[0]!r}".replace("inf", "INFINITY").replace("nan", "NAN")
            if v in self.buffers and v in self.done:
                return f"{pointer(self.buffers[v][0], self.buffers[v][1])}[{at}]"
            if (special := self.special(v, pointer, at)) is not None:
                return special
            if v in self.streams:
                name, place = self.streams[v]
                return f"{pointer(f'{name} + {place}')}[{at}]"
            if v in self.parameters:
                return f"{pointer(self.parameters[v])}[{at}]"
            if v in self.results:
                return f"{pointer(self.results[v])}[{at}]"
            if v.op in ("sum", "amax"):
                return f"{self.sum_name(v)}[b - low]"
            return None

        widths = [w for w in self.sizes.widths if self.sizes.name(w) != "1"]
        text: list[str] = []
        names: dict[Node, str] = {}

        def statements(width: int | None, indent: str) -> list[str]:
            lines: list[str] = []

            def value(v: Node) -> str:
                if v not in names:
                    loaded = load(v, "j")
                    names[v] = f"v{v.id}"
                    lines.append(
                        f"{indent}const REAL v{v.id} = {loaded or expression(v, [value(u) for u in v.operands])};"
                    )
                return names[v]

            wanted = [v for v in roots if self.in_loop(v) == width]
            summed = [v for v in each.sums if self.in_loop(v.args[0]) == width]
            for v in [*(v for v in computed if self.in_loop(v) == width), *wanted]:
                value(v)  # all of them before any is stored, where another may be read from
            for v in wanted:
                for place, kind in stored.get(v, []):
                    at = "j" if width is not None else "0"
                    cast = "(int8_t)" if kind == "int8_t" else ""
                    sign = "+=" if kind == "double" else "="
                    lines.append(f"{indent}{pointer(place, kind)}[{at}] {sign} {cast}{value(v)};")
            for v in summed:
                name = self.sum_local(v)
                x = value(v.args[0])
                lines.append(
                    f"{indent}{name} = {name} > {x} || {name} != {name} ? {name} : {x};"
                    if v.op == "amax"
                    else f"{indent}{name} += {x};"
                )
            return lines

        before = statements(None, "                    ")
        text += before
        rowwise = dict(names)
        for width in widths:
            names.clear()
            names.update(rowwise)
            body = statements(width, "                        ")
            if body:
                starts = [
                    f"                    REAL {self.sum_local(v)} = {'-INFINITY' if v.op == 'amax' else '0'};"
                    for v in each.sums
                    if self.in_loop(v.args[0]) == width
                ]
                ends = [
                    f"                    {self.sum_name(v)}[b - low] = {self.sum_local(v)};"
                    for v in each.sums
                    if self.in_loop(v.args[0]) == width
                ]
                text += [
                    *starts,
                    "                    EACH",
                    f"                    for (int64_t j = 0; j < {self.sizes.name(width)}; j++) {{",
                    *body,
                    "                    }",
                    *ends,
                ]
        self.done |= {*each.roots, *each.saved}
        return ["                {", *(f"                    {line}" for line in declared), *text, "                }"]

    def in_loop(self, v: Node) -> int | None:
        """The width of the loop that a node belongs to; None for a number per row."""
        return None if self.sizes.name(v.width) == "1" else v.width

    def special(self, v: Node, pointer: object, at: str) -> str | None:
        return None

    def sum_name(self, v: Node) -> str:
        return f"sum{v.id}"

    def sum_local(self, v: Node) -> str:
        return f"total{v.id}"

    # --- the whole

    def targets(self) -> list[Node]:
        raise NotImplementedError

    def text(self) -> str:
        made = self.made()
        schedule = Schedule(made, self.targets(), self.is_leaf)
        self.done: set[Node] = set()
        self.results = self.result_places(made)
        self.prepare(schedule, made)
        for v in [s for each in schedule.passes() for s in each.sums]:
            self.take(self.sum_name(v), "rows")
        body: list[str] = []
        by_number = {m.number: m for m in made}
        first = next((phase for phase in schedule.phases if phase.passes), None)
        for phase in schedule.phases:
            for p in phase.products:
                body += [f"            {line}" for line in self.product_text(by_number[p])]
            if phase.passes:
                body.append("            for (int64_t b = low; b < running; b++) {")
                body += [f"                {line}" for line in self.row_text()]
                if phase is first:
                    body += [f"                {line}" for line in self.tap_text()]
                for each in phase.passes:
                    body += self.pass_text(each, schedule)
                body.append("            }")
        return self.function(body)

    def result_places(self, made: Sequence[Made]) -> dict[Node, str]:
        """Where products leave their results."""
        raise NotImplementedError

    def prepare(self, schedule: Schedule, made: Sequence[Made]) -> None:
        """Buffers for what later passes read."""
        saved = [v for each in schedule.passes() for v in each.saved]
        for v in saved:
            self.take_rows(f"saved{v.id}", self.sizes.of(v))
            self.buffers[v] = (f"saved{v.id} + (b - low) * {self.sizes.of(v)}", "REAL")

    def row_text(self) -> list[str]:
        raise NotImplementedError

    def tap_text(self) -> list[str]:
        return []

    def function(self, body: list[str]) -> str:
        name = "backward" if self.backward else "forward"
        sizes = [f"const int64_t {n} = job->number[{k}];" for k, n in enumerate(number_names(self.places))]
        takes, needed = [], []
        for which, count, _ in self.scratch:
            if which.startswith("split"):
                takes.append(f"NAME(split) {which} = NAME(take_split)(&scratch, {count});")
                needed.append(f"NAME(split_scratch)({count})")
            else:
                takes.append(f"REAL *{which} = NAME(take)(&scratch, {count});")
                needed.append(count)
        start, steps = self.around()
        lines = [
            f"static void NAME({name}_rows)(const void *argument, int64_t first, int64_t last, char *scratch) {{",
            "    const struct job *job = argument;",
            "    const int64_t B = job->batch, T = job->steps, rows = last - first;",
            *(f"    {s}" for s in sizes),
            *(f"    {t}" for t in takes),
            "    for (int64_t m = first / B; m * B < last; m++) {",
            "        const int64_t low = first > m * B ? first - m * B : 0, high = last < (m + 1) * B ? last - m * B : B;",
            *(f"        {s}" for s in start),
            *(f"        {s}" for s in self.packed),
            f"        {steps}",
            "            const int64_t running = !job->batch_sizes || job->batch_sizes[t] > high ? high : job->batch_sizes[t];",
            "            if (running <= low) continue;",
            "            const int64_t at = (m * T + t) * B;",
            *(f"            {s}" for s in self.step_start()),
            *body,
            *(f"            {s}" for s in self.step_end()),
            "        }",
            *(f"        {s}" for s in self.end()),
            "    }",
            "}",
            "",
            f"int NAME({name})(const struct job *job) {{",
            "    const int64_t B = job->batch, T = job->steps;",
            *(f"    {s}" for s in sizes),
            "    int64_t bounds[MOST_THREADS + 1];",
            f"    const int64_t threads = worthwhile(job->threads, (double)job->models * T * B * ({self.work()}));",
            "    split_rows(job->models, B, T, job->batch_sizes, threads, bounds);",
            "    const int64_t rows = longest(bounds, threads);",
            *(
                f"    expect({self.tensors.at(n)}, sizeof({k}) * job->models * T * B * {c});"
                for n, k, c in self.written()
            ),
            f"    return parallel(NAME({name}_rows), job, bounds, threads, ({' + '.join(needed) or '0'}) * sizeof(REAL) + {64 * (3 * len(self.scratch) + 3)});",
            "}",
        ]
        return "\n".join(lines) + "\n"

    def around(self) -> tuple[list[str], str]:
        raise NotImplementedError

    def step_start(self) -> list[str]:
        return []

    def step_end(self) -> list[str]:
        return []

    def end(self) -> list[str]:
        return []

    def written(self) -> list[tuple[str, str, str]]:
        raise NotImplementedError

    def work(self) -> str:
        """Multiplications of one row and step."""
        parts = [f"{self.sizes.of(p.inputs)} * {self.sizes.of(flat(p.outputs))}" for p in self.program.products]
        return " + ".join([self.sizes.of(flat(self.program.states)), *parts])

    def is_square(self, p: int) -> bool:
        """Whether a product is of one whole square matrix, whose large entries are then added last."""
        product = self.program.products[p]
        view = product.views[0]
        shape = self.program.matrices[view.matrix]
        whole = len(product.views) == 1 and (view.rows, view.columns) == shape
        return whole and not view.transposed and self.sizes.of(product.inputs) == self.sizes.of(product.outputs[0])

    def source(self, place: Place | None, pointer: Mapping[str, str]) -> tuple[str, str] | None:
        """Pointer to a product's inputs of row `low`, and from row to row."""
        if place is None:
            return None
        row = self.sizes.of(place.row)
        name = pointer.get(f"{place.array}{place.index}" if place.array in ("before", "state") else place.array)
        return None if name is None else (f"{name} + low * {row} + {self.sizes.of(place.skipped)}", row)


def expression(v: Node, x: Sequence[str]) -> str:
    if v.op in INFIX:
        return f"{x[0]} {INFIX[v.op]} {x[1]}"
    if v.op in MASKS:
        return f"(REAL)({MASKS[v.op].format(*x)})"
    if v.op in CHOICES:
        return CHOICES[v.op].format(*x)
    return f"NAME({v.op})({x[0]})"


class Forward(_Direction):
    """All states, and what is kept for the backward pass."""

    def made(self) -> list[Made]:
        return [Made(p, x.inputs, tuple(flat(x.outputs))) for p, x in enumerate(self.program.products)]

    def targets(self) -> list[Node]:
        return [*flat(self.program.new), *self.places.kept, *self.places.marks]

    def stores(self) -> dict[Node, list[tuple[str, str]]]:
        found: dict[Node, list[tuple[str, str]]] = {}
        rows = [(f"s{i}", blocks, "REAL") for i, blocks in enumerate(self.program.new)]
        rows += [("kept", self.places.kept, "REAL"), ("marks", self.places.marks, "int8_t")]
        for name, blocks, kind in rows:
            for k, v in enumerate(blocks):
                found.setdefault(v, []).append((f"{name} + {self.sizes.of(blocks[:k])}", kind))
        for v, (place, kind) in self.buffers.items():
            if v not in found:
                found[v] = [(place, kind)]
        return found

    def prepare(self, schedule: Schedule, made: Sequence[Made]) -> None:
        super().prepare(schedule, made)
        for name, blocks, kind in self._arrays():
            for k, v in enumerate(blocks):
                if not self.is_leaf(v):
                    self.buffers.setdefault(v, (f"{name} + {self.sizes.of(blocks[:k])}", kind))
        for m in made:
            for v in m.inputs:
                if v not in self.buffers and not self.is_leaf(v) and v not in self.results:
                    self.take_rows(f"saved{v.id}", self.sizes.of(v))
                    self.buffers[v] = (f"saved{v.id} + (b - low) * {self.sizes.of(v)}", "REAL")
            if self._direct(m) is None:
                self.take_rows(f"x{m.number}", self.sizes.of(m.inputs))

    def _arrays(self) -> list[tuple[str, Sequence[Node], str]]:
        rows: list[tuple[str, Sequence[Node], str]] = [(f"s{i}", b, "REAL") for i, b in enumerate(self.program.new)]
        return [*rows, ("kept", self.places.kept, "REAL"), ("marks", self.places.marks, "int8_t")]

    def result_places(self, made: Sequence[Made]) -> dict[Node, str]:
        found = {}
        for p, product in enumerate(self.program.products):
            square = self.is_square(p)
            for n, (view, out) in enumerate(zip(product.views, product.outputs, strict=True)):
                depth, height = self.sizes.of(product.inputs), self.sizes.of(out)
                z, w = f"z{p}_{n}", f"w{p}_{n}"
                down, across = (f"columns{view.matrix}", "1") if view.transposed else ("1", f"columns{view.matrix}")
                source = f"(const REAL *){self.tensors.at(f'w{view.matrix}')} + m * size{view.matrix} + view{p}_{n}"
                if square:
                    self.scratch.append((f"split{w}", depth, ""))
                    self.packed.append(f"NAME(pack_split)({source}, {depth}, {down}, {across}, &split{w});")
                else:
                    self.take(w, f"{depth} * NAME(padded)({height})")
                    self.packed.append(f"NAME(pack)({source}, {depth}, {height}, {down}, {across}, {w}, {depth});")
                self.take_rows(z, f"NAME(padded)({height})")
                for k, v in enumerate(out):
                    found[v] = f"{z} + (b - low) * NAME(padded)({height}) + {self.sizes.of(out[:k])}"
        return found

    def _direct(self, made: Made) -> tuple[str, str] | None:
        pointer = {f"before{i}": f"from{i}" for i in range(len(self.program.states))}
        pointer |= {f"state{i}": f"to{i}" for i in range(len(self.program.states))}
        return self.source(self.places.inputs(made.number), pointer | {"a": "a_rows", "kept": "kept_rows"})

    def product_text(self, made: Made) -> list[str]:
        product, p = self.program.products[made.number], made.number
        lines, direct = [], self._direct(made)
        if direct is None:
            row, parts = self.sizes.of(product.inputs), []
            for k, v in enumerate(product.inputs):
                place = self._stored(v)
                parts.append(
                    f"memcpy(x{p} + (b - low) * {row} + {self.sizes.of(product.inputs[:k])}, {place}, {self.sizes.of(v)} * sizeof(REAL));"
                )
            lines += [
                "for (int64_t b = low; b < running; b++) {",
                *(f"    {s}" for s in self.row_text()),
                *(f"    {s}" for s in parts),
                "}",
            ]
            direct = (f"x{p}", row)
        for n, out in enumerate(product.outputs):
            if self.is_square(p):
                lines.append(
                    f"NAME(product_split)({direct[0]}, running - low, {self.sizes.of(product.inputs)}, {direct[1]}, &splitw{p}_{n}, z{p}_{n});"
                )
            else:
                lines.append(
                    f"NAME(product)({direct[0]}, running - low, {self.sizes.of(product.inputs)}, {direct[1]}, w{p}_{n}, {self.sizes.of(out)}, z{p}_{n});"
                )
        return lines

    def _stored(self, v: Node) -> str:
        if v in self.streams:
            return " + ".join(self.streams[v])
        return self.buffers[v][0] if v in self.buffers else self.results[v]

    def around(self) -> tuple[list[str], str]:
        lines = [
            f"const REAL *from{i} = (const REAL *){self.tensors.at(f's0_{i}')} + m * B * {self.sizes.of(b)};"
            for i, b in enumerate(self.program.states)
        ]
        lines += [
            f"const REAL *p{i} = (const REAL *){self.tensors.at(f'p{i}')} + m * {self.sizes.of(b)};"
            for i, b in enumerate(self.program.parameters)
            if b
        ]
        return lines, "for (int64_t t = 0; t < T; t++) {"

    def step_start(self) -> list[str]:
        lines = [f"const REAL *a_rows = (const REAL *){self.tensors.at('a')} + at * {self.sizes.of(self.program.a)};"]
        for i, blocks in enumerate(self.program.new):
            lines.append(f"REAL *to{i} = (REAL *){self.tensors.at(f's{i}')} + at * {self.sizes.of(blocks)};")
        if self.places.kept:
            lines.append(
                f"REAL *kept_rows = (REAL *){self.tensors.at('kept')} + at * {self.sizes.of(self.places.kept)};"
            )
        return lines

    def row_text(self) -> list[str]:
        lines = [f"const REAL *a = a_rows + b * {self.sizes.of(self.program.a)};"]
        for i, blocks in enumerate(self.program.states):
            row = self.sizes.of(blocks)
            lines.append(f"const REAL *before{i} = from{i} + b * {row};")
            lines.append(f"REAL *s{i} = to{i} + b * {row};")
        if self.places.kept:
            lines.append(f"REAL *kept = kept_rows + b * {self.sizes.of(self.places.kept)};")
        if self.places.marks:
            lines.append(
                f"int8_t *marks = (int8_t *){self.tensors.at('marks')} + (at + b) * {self.sizes.of(self.places.marks)};"
            )
        return lines

    def step_end(self) -> list[str]:
        return [f"from{i} = to{i};" for i in range(len(self.program.states))]

    def written(self) -> list[tuple[str, str, str]]:
        return [(name, kind, self.sizes.of(blocks)) for name, blocks, kind in self._arrays() if blocks]


class Backward(_Direction):
    """The gradients by a, by outputs of products, by the first states and by parameters, from the last step to the first."""

    backward = True

    @cached_property
    def streams(self) -> dict[Node, tuple[str, str]]:
        found: dict[Node, tuple[str, str]] = {}
        for i, blocks in enumerate(self.program.states):
            self._row(found, f"before{i}", blocks)
        for i, blocks in enumerate(self.program.new):
            self._row(found, f"s{i}", blocks)
        self._row(found, "kept", self.places.kept)
        self._row(found, "a", self.program.a)
        return found

    @cached_property
    def byte_marks(self) -> dict[Node, str]:
        return {v: f"marks + {self.sizes.of(self.places.marks[:k])}" for k, v in enumerate(self.places.marks)}

    @cached_property
    def by_new(self) -> dict[Node, tuple[int, int]]:
        return {v: (i, k) for i, blocks in enumerate(self.gradient.by_new) for k, v in enumerate(blocks)}

    def is_leaf(self, v: Node) -> bool:
        return super().is_leaf(v) or v in self.byte_marks or v in self.by_new

    def special(self, v: Node, pointer, at: str) -> str | None:  # type: ignore[no-untyped-def,override]
        if v in self.byte_marks:
            return f"(REAL){pointer(self.byte_marks[v], 'const int8_t')}[{at}]"
        if v not in self.by_new:
            return None
        i, k = self.by_new[v]
        row = self.gradient.by_new[i]
        parts = [f"{pointer(f'g{i} + {self.sizes.of(row[:k])}')}[{at}]"]
        if self.places.carried[i][k] is not None:
            parts.append(f"{pointer(self.carry(i, k), 'REAL')}[{at}]")
        parts += [f"{pointer(self.results[d])}[{at}]" for d in self.places.deferred[i][k]]
        return " + ".join(parts)

    def carry(self, i: int, k: int) -> str:
        return f"carry{i}_{k} + (b - low) * {self.sizes.of(self.program.states[i][k])}"

    def made(self) -> list[Made]:
        found = []
        for p, views in enumerate(self.gradient.outputs):
            if views and self.gradient.returned[p]:
                found.append(Made(p, tuple(flat(views)), self.gradient.returned[p]))
        return found

    def targets(self) -> list[Node]:
        carried = [v for blocks in self.places.carried for v in blocks if v is not None]
        wanted = [*self.gradient.a, *self.places.rest, *carried, *self.added]
        several = self._several_passes(wanted)
        return [*(self.by_new if several else []), *wanted]

    @cached_property
    def added(self) -> list[Node]:
        """What is added up for the gradients by parameters, unless it lies among the stored gradients."""
        listed = [v for blocks in self.places.parameters for v in blocks if not _zero(v)]
        return list(dict.fromkeys(v for v in listed if self.places.gradients([v]) is None))

    def _several_passes(self, wanted: Sequence[Node]) -> bool:
        return len(Schedule(self.made(), wanted, self.is_leaf).passes()) > 1

    def stores(self) -> dict[Node, list[tuple[str, str]]]:
        found: dict[Node, list[tuple[str, str]]] = {}
        for name, blocks in (("d_a", self.gradient.a), ("d_rest", self.places.rest)):
            for k, v in enumerate(blocks):
                found.setdefault(v, []).append((f"{name} + {self.sizes.of(blocks[:k])}", "REAL"))
        for p, place in self.inputs_buffered.items():
            for k, v in enumerate(place):
                found.setdefault(v, []).append(
                    (f"x{p} + (b - low) * {self.sizes.of(place)} + {self.sizes.of(place[:k])}", "REAL")
                )
        for i, blocks in enumerate(self.places.carried):
            for k, v in enumerate(blocks):
                if v is not None:
                    found.setdefault(v, []).append((self.carry(i, k), "REAL"))
        for k, v in enumerate(self.added):
            found.setdefault(v, []).append((f"sums{k} + (m * B + b) * {self.sizes.of(v)}", "double"))
        for v, (place, kind) in self.buffers.items():
            if place.startswith("saved"):
                found.setdefault(v, []).append((place, kind))
        return found

    def prepare(self, schedule: Schedule, made: Sequence[Made]) -> None:
        super().prepare(schedule, made)
        if len(schedule.passes()) > 1:  # what arrived is read by later passes after its sources have changed
            for v in self.by_new:
                self.take_rows(f"saved{v.id}", self.sizes.of(v))
                self.buffers[v] = (f"saved{v.id} + (b - low) * {self.sizes.of(v)}", "REAL")
        for name, blocks in (("d_a", self.gradient.a), ("d_rest", self.places.rest)):
            for k, v in enumerate(blocks):
                if v.op != "const" and not self.is_leaf(v):
                    self.buffers.setdefault(v, (f"{name} + {self.sizes.of(blocks[:k])}", "REAL"))
        for i, blocks in enumerate(self.places.carried):
            for k, v in enumerate(blocks):
                if v is not None:
                    self.take_rows(f"carry{i}_{k}", self.sizes.of(self.program.states[i][k]))
        for m in made:
            if m.number in self.inputs_buffered:
                self.take_rows(f"x{m.number}", self.sizes.of(m.inputs))

    @cached_property
    def inputs_buffered(self) -> dict[int, tuple[Node, ...]]:
        """Gradients by outputs that have to be brought together for their product."""
        return {m.number: m.inputs for m in self.made() if self.places.gradients(m.inputs) is None}

    def result_places(self, made: Sequence[Made]) -> dict[Node, str]:
        found = {}
        for m in made:
            p, product = m.number, self.program.products[m.number]
            depth, height = self.sizes.of(m.inputs), self.sizes.of(m.outputs)
            if self.is_square(p):
                self.scratch.append((f"splitw{p}", depth, ""))
            else:
                self.take(f"w{p}", f"{depth} * NAME(padded)({height})")
            at: list[Node] = []
            for n, (view, out) in enumerate(zip(product.views, product.outputs, strict=True)):
                down, across = ("1", f"columns{view.matrix}") if view.transposed else (f"columns{view.matrix}", "1")
                source = f"(const REAL *){self.tensors.at(f'w{view.matrix}')} + m * size{view.matrix} + view{p}_{n}"
                if self.is_square(p):
                    self.packed.append(f"NAME(pack_split)({source}, {depth}, {down}, {across}, &splitw{p});")
                else:
                    start = f"w{p} + {self.sizes.of(at)} * PANEL"
                    self.packed.append(
                        f"NAME(pack)({source}, {self.sizes.of(out)}, {height}, {down}, {across}, {start}, {depth});"
                    )
                at += out
            self.take_rows(f"z{p}", f"NAME(padded)({height})")
            for k, v in enumerate(m.outputs):
                found[v] = f"z{p} + (b - low) * NAME(padded)({height}) + {self.sizes.of(m.outputs[:k])}"
        return found

    def product_text(self, made: Made) -> list[str]:
        p = made.number
        place = self.places.gradients(made.inputs)
        direct = self.source(place, {"d_a": "d_a_rows", "d_rest": "d_rest_rows"})
        depth, height = self.sizes.of(made.inputs), self.sizes.of(made.outputs)
        x, row = direct or (f"x{p}", depth)
        if self.is_square(p):
            return [f"NAME(product_split)({x}, running - low, {depth}, {row}, &splitw{p}, z{p});"]
        return [f"NAME(product)({x}, running - low, {depth}, {row}, w{p}, {height}, z{p});"]

    def around(self) -> tuple[list[str], str]:
        lines = []
        for i, blocks in enumerate(self.program.states):
            row = self.sizes.of(blocks)
            lines.append(f"const REAL *first{i} = (const REAL *){self.tensors.at(f's0_{i}')} + m * B * {row};")
        lines += [
            f"const REAL *p{i} = (const REAL *){self.tensors.at(f'p{i}')} + m * {self.sizes.of(b)};"
            for i, b in enumerate(self.program.parameters)
            if b
        ]
        offset: list[str] = ["0"]
        for k, v in enumerate(self.added):
            lines.append(
                f"double *sums{k} = (double *){self.tensors.at('sums')} + job->models * B * ({' + '.join(offset)});"
            )
            offset.append(self.sizes.of(v))
        for m in self.made():
            height = self.sizes.of(m.outputs)
            lines.append(f"memset(z{m.number}, 0, rows * NAME(padded)({height}) * sizeof(REAL));")
        for i, blocks in enumerate(self.places.carried):
            for k, v in enumerate(blocks):
                if v is not None:
                    size = self.sizes.of(self.program.states[i][k])
                    lines.append(f"memset(carry{i}_{k}, 0, rows * {size} * sizeof(REAL));")
        return lines, "for (int64_t t = T - 1; t >= 0; t--) {"

    def step_start(self) -> list[str]:
        lines = [
            f"const REAL *a_rows = (const REAL *){self.tensors.at('a')} + at * {self.sizes.of(self.program.a)};",
            f"REAL *d_a_rows = (REAL *){self.tensors.at('d_a')} + at * {self.sizes.of(self.program.a)};",
        ]
        if self.places.rest:
            lines.append(
                f"REAL *d_rest_rows = (REAL *){self.tensors.at('d_rest')} + at * {self.sizes.of(self.places.rest)};"
            )
        return lines

    def row_text(self) -> list[str]:
        lines = [
            f"const REAL *a = a_rows + b * {self.sizes.of(self.program.a)};",
            f"REAL *d_a = d_a_rows + b * {self.sizes.of(self.program.a)};",
        ]
        if self.places.rest:
            lines.append(f"REAL *d_rest = d_rest_rows + b * {self.sizes.of(self.places.rest)};")
        for i, blocks in enumerate(self.program.states):
            row = self.sizes.of(blocks)
            lines.append(f"const REAL *s{i} = (const REAL *){self.tensors.at(f's{i}')} + (at + b) * {row};")
            lines.append(f"const REAL *before{i} = t ? s{i} - B * {row} : first{i} + b * {row};")
            lines.append(
                f"const REAL *g{i} = {self.tensors.at(f'g{i}')} ? (const REAL *){self.tensors.at(f'g{i}')} + (at + b) * {row} : nothing;"
            )
        if self.places.kept:
            lines.append(
                f"const REAL *kept = (const REAL *){self.tensors.at('kept')} + (at + b) * {self.sizes.of(self.places.kept)};"
            )
        if self.places.marks:
            lines.append(
                f"const int8_t *marks = (const int8_t *){self.tensors.at('marks')} + (at + b) * {self.sizes.of(self.places.marks)};"
            )
        return lines

    def tap_text(self) -> list[str]:
        """∂L/∂h_t, where a call asks for it."""
        row = self.gradient.by_new[0]
        lines = [
            f"if ({self.tensors.at('tap')}) {{",
            f"    REAL *tap = (REAL *){self.tensors.at('tap')} + (at + b) * {self.sizes.of(row)};",
        ]
        for k, v in enumerate(row):
            arrives = self.special(v, lambda place, _="": f"({place})", "j")
            lines.append(
                f"    for (int64_t j = 0; j < {self.sizes.of(v)}; j++) tap[{self.sizes.of(row[:k])} + j] = {arrives};"
            )
        return [*lines, "}"]

    def text(self) -> str:
        widest = " + ".join(self.sizes.of(b) for b in self.program.states)
        self.take("nothing", f"({widest})")
        self.packed.append(f"memset(nothing, 0, ({widest}) * sizeof(REAL));")
        return super().text()

    def end(self) -> list[str]:
        lines = ["for (int64_t b = low; b < high; b++) {"]
        for i, blocks in enumerate(self.program.states):
            row = self.sizes.of(blocks)
            lines.append(f"    REAL *d_s0_{i} = (REAL *){self.tensors.at(f'd_s0_{i}')} + (m * B + b) * {row};")
            for k, v in enumerate(blocks):
                parts = [f"({self.carry(i, k)})[j]"] if self.places.carried[i][k] is not None else []
                parts += [f"({self.results[d]})[j]" for d in self.places.deferred[i][k]]
                lines.append(
                    f"    for (int64_t j = 0; j < {self.sizes.of(v)}; j++) d_s0_{i}[{self.sizes.of(blocks[:k])} + j] = {' + '.join(parts) or '0'};"
                )
        return [*lines, "}"]

    def written(self) -> list[tuple[str, str, str]]:
        found = [("d_a", "REAL", self.sizes.of(self.program.a)), ("tap", "REAL", self.sizes.of(self.program.states[0]))]
        return [*found, *([("d_rest", "REAL", self.sizes.of(self.places.rest))] if self.places.rest else [])]


def _zero(v: Node) -> bool:
    return v.op == "const" and v.args[0] == 0


def text(places: Places, backward: bool) -> str:
    """One direction of a step, for ``REAL`` and ``NAME`` of `recurrence.c`."""
    return (Backward if backward else Forward)(places).text()
