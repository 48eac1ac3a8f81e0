"""A step's passes over all time steps as CUDA, on the tiles and exchanges of ``scan/cuda``.

A cluster of blocks runs some rows of the batch through all steps; every thread owns some units of a row and keeps their
numbers in registers. A product is a *stage*: its inputs are published to all blocks, and each thread gets the sums of
its units. Sums over units are products with ones, so that they need nothing of their own. A number per row is kept by
every thread that has a unit of the row.

A stage whose inputs the step before has published (the states, or going back the gradients that wait for the step
before) runs at the start of a step; the others publish and multiply in its middle.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from evenflow.step.graph import Node, View, ordered
from evenflow.step.places import Places
from evenflow.step.program import flat
from evenflow.step.schedule import Made, Schedule
from evenflow.step.trace import Untranslatable

INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
TEXTS = {
    "positive": "({0} <= 0.0f ? 0.0f : 1.0f)",
    "less": "({0} < {1} ? 1.0f : 0.0f)",
    "less_equal": "({0} <= {1} ? 1.0f : 0.0f)",
    "equal": "({0} == {1} ? 1.0f : 0.0f)",
    "relu": "({0} <= 0.0f ? 0.0f : {0})",  # a comparison with NaN is false: NaN passes
    "abs": "fabsf({0})",
    "max": "({0} > {1} || {0} != {0} ? {0} : {1})",
    "min": "({0} < {1} || {0} != {0} ? {0} : {1})",
    "where": "({0} != 0.0f ? {1} : {2})",
    "neg": "-{0}",
    "detach": "{0}",
    "wide": "{0}",
    "sign": "sign({0})",
    "sigmoid": "sigmoid({0})",
}


@dataclass(frozen=True)
class Stage:
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


class Direction:
    """One direction of a step: its stages, what it fetches, and its text."""

    backward = False

    def __init__(self, places: Places) -> None:
        self.places, self.program, self.gradient = places, places.program, places.gradient
        everything = ordered([*self.targets(), *self.program.nodes()])
        if any(v.op == "amax" for v in everything):
            raise Untranslatable("the largest number of a row", "the step", "there is no kernel for it on a GPU")
        self.width = max(v.width for v in everything)

    # --- what differs between the two

    def targets(self) -> list[Node]:
        raise NotImplementedError

    def _products(self) -> list[Made]:
        raise NotImplementedError

    @property
    def rows(self) -> list[tuple[str, tuple[Node, ...]]]:
        """Arrays that leaves are fetched from, with the blocks of a row."""
        raise NotImplementedError

    # --- stages

    @cached_property
    def made(self) -> list[Made]:
        products = self._products()
        inside = {v for m in products for v in m.outputs}
        sums = [v for v in ordered([*self.targets(), *(v for m in products for v in m.inputs)]) if v.op == "sum"]
        sums = [v for v in sums if v not in inside and not self.is_leaf(v)]
        return [*products, *(Made(1000 + n, (v.args[0],), (v,)) for n, v in enumerate(sums))]

    @cached_property
    def schedule(self) -> Schedule:
        return Schedule(self.made, self.targets(), self.is_leaf)

    @cached_property
    def stages(self) -> list[Stage]:
        """In the order in which a step runs them."""
        by_number = {m.number: m for m in self.made}
        order = [by_number[n] for phase in self.schedule.phases for n in phase.products]
        carried = [m for m in order if self.is_carried(m)]
        return [self._stage(m, m in carried) for m in [*carried, *(m for m in order if m not in carried)]]

    def is_carried(self, made: Made) -> bool:
        raise NotImplementedError

    def _stage(self, made: Made, carried: bool) -> Stage:
        views = self.views(made.number) if made.number < 1000 else ()
        return Stage(made.number if made.number < 1000 else None, made.inputs, made.outputs, views, carried)

    def views(self, p: int) -> tuple[tuple[View, tuple[Node, ...]], ...]:
        product = self.program.products[p]
        return tuple(zip(product.views, product.outputs, strict=True))

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """Numbers per unit that come out of each stage, and that go in."""
        return [(len(s.outputs), len(s.inputs)) for s in self.stages]

    # --- leaves

    @cached_property
    def parameters(self) -> dict[Node, tuple[int, int]]:
        """Parameter and offset of each block."""
        found = {}
        for i, blocks in enumerate(self.program.parameters):
            for k, v in enumerate(blocks):
                found[v] = (i, _size(blocks[:k]))
        return found

    @cached_property
    def fetched(self) -> dict[Node, tuple[str, int, int]]:
        """Leaves in arrays: which array, offset in a row, and size of a row."""
        found: dict[Node, tuple[str, int, int]] = {}
        for name, blocks in self.rows:
            for k, v in enumerate(blocks):
                found.setdefault(v, (name, _size(blocks[:k]), _size(blocks)))
        return found

    def in_registers(self) -> set[Node]:
        """Leaves that a thread has from the step before."""
        return set()

    def is_leaf(self, v: Node) -> bool:
        return v.op == "const" or v in self.fetched or v in self.parameters or v in self.in_registers()

    @cached_property
    def read(self) -> list[Node]:
        """The leaves that are read, in the order of their streams."""
        found: set[Node] = set()
        made = {v for m in self.made for v in m.outputs}
        stack = [*self.targets(), *(v for m in self.made for v in m.inputs)]
        seen = set()
        while stack:
            v = stack.pop()
            if v in seen:
                continue
            seen.add(v)
            if self.is_leaf(v):
                found.add(v)
            elif v not in made:
                stack.extend(v.operands)
        return sorted(found, key=lambda v: v.id)

    @cached_property
    def streams(self) -> list[Node]:
        held = self.in_registers()
        return [v for v in self.read if v in self.fetched and v not in held]

    @property
    def read_parameters(self) -> list[Node]:
        return [v for v in self.read if v in self.parameters]

    # --- text

    def is_rowwise(self, v: Node) -> bool:
        return v.width == 1 < self.width

    def has(self, v: Node) -> str:
        """Whether a thread has a number of this block for item q; a number per row is there for every unit."""
        return "true" if self.is_rowwise(v) else f"seat0.unit(q) < {v.width}"

    def streams_text(self, step: str, addresses: list[str], pointers: dict[str, str], there: str) -> list[str]:
        """How the streams of the steps to come are fetched, and those of this step are read."""
        count = self.stream_count
        lines = [f"float x[{max(1, count)}][T0::ITEMS];", "auto ask = [&](int step) {", f"    if ({there}) {{"]
        lines += [f"        {line}" for line in [*addresses, *self.fetch_text(pointers)]]
        lines += [
            "    }",
            "    copy_close();",
            "};",
            "auto take = [&](int step) {",
            f"    fetch.wait(step, {self.waits});",
        ]
        for n in range(count):
            v = self.streams[n] if n < len(self.streams) else None
            if v is not None and self.fetched[v][0] == "marks":
                lines.append(f"    if ({there}) {{")
                lines += [f"        {line}" for line in addresses]
                lines.append(
                    f"        read_marks<T0, {v.width}>(seat0, fetch, step, {n}, marks + {self.fetched[v][1]}, x[{n}]);"
                )
                lines.append("    }")
            else:
                lines.append(f"    fetch.read(step, {n}, x[{n}]);")
        lines += ["    ask(step + AHEAD);", "};", "for (int step = 0; step < AHEAD; step++) ask(step);", "take(0);"]
        return lines

    @property
    def stream_count(self) -> int:
        return len(self.streams)

    @property
    def waits(self) -> str:
        return "true" if self.stages else "false"

    def expression(self, v: Node, x: Sequence[str]) -> str:
        if v.op in INFIX:
            return f"{x[0]} {INFIX[v.op]} {x[1]}"
        if v.op in TEXTS:
            return TEXTS[v.op].format(*x)
        return f"{v.op}f({x[0]})"

    def compute(self, wanted: Iterable[Node], known: dict[Node, str], indent: str) -> list[str]:
        """Statements that compute nodes for item q and store them in their arrays."""
        lines: list[str] = []
        names = dict(known)
        for root in dict.fromkeys(wanted):
            stack = [(root, False)]
            while stack:
                v, ready = stack.pop()
                if v in names:
                    continue
                if v.op == "const":
                    names[v] = _number(v.args[0])
                elif not ready:
                    stack.append((v, True))
                    stack.extend((u, False) for u in v.operands)
                else:
                    names[v] = f"v{v.id}"
                    text = self.expression(v, [names[u] for u in v.operands])
                    lines.append(f"{indent}const float v{v.id} = {text};")
            lines.append(f"{indent}node{root.id}[q] = {names[root]};")
        return lines

    @property
    def tensors(self) -> list[str]:
        """The tensors of a call, in order; weights of the stages stand last."""
        raise NotImplementedError

    def tensor(self, name: str, kind: str = "const float") -> str:
        return f"(({kind} *)job.tensor[{self.tensors.index(name)}])"

    def leaf_text(self) -> dict[Node, str]:
        """What is known for item q when a step begins."""
        known = {v: f"x[{n}][q]" for n, v in enumerate(self.streams)}
        known |= {v: f"p[{n}][q]" for n, v in enumerate(self.read_parameters)}
        for n, stage in enumerate(self.stages):
            known |= {v: f"sum{n}[q][{o}]" for o, v in enumerate(stage.outputs)}
        return known

    def phases(self, step: str) -> tuple[list[str], list[Node]]:
        """The middle of a step: inner stages, and what is computed between them; and the arrays this needs."""
        number = {s.number if s.number is not None else s.outputs[0]: n for n, s in enumerate(self.stages)}
        made = {m.number: m for m in self.made}
        lines: list[str] = []
        arrays: list[Node] = []
        known = self.leaf_text()
        for phase in self.schedule.phases:
            for p in phase.products:
                n = number[p if p < 1000 else made[p].outputs[0]]
                if not self.stages[n].carried:
                    lines += self.publish(n, step, known)
                    lines += [f"exchange{n}.arrive();", f"exchange{n}.wait(seat{n}, {step});"]
                    lines.append(f"product{n}(seat{n}, exchange{n}, {step} + 1, sum{n});")
            roots = [v for each in phase.passes for v in (*each.roots, *each.saved)]
            computed = [v for v in dict.fromkeys(roots) if v not in known]
            if computed:
                lines.append("UNROLL for (int q = 0; q < T0::ITEMS; q++) {")
                lines += self.compute(computed, known, "    ")
                lines.append("}")
                arrays += computed
                known |= {v: f"node{v.id}[q]" for v in computed}
        self.known = known
        return lines, arrays

    def publish(self, n: int, step: str, known: dict[Node, str]) -> list[str]:
        """Send the inputs of a stage; units that do not exist, and rows at their end, send zeros."""
        lines = []
        for i, v in enumerate(self.stages[n].inputs):
            text = known[v] if v in known else _number(v.args[0])
            there = f"seat0.unit(q) < {v.width}"
            lines += [
                "{",
                f"    float sent[T{n}::ITEMS];",
                f"    UNROLL for (int q = 0; q < T0::ITEMS; q++) sent[q] = on && {there} ? {text} : 0.0f;",
                f"    exchange{n}.publish(seat{n}, {step}, {i}, sent);",
                "}",
            ]
        return lines

    def is_aligned(self, offset: int, row: int, width: int) -> str:
        """Whether the items of a block of a row are neighbours that can be moved at once."""
        return "true" if width == self.width and offset % self.width == row % self.width == 0 else "false"

    def fetch_text(self, pointers: dict[str, str]) -> list[str]:
        """Start of the streams of one step; `pointers`: the row's address in each array."""
        lines = []
        for n, v in enumerate(self.streams):
            array, offset, row = self.fetched[v]
            if array == "marks":
                lines.append(f"fetch_marks<T0, {v.width}>(seat0, fetch, step, {n}, {pointers[array]} + {offset});")
            else:
                aligned = self.is_aligned(offset, row, v.width)
                lines.append(
                    f"fetch_block<T0, {v.width}, {aligned}>(seat0, fetch, step, {n}, {pointers[array]} + {offset});"
                )
        return lines

    def write_text(self, v: Node, text: str, pointer: str, offset: int, row: int, kind: str = "float") -> list[str]:
        aligned = self.is_aligned(offset, row, v.width)
        return [
            "{",
            f"    {kind} out[T0::ITEMS];",
            f"    UNROLL for (int q = 0; q < T0::ITEMS; q++) out[q] = ({kind})({text});",
            f"    write_block<T0, {v.width}, {aligned}>(seat0, {pointer} + {offset}, out);",
            "}",
        ]

    def begin(self) -> list[str]:
        """Seats, memory, products and parameters."""
        lines = ["float *memory = block_memory();"]
        count = max(1, len(self.stages))
        at = "memory"
        for n in range(count):
            lines.append(f"const Seat<T{n}> seat{n}(job);")
            lines.append(f"float *memory{n} = {at};")
            at = f"memory{n} + T{n}::BYTES / 4"
        lines.append("const Fetch<T0> fetch(seat0, memory0 + 2 * T0::STATE);")
        for n, stage in enumerate(self.stages):
            out, into = len(stage.outputs), len(stage.inputs)
            size = f"(size_t){out * into} * T{n}::H * T{n}::H"
            weight = f"{self.tensor(f'weight{n}')} + seat0.model * {size}"
            room = f"memory{n} + 2 * T{n}::STATE + (AHEAD + 1) * T{n}::SLOT"
            lines.append(f"Exchange<T{n}> exchange{n}(memory{n});")
            lines.append(
                f"const Product<T{n}, {str(not self.backward).lower()}> product{n}(seat{n}, {weight}, {room}, job.far);"
            )
        lines.append("const size_t first = (size_t)seat0.model * job.steps * job.batch + seat0.row;")
        lines.append("const size_t start = (size_t)seat0.model * job.batch + seat0.row;")
        if self.read_parameters:
            lines.append(f"float p[{len(self.read_parameters)}][T0::ITEMS];")
        for n, v in enumerate(self.read_parameters):
            i, offset = self.parameters[v]
            size = _size(self.program.parameters[i])
            unit = "0" if v.width == 1 else "seat0.unit(q)"
            there = "true" if v.width == 1 else f"seat0.unit(q) < {v.width}"
            lines.append(
                f"UNROLL for (int q = 0; q < T0::ITEMS; q++) p[{n}][q] = {there} ? "
                f"{self.tensor(f'p{i}')}[seat0.model * {size} + {offset} + {unit}] : 0.0f;"
            )
        return lines

    def arrays_text(self, arrays: Iterable[Node]) -> list[str]:
        return [f"float node{v.id}[T0::ITEMS];" for v in dict.fromkeys(arrays)]

    def send_carried(self, step: str) -> list[str]:
        carried = [n for n, s in enumerate(self.stages) if s.carried]
        lines = [line for n in carried for line in self.publish(n, step, self.next_known())]
        return [*lines, *(f"exchange{n}.arrive();" for n in carried[:1])]

    def wait_carried(self, step: str) -> list[str]:
        carried = [n for n, s in enumerate(self.stages) if s.carried]
        lines = [f"exchange{n}.wait(seat{n}, {step});" for n in carried[:1]]
        return [*lines, *(f"if (T{n}::MAIL) exchange{n}.wait(seat{n}, {step});" for n in carried[1:])]

    def next_known(self) -> dict[Node, str]:
        raise NotImplementedError

    @cached_property
    def text(self) -> str:
        """The job and the function of a kernel, for tiles T0, T1, ... of the stages."""
        body = "\n".join(f"    {line}" for line in self.body())
        return (
            "struct Job {\n    long long models, steps, batch, begin, end; /* rows of the batch from begin to end run */\n"
            "    const int *lengths; /* of the rows, longest first; absent when all run to the end */\n"
            "    float *far; /* room for the weights of a tile with a ring */\n"
            f"    void *tensor[{len(self.tensors)}];\n}};\n\nDEVICE void run(const Job &job) {{\n{body}\n}}\n"
        )

    def body(self) -> list[str]:
        raise NotImplementedError


