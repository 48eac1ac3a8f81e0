"""The source of one pass of a step: statements for the items of a thread, and what both passes share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from evenflow.step.emit_cuda.cuda_stages import SUMS, CudaStages, size
from evenflow.step.generated_code import INFIX, braces, tensor_names
from evenflow.step.graph import Node

EXPRESSIONS = {
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
ITEMS = "UNROLL for (int q = 0; q < T0::ITEMS; q++)"
Texts = Mapping[Node, str]  # the C expression of a node's number for item q


class CudaDirection(CudaStages):
    """One pass of a step as the source of a kernel.

    The names in it: ``coordsN``, ``exchangeN``, ``productN`` and ``sumN`` of stage N; ``x`` the numbers that were
    copied ahead, ``p`` parameters, ``nodeI`` node I; ``running`` whether the thread's row still runs at this step.
    """

    def body(self) -> list[str]:
        raise NotImplementedError

    @cached_property
    def tensors(self) -> list[str]:
        """The tensors of a call, in order; the weights of the stages stand last."""
        weights = [f"weight{n}" for n, stage in enumerate(self.stages) if stage.number is not None]
        return [*tensor_names(self.program, self.backward, matrices=False), *weights]

    def tensor(self, name: str, kind: str = "const float") -> str:
        return f"(({kind} *)job.tensor[{self.tensors.index(name)}])"

    @cached_property
    def text(self) -> str:
        """The job and the function of a kernel, for tiles T0, T1, ... of the stages."""
        body = "\n".join(f"    {line}" for line in self.body())
        return (
            "struct Job {\n"
            "    long long models, steps, batch, begin, end; /* rows of the batch from begin to end run */\n"
            "    const int *lengths; /* of the rows, longest first; NULL when all run to the last step */\n"
            "    float *global_weights; /* room for the weights of a tile with a prefetch ring */\n"
            f"    void *tensor[{len(self.tensors)}];\n}};\n\nDEVICE void run(const Job &job) {{\n{body}\n}}\n"
        )

    def begin(self) -> list[str]:
        """Coordinates, memory, products and parameters."""
        lines = ["float *memory = block_memory();"]
        at = "memory"
        for n in range(max(1, len(self.stages))):
            lines += [f"const ThreadCoords<T{n}> coords{n}(job);", f"float *memory{n} = {at};"]
            at = f"memory{n} + T{n}::BYTES / 4"
        lines.append("const Prefetch<T0> prefetch(coords0, memory0 + 2 * T0::STATE);")
        for n, stage in enumerate(self.stages):
            lines.append(f"Exchange<T{n}> exchange{n}(memory{n});")
            if stage.number is None:
                lines.append(f"const RowSum<T{n}> product{n};")
                continue
            numbers = len(stage.outputs) * len(stage.inputs)
            weight = f"{self.tensor(f'weight{n}')} + coords0.model * (size_t){numbers} * T{n}::H * T{n}::H"
            room = f"memory{n} + 2 * T{n}::STATE + (STEPS_AHEAD + 1) * T{n}::SLOT"
            kind = f"Product<T{n}, {str(not self.backward).lower()}>"
            lines.append(f"const {kind} product{n}(coords{n}, {weight}, {room}, job.global_weights);")
        lines.append("const size_t first = (size_t)coords0.model * job.steps * job.batch + coords0.row;")
        lines.append("const size_t start = (size_t)coords0.model * job.batch + coords0.row;")
        if self.read_parameters:
            lines.append(f"float p[{len(self.read_parameters)}][T0::ITEMS];")
        for n, v in enumerate(self.read_parameters):
            i, offset = self.parameters[v]
            unit, exists = ("0", "true") if v.width == 1 else ("coords0.unit(q)", f"coords0.unit(q) < {v.width}")
            place = f"coords0.model * {size(self.program.parameters[i])} + {offset} + {unit}"
            lines.append(f"{ITEMS} p[{n}][q] = {exists} ? {self.tensor(f'p{i}')}[{place}] : 0.0f;")
        return lines

    def copy_streams(self, addresses: list[str], is_running: str) -> list[str]:
        """How the streams of later steps are copied, and those of this step are read.

        Args:
            addresses: pointers to the row of `step` in each array.
            is_running: the condition that the row runs at `step`.
        """
        reads = []
        for n in range(self.stream_count):
            v = self.streams[n] if n < len(self.streams) else None
            if v is not None and self.copied[v][0] == "marks":
                block = f"marks + {self.copied[v][1]}"
                read = f"read_marks<T0, {v.width}>(coords0, prefetch, step, {n}, {block}, x[{n}]);"
                reads += braces(f"if ({is_running})", [*addresses, read])
            elif v is not None and v.width == 1 < self.width:
                reads.append(f"read_number(prefetch, step, {n}, x[{n}]);")
            else:
                reads.append(f"prefetch.read(step, {n}, x[{n}]);")
        start = [*braces(f"if ({is_running})", [*addresses, *self.start_copies()]), "copy_commit();"]
        wait = f"prefetch.wait(step, {'true' if self.stages else 'false'});"
        read_streams = [wait, *reads, "start_prefetch(step + STEPS_AHEAD);"]
        return [
            f"float x[{max(1, self.stream_count)}][T0::ITEMS];",
            *braces("auto start_prefetch = [&](int step)", start, "};"),
            *braces("auto read_streams = [&](int step)", read_streams, "};"),
            "for (int step = 0; step < STEPS_AHEAD; step++) start_prefetch(step);",
            "read_streams(0);",
        ]

    def start_copies(self) -> list[str]:
        """Start the copies of one step's streams."""
        lines = []
        for n, v in enumerate(self.streams):
            array, offset, row = self.copied[v]
            kind = "fetch_marks" if array == "marks" else "fetch_block"
            aligned = "" if array == "marks" else f", {self.is_aligned(offset, row, v.width)}"
            lines.append(f"{kind}<T0, {v.width}{aligned}>(coords0, prefetch, step, {n}, {array} + {offset});")
        return lines

    def leaf_texts(self) -> dict[Node, str]:
        """What is known for item q when a step begins."""
        texts = {v: f"x[{n}][q]" for n, v in enumerate(self.streams)}
        texts |= {v: f"p[{n}][q]" for n, v in enumerate(self.read_parameters)}
        for n, stage in enumerate(self.stages):
            texts |= {v: f"sum{n}[q][{o}]" for o, v in enumerate(stage.outputs)}
        return texts

    def middle(self) -> tuple[list[str], dict[Node, str]]:
        """The middle of a step, its inner stages and what is computed between them, and the texts of all nodes."""
        stage_of = {s.number if s.number is not None else s.outputs[0]: n for n, s in enumerate(self.stages)}
        by_number = {product.number: product for product in self.products}
        lines: list[str] = []
        arrays: list[str] = []
        texts = self.leaf_texts()
        for phase in self.schedule.phases:
            for p in phase.products:
                n = stage_of[p if p < SUMS else by_number[p].outputs[0]]
                if not self.stages[n].carried:
                    lines += self.publish(n, texts)
                    lines += [f"exchange{n}.arrive();", f"exchange{n}.wait(coords{n}, step);"]
                    lines.append(f"product{n}(coords{n}, exchange{n}, step + 1, sum{n});")
            roots = [v for each in phase.passes for v in (*each.roots, *each.saved)]
            computed = [v for v in dict.fromkeys(roots) if v not in texts]
            if computed:
                lines += braces(ITEMS, self._compute(computed, texts))
                arrays += [f"float node{v.id}[T0::ITEMS];" for v in computed]
                texts |= {v: f"node{v.id}[q]" for v in computed}
        return [*arrays, *lines], texts

    def _compute(self, roots: Iterable[Node], texts: Texts) -> list[str]:
        """Statements that compute nodes for item q and store them in their arrays."""
        lines: list[str] = []
        names = dict(texts)
        for root in roots:
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
                    lines.append(f"const float v{v.id} = {expression(v, [names[u] for u in v.operands])};")
            lines.append(f"node{root.id}[q] = {names[root]};")
        return lines

    def publish(self, n: int, texts: Texts) -> list[str]:
        """Send the inputs of a stage; units that do not exist, and rows that have ended, send zeros."""
        lines = []
        for i, v in enumerate(self.stages[n].inputs):
            send = f"sent[q] = running && coords0.unit(q) < {v.width} ? {text_of(v, texts)} : 0.0f;"
            call = f"exchange{n}.publish(coords{n}, step, {i}, sent);"
            lines += braces("", [f"float sent[T{n}::ITEMS];", f"{ITEMS} {send}", call])
        return lines

    def run_carried(self) -> list[str]:
        carried = [n for n, stage in enumerate(self.stages) if stage.carried]
        return [f"product{n}(coords{n}, exchange{n}, step, sum{n});" for n in carried]

    def send_carried(self, texts: Texts) -> list[str]:
        carried = [n for n, stage in enumerate(self.stages) if stage.carried]
        lines = [line for n in carried for line in self.publish(n, texts)]
        return [*lines, *(f"exchange{n}.arrive();" for n in carried[:1])]

    def end_step(self) -> list[str]:
        """Read the streams of the next step, and wait for the inputs of its carried stages."""
        carried = [n for n, stage in enumerate(self.stages) if stage.carried]
        waits = [f"exchange{n}.wait(coords{n}, step);" for n in carried]
        return [
            "read_streams(step + 1);",
            *waits[:1],
            *(f"if (T{n}::ASYNC_STORE) {w}" for n, w in zip(carried, waits, strict=True) if n != carried[0]),
        ]

    def finish(self) -> list[str]:
        return [f"exchange{n}.finish();" for n in range(len(self.stages))]

    def is_aligned(self, offset: int, row: int, width: int) -> str:
        """Whether the items of a block of a row are contiguous and can be moved at once."""
        return "true" if width == self.width and offset % self.width == row % self.width == 0 else "false"

    def write(
        self, tensor: str, at: str, blocks: Sequence[Node], texts: Sequence[str], kind: str = "float"
    ) -> list[str]:
        """Write blocks of row `at` of a tensor from the texts of their numbers."""
        lines, row = [], size(blocks)
        pointer = f"{self.tensor(tensor, kind)} + {at} * {row}"
        for k, (v, text) in enumerate(zip(blocks, texts, strict=True)):
            offset = size(blocks[:k])
            call = f"write_block<T0, {v.width}, {self.is_aligned(offset, row, v.width)}>"
            convert = f"{ITEMS} out[q] = ({kind})({text});"
            lines += braces("", [f"{kind} out[T0::ITEMS];", convert, f"{call}(coords0, {pointer} + {offset}, out);"])
        return lines


def expression(v: Node, x: Sequence[str]) -> str:
    if v.op in INFIX:
        return f"{x[0]} {INFIX[v.op]} {x[1]}"
    return EXPRESSIONS[v.op].format(*x) if v.op in EXPRESSIONS else f"{v.op}f({x[0]})"


def text_of(v: Node, texts: Texts) -> str:
    """The text of a node that is known, or a constant."""
    return texts[v] if v in texts else number(v.args[0])


def number(value: float) -> str:
    if value in (float("inf"), float("-inf")):
        return "INFINITY" if value > 0 else "(-INFINITY)"
    return f"{value!r}f" if value >= 0 else f"({value!r}f)"
