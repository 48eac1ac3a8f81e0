"""The text of one direction of a step: statements for the items of a thread, and what both directions share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

from evenflow.step.emit_cuda.cuda_stages import SUMS, CudaStages, size
from evenflow.step.graph import Node

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


class CudaDirection(CudaStages):
    """One direction of a step as the source of a kernel."""

    def streams_text(self, step: str, addresses: list[str], pointers: dict[str, str], there: str) -> list[str]:
        """How the streams of the steps to come are fetched, and those of this step are read."""
        count = self.stream_count
        lines = [
            f"float x[{max(1, count)}][T0::ITEMS];",
            "auto start_prefetch = [&](int step) {",
            f"    if ({there}) {{",
        ]
        lines += [f"        {line}" for line in [*addresses, *self.fetch_text(pointers)]]
        lines += [
            "    }",
            "    copy_commit();",
            "};",
            "auto read_streams = [&](int step) {",
            f"    prefetch.wait(step, {self.waits});",
        ]
        for n in range(count):
            v = self.streams[n] if n < len(self.streams) else None
            if v is not None and self.fetched[v][0] == "marks":
                lines.append(f"    if ({there}) {{")
                lines += [f"        {line}" for line in addresses]
                block = f"marks + {self.fetched[v][1]}"
                lines.append(f"        read_marks<T0, {v.width}>(coords0, prefetch, step, {n}, {block}, x[{n}]);")
                lines.append("    }")
            else:
                lines.append(f"    prefetch.read(step, {n}, x[{n}]);")
        lines += [
            "    start_prefetch(step + STEPS_AHEAD);",
            "};",
            "for (int step = 0; step < STEPS_AHEAD; step++) start_prefetch(step);",
            "read_streams(0);",
        ]
        return lines

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
                    names[v] = number(v.args[0])
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
        stage_of = {s.number if s.number is not None else s.outputs[0]: n for n, s in enumerate(self.stages)}
        made = {m.number: m for m in self.made}
        lines: list[str] = []
        arrays: list[Node] = []
        known = self.leaf_text()
        for phase in self.schedule.phases:
            for p in phase.products:
                n = stage_of[p if p < SUMS else made[p].outputs[0]]
                if not self.stages[n].carried:
                    lines += self.publish(n, step, known)
                    lines += [f"exchange{n}.arrive();", f"exchange{n}.wait(coords{n}, {step});"]
                    lines.append(f"product{n}(coords{n}, exchange{n}, {step} + 1, sum{n});")
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
            text = known[v] if v in known else number(v.args[0])
            there = f"coords0.unit(q) < {v.width}"
            lines += [
                "{",
                f"    float sent[T{n}::ITEMS];",
                f"    UNROLL for (int q = 0; q < T0::ITEMS; q++) sent[q] = running && {there} ? {text} : 0.0f;",
                f"    exchange{n}.publish(coords{n}, {step}, {i}, sent);",
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
                lines.append(f"fetch_marks<T0, {v.width}>(coords0, prefetch, step, {n}, {pointers[array]} + {offset});")
            else:
                aligned = self.is_aligned(offset, row, v.width)
                block = f"{pointers[array]} + {offset}"
                lines.append(f"fetch_block<T0, {v.width}, {aligned}>(coords0, prefetch, step, {n}, {block});")
        return lines

    def write_text(self, v: Node, text: str, pointer: str, offset: int, row: int, kind: str = "float") -> list[str]:
        aligned = self.is_aligned(offset, row, v.width)
        return [
            "{",
            f"    {kind} out[T0::ITEMS];",
            f"    UNROLL for (int q = 0; q < T0::ITEMS; q++) out[q] = ({kind})({text});",
            f"    write_block<T0, {v.width}, {aligned}>(coords0, {pointer} + {offset}, out);",
            "}",
        ]

    def begin(self) -> list[str]:
        """Seats, memory, products and parameters."""
        lines = ["float *memory = block_memory();"]
        count = max(1, len(self.stages))
        at = "memory"
        for n in range(count):
            lines.append(f"const ThreadCoords<T{n}> coords{n}(job);")
            lines.append(f"float *memory{n} = {at};")
            at = f"memory{n} + T{n}::BYTES / 4"
        lines.append("const Prefetch<T0> prefetch(coords0, memory0 + 2 * T0::STATE);")
        for n, stage in enumerate(self.stages):
            lines.append(f"Exchange<T{n}> exchange{n}(memory{n});")
            if stage.number is None:
                lines.append(f"const RowSum<T{n}> product{n};")
                continue
            out, into = len(stage.outputs), len(stage.inputs)
            weight = f"{self.tensor(f'weight{n}')} + coords0.model * (size_t){out * into} * T{n}::H * T{n}::H"
            room = f"memory{n} + 2 * T{n}::STATE + (STEPS_AHEAD + 1) * T{n}::SLOT"
            kind = f"Product<T{n}, {str(not self.backward).lower()}>"
            lines.append(f"const {kind} product{n}(coords{n}, {weight}, {room}, job.global_weights);")
        lines.append("const size_t first = (size_t)coords0.model * job.steps * job.batch + coords0.row;")
        lines.append("const size_t start = (size_t)coords0.model * job.batch + coords0.row;")
        if self.read_parameters:
            lines.append(f"float p[{len(self.read_parameters)}][T0::ITEMS];")
        for n, v in enumerate(self.read_parameters):
            i, offset = self.parameters[v]
            row = size(self.program.parameters[i])
            unit = "0" if v.width == 1 else "coords0.unit(q)"
            there = "true" if v.width == 1 else f"coords0.unit(q) < {v.width}"
            lines.append(
                f"UNROLL for (int q = 0; q < T0::ITEMS; q++) p[{n}][q] = {there} ? "
                f"{self.tensor(f'p{i}')}[coords0.model * {row} + {offset} + {unit}] : 0.0f;"
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
        lines = [f"exchange{n}.wait(coords{n}, {step});" for n in carried[:1]]
        return [*lines, *(f"if (T{n}::ASYNC_STORE) exchange{n}.wait(coords{n}, {step});" for n in carried[1:])]

    def next_known(self) -> dict[Node, str]:
        raise NotImplementedError

    @cached_property
    def text(self) -> str:
        """The job and the function of a kernel, for tiles T0, T1, ... of the stages."""
        body = "\n".join(f"    {line}" for line in self.body())
        return (
            "struct Job {\n"
            "    long long models, steps, batch, begin, end; /* rows of the batch from begin to end run */\n"
            "    const int *lengths; /* of the rows, longest first; absent when all run to the end */\n"
            "    float *global_weights; /* room for the weights of a tile with a ring */\n"
            f"    void *tensor[{len(self.tensors)}];\n}};\n\nDEVICE void run(const Job &job) {{\n{body}\n}}\n"
        )

    def body(self) -> list[str]:
        raise NotImplementedError


def number(value: float) -> str:
    if value in (float("inf"), float("-inf")):
        return "INFINITY" if value > 0 else "(-INFINITY)"
    return f"{value!r}f" if value >= 0 else f"({value!r}f)"