def _size(blocks: Iterable[Node]) -> int:
    return sum(v.width for v in blocks)


def _number(value: float) -> str:
    if value in (float("inf"), float("-inf")):
        return "INFINITY" if value > 0 else "(-INFINITY)"
    return f"{value!r}f" if value >= 0 else f"({value!r}f)"


class Forward(Direction):
    """All states, and what is kept for the backward pass."""

    def targets(self) -> list[Node]:
        return [*flat(self.program.new), *self.places.kept, *self.places.marks]

    def _products(self) -> list[Made]:
        return [Made(p, x.inputs, tuple(flat(x.outputs))) for p, x in enumerate(self.program.products)]

    @property
    def rows(self) -> list[tuple[str, tuple[Node, ...]]]:
        return [("a", self.program.a)]

    def in_registers(self) -> set[Node]:
        return set(flat(self.program.states))

    def is_carried(self, made: Made) -> bool:
        return set(made.inputs) <= set(flat(self.program.states))

    @property
    def tensors(self) -> list[str]:
        program = self.program
        names = ["a", *(f"s0_{i}" for i in range(len(program.states)))]
        names += [f"p{i}" for i in range(len(program.parameters))]
        names += [*(f"s{i}" for i in range(len(program.states))), "kept", "marks"]
        return [*names, *(f"weight{n}" for n in range(len(self.stages)))]

    @cached_property
    def registers(self) -> dict[Node, tuple[int, int]]:
        """State and block of the state that a thread has."""
        return {v: (i, k) for i, blocks in enumerate(self.program.states) for k, v in enumerate(blocks)}

    def leaf_text(self) -> dict[Node, str]:
        return super().leaf_text() | {v: f"s{i}_{k}[q]" for v, (i, k) in self.registers.items()}

    def next_known(self) -> dict[Node, str]:
        return {v: f"s{i}_{k}[q]" for v, (i, k) in self.registers.items()}

    def body(self) -> list[str]:
        states = [(i, k, v) for i, blocks in enumerate(self.program.states) for k, v in enumerate(blocks)]
        lines = self.begin()
        for i, k, v in states:
            blocks = self.program.states[i]
            unit = "0" if self.is_rowwise(v) else "seat0.unit(q)"
            place = f"{self.tensor(f's0_{i}')}[start * {_size(blocks)} + {_size(blocks[:k])} + {unit}]"
            lines.append(f"float s{i}_{k}[T0::ITEMS];")
            lines.append(
                f"UNROLL for (int q = 0; q < T0::ITEMS; q++) "
                f"s{i}_{k}[q] = seat0.runs() && {self.has(v)} ? {place} : 0.0f;"
            )
        lines += self.streams_text(
            "step",
            [f"const float *a = {self.tensor('a')} + (first + (size_t)step * job.batch) * {_size(self.program.a)};"],
            {"a": "a"},
            "step < seat0.length",
        )
        for n, stage in enumerate(self.stages):
            lines += self._open(n, stage)
        middle, arrays = self.phases("step")
        lines.append("for (int step = 0; step < seat0.steps; step++) {")
        lines += [f"    float sum{n}[T{n}::SUMS][T{n}::OUT];" for n in range(len(self.stages))]
        lines += [f"    {line}" for line in self.arrays_text(arrays)]
        lines.append("    const bool on = step < seat0.length;")
        lines += [
            f"    product{n}(seat{n}, exchange{n}, step, sum{n});" for n, s in enumerate(self.stages) if s.carried
        ]
        lines += [f"    {line}" for line in middle]
        lines.append("    UNROLL for (int q = 0; q < T0::ITEMS; q++) {")
        for (i, k, v), new in zip(states, flat(self.program.new), strict=True):
            text = self.known[new] if new in self.known else _number(new.args[0])
            lines.append(f"        const float next{i}_{k} = on && {self.has(v)} ? {text} : 0.0f;")
        lines += [f"        s{i}_{k}[q] = next{i}_{k};" for i, k, _ in states]
        lines.append("    }")
        lines += [f"    {line}" for line in self.send_carried("step")]
        lines.append("    if (seat0.copy == 0 && on) {")
        lines.append("        const size_t at = first + (size_t)step * job.batch;")
        for i, k, v in states:
            blocks = self.program.states[i]
            row, offset = _size(blocks), _size(blocks[:k])
            pointer = f"{self.tensor(f's{i}', 'float')} + at * {row}"
            lines += [f"        {line}" for line in self.write_text(v, f"s{i}_{k}[q]", pointer, offset, row)]
        for name, blocks, kind in (("kept", self.places.kept, "float"), ("marks", self.places.marks, "signed char")):
            for k, v in enumerate(blocks):
                row, offset = _size(blocks), _size(blocks[:k])
                pointer = f"{self.tensor(name, kind)} + at * {row}"
                lines += [f"        {line}" for line in self.write_text(v, self._kept(v), pointer, offset, row, kind)]
        lines.append("    }")
        lines.append("    take(step + 1);")
        lines += [f"    {line}" for line in self.wait_carried("step")]
        lines.append("}")
        return [*lines, *(f"exchange{n}.close();" for n in range(len(self.stages)))]

    def _kept(self, v: Node) -> str:
        """A node that is kept; states and sums of this step are there, the states before are not any more."""
        return self.known[v]

    def _open(self, n: int, stage: Stage) -> list[str]:
        if not stage.carried:
            return [f"exchange{n}.open(seat{n}, [&](int, int, int) {{ return 0.0f; }});"]
        lines = [f"exchange{n}.open(seat{n}, [&](int row, int in, int unit) {{"]
        for at, v in enumerate(stage.inputs):
            i, k = self.registers[v]
            blocks = self.program.states[i]
            place = f"(seat0.model * job.batch + row) * {_size(blocks)} + {_size(blocks[:k])} + unit"
            lines.append(f"    if (in == {at}) return unit < {v.width} ? {self.tensor(f's0_{i}')}[{place}] : 0.0f;")
        return [*lines, "    return 0.0f;", "});"]


class Backward(Direction):
    """The gradients, from the last step to the first."""

    backward = True

    def targets(self) -> list[Node]:
        carried = [v for blocks in self.places.carried for v in blocks if v is not None]
        return [*self.gradient.a, *self.places.rest, *carried, *self.added]

    @cached_property
    def added(self) -> list[Node]:
        listed = [v for blocks in self.places.parameters for v in blocks if not (v.op == "const" and v.args[0] == 0)]
        return list(dict.fromkeys(v for v in listed if self.places.gradients([v]) is None))

    def _products(self) -> list[Made]:
        found = []
        for p, views in enumerate(self.gradient.outputs):
            if views and self.gradient.returned[p]:
                found.append(Made(p, tuple(flat(views)), self.gradient.returned[p]))
        return found

    @property
    def rows(self) -> list[tuple[str, tuple[Node, ...]]]:
        found = [(f"before{i}", blocks) for i, blocks in enumerate(self.program.states)]
        found += [(f"after{i}", blocks) for i, blocks in enumerate(self.program.new)]
        found += [("kept", self.places.kept), ("marks", self.places.marks), ("a", self.program.a)]
        return found

    def in_registers(self) -> set[Node]:
        return set(flat(self.gradient.by_new))

    def views(self, p: int) -> tuple[tuple[View, tuple[Node, ...]], ...]:
        return tuple(zip(self.program.products[p].views, self.program.products[p].outputs, strict=True))

    def is_carried(self, made: Made) -> bool:
        """Whether all that it returns is read by the step before alone."""
        if made.number >= 1000:
            return False
        returned = set(made.outputs)
        used: set[Node] = set()
        stack, seen = [*self.targets(), *(v for m in self.made for v in m.inputs)], set()
        while stack:
            v = stack.pop()
            if v not in seen:
                seen.add(v)
                if v in returned:
                    used.add(v)
                elif not self.is_leaf(v):
                    stack.extend(v.operands)
        return not used

    @property
    def tensors(self) -> list[str]:
        program = self.program
        states = range(len(program.states))
        names = ["a", *(f"s0_{i}" for i in states), *(f"p{i}" for i in range(len(program.parameters)))]
        names += [*(f"s{i}" for i in states), "kept", "marks", *(f"g{i}" for i in states), "d_a", "d_rest"]
        names += [*(f"d_s0_{i}" for i in states), "tap", "sums"]
        return [*names, *(f"weight{n}" for n in range(len(self.stages)))]

    @cached_property
    def arrived(self) -> list[tuple[int, int, Node]]:
        return [(i, k, v) for i, blocks in enumerate(self.gradient.by_new) for k, v in enumerate(blocks)]

    @property
    def stream_count(self) -> int:
        return len(self.streams) + len(self.arrived)

    def leaf_text(self) -> dict[Node, str]:
        return super().leaf_text() | {v: f"g{i}_{k}[q]" for i, k, v in self.arrived}

    def next_known(self) -> dict[Node, str]:
        return self.known

    def fetch_text(self, pointers: dict[str, str]) -> list[str]:
        lines = super().fetch_text(pointers)
        for n, (i, k, v) in enumerate(self.arrived, len(self.streams)):
            blocks = self.gradient.by_new[i]
            row, offset = _size(blocks), _size(blocks[:k])
            aligned = self.is_aligned(offset, row, v.width)
            pointer = f"{self.tensor(f'g{i}')} + at * {row} + {offset}"
            lines.append(
                f"if ({self.tensor(f'g{i}')}) fetch_block<T0, {v.width}, {aligned}>(seat0, fetch, step, {n}, {pointer});"
            )
        return lines

    def _deferred(self, i: int, k: int, stage_of: dict[Node, str]) -> str:
        parts = [f"carry{i}_{k}[q]"] if self.places.carried[i][k] is not None else []
        parts += [stage_of[v] for v in self.places.deferred[i][k]]
        return " + ".join(parts) or "0.0f"

    def body(self) -> list[str]:
        program, places = self.program, self.places
        lines = self.begin()
        sums = super().leaf_text()
        addresses = ["const int t = seat0.steps - 1 - step;", "const size_t at = first + (size_t)t * job.batch;"]
        pointers = {}
        for i, blocks in enumerate(program.states):
            row = _size(blocks)
            addresses.append(f"const float *before{i} = t ? {self.tensor(f's{i}')} + (at - job.batch) * {row} : "
                             f"{self.tensor(f's0_{i}')} + start * {row};")  # fmt: skip
            addresses.append(f"const float *after{i} = {self.tensor(f's{i}')} + at * {row};")
            pointers |= {f"before{i}": f"before{i}", f"after{i}": f"after{i}"}
        for name, blocks, kind in (("kept", places.kept, "const float"), ("marks", places.marks, "const signed char"),
                                   ("a", program.a, "const float")):  # fmt: skip
            addresses.append(f"{kind} *{name} = {self.tensor(name, kind)} + at * {_size(blocks)};")
            pointers[name] = name
        lines += self.streams_text(
            "step", addresses, pointers, "step < seat0.steps && seat0.steps - 1 - step < seat0.length"
        )
        for i, k, _ in self.arrived:
            if places.carried[i][k] is not None:
                lines.append(f"float carry{i}_{k}[T0::ITEMS] = {{}};")
        if self.added:
            lines.append(f"double by_parameter[{len(self.added)}][T0::ITEMS] = {{}};")
            lines.append(f"float lately[{len(self.added)}][T0::ITEMS] = {{}};")
        lines += [f"exchange{n}.open(seat{n}, [&](int, int, int) {{ return 0.0f; }});" for n in range(len(self.stages))]
        lines += [f"float sum{n}[T{n}::SUMS][T{n}::OUT] = {{}};" for n in range(len(self.stages))]
        middle, arrays = self.phases("step")
        lines.append("for (int step = 0;; step++) {")
        lines.append("    const int t = seat0.steps - 1 - step;")
        lines += [f"    {line}" for line in self.arrays_text(arrays)]
        lines += [
            f"    product{n}(seat{n}, exchange{n}, step, sum{n});" for n, s in enumerate(self.stages) if s.carried
        ]
        lines.append("    if (t < 0) { /* one product more than steps, for the start */")
        lines.append("        if (seat0.copy == 0 && seat0.runs()) {")
        for i, k, _ in self.arrived:
            blocks = program.states[i]
            row, offset = _size(blocks), _size(blocks[:k])
            pointer = f"{self.tensor(f'd_s0_{i}', 'float')} + start * {row}"
            written = self.write_text(blocks[k], self._deferred(i, k, sums), pointer, offset, row)
            lines += [f"            {line}" for line in written]
        lines += ["        }", "        break;", "    }", "    const bool on = t < seat0.length;"]
        lines += [f"    float g{i}_{k}[T0::ITEMS];" for i, k, _ in self.arrived]
        lines.append("    UNROLL for (int q = 0; q < T0::ITEMS; q++) {")
        for n, (i, k, v) in enumerate(self.arrived, len(self.streams)):
            grad = f"({self.tensor(f'g{i}')} ? x[{n}][q] : 0.0f)"
            lines.append(f"        g{i}_{k}[q] = on && {self.has(v)} ? {grad} + {self._deferred(i, k, sums)} : 0.0f;")
        lines.append("    }")
        lines += [f"    {line}" for line in middle]
        known = self.known
        lines += [f"    {line}" for line in self.send_carried("step")]
        lines.append("    if (seat0.copy == 0 && on) {")
        lines.append("        const size_t at = first + (size_t)t * job.batch;")
        for name, blocks in (("d_a", self.gradient.a), ("d_rest", places.rest)):
            for k, v in enumerate(blocks):
                row, offset = _size(blocks), _size(blocks[:k])
                pointer = f"{self.tensor(name, 'float')} + at * {row}"
                text = known[v] if v in known else _number(v.args[0])
                lines += [f"        {line}" for line in self.write_text(v, text, pointer, offset, row)]
        lines.append(f"        if ({self.tensor('tap')}) {{")
        for i, k, v in self.arrived:
            if i == 0:
                blocks = self.gradient.by_new[0]
                row, offset = _size(blocks), _size(blocks[:k])
                pointer = f"{self.tensor('tap', 'float')} + at * {row}"
                lines += [f"            {line}" for line in self.write_text(v, f"g0_{k}[q]", pointer, offset, row)]
        lines += ["        }", "    }"]
        lines.append("    UNROLL for (int q = 0; q < T0::ITEMS; q++) {")
        for i, k, v in self.arrived:
            if (carried := places.carried[i][k]) is not None:
                text = known[carried] if carried in known else _number(carried.args[0])
                lines.append(f"        carry{i}_{k}[q] = on && {self.has(v)} ? {text} : 0.0f;")
        for n, v in enumerate(self.added):
            there = f"seat0.unit(q) < {v.width}"
            text = known[v] if v in known else _number(v.args[0])
            lines.append(f"        if (on && {there}) lately[{n}][q] += {text};")
            lines.append(
                f"        if (T0::TENSOR || t % SHORT == 0) by_parameter[{n}][q] += lately[{n}][q], lately[{n}][q] = 0;"
            )
        lines += ["    }", "    take(step + 1);"]
        lines += [f"    {line}" for line in self.wait_carried("step")]
        lines.append("}")
        lines += [f"exchange{n}.close();" for n in range(len(self.stages))]
        if self.added:
            lines.append("if (seat0.copy == 0 && seat0.runs())")
            lines.append(
                f"    UNROLL for (int n = 0; n < {len(self.added)}; n++) UNROLL for (int q = 0; q < T0::ITEMS; q++)"
            )
            lines.append(f"        if (seat0.unit(q) < {self.width}) {self.tensor('sums', 'double')}"
                         f"[(n * job.models * job.batch + start) * {self.width} + seat0.unit(q)] = by_parameter[n][q];")  # fmt: skip
        return lines
