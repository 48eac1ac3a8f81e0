"""The source of one pass of a step: what both passes share."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from evenflow.step.emit_cuda.cuda_items import ITEMS, CudaItems, Texts, text_of
from evenflow.step.emit_cuda.cuda_stages import size
from evenflow.step.generated_code import braces, tensor_names
from evenflow.step.graph import Node


class CudaDirection(CudaItems):
    """One pass of a step as the source of a kernel.

    The names in it: ``coordsN``, ``exchangeN``, ``productN`` and ``sumN`` of stage N; ``x`` the numbers that were
    copied ahead, ``p`` parameters, ``nodeI`` node I; ``running`` whether the thread's row still runs at this step.
    """

    def body(self) -> list[str]:
        raise NotImplementedError

    @cached_property
    def tensors(self) -> list[str]:
        """The tensors of a call, in order; parts of matrices and the weights of the stages stand last."""
        names = tensor_names(self.program, self.backward, matrices=False)
        weights = [f"weight{n}" for n, stage in enumerate(self.stages) if stage.product is not None]
        return [*names, *(["vectors"] if self.narrow.vectors else []), *weights]

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
            if stage.product is None:
                lines.append(f"const RowSums<T{n}> product{n};")
                continue
            numbers = len(stage.outputs) * len(stage.inputs)
            weight = f"{self.tensor(f'weight{n}')} + coords0.model * (size_t){numbers} * T{n}::H * T{n}::H"
            room = f"memory{n} + 2 * T{n}::STATE + (T{n}::AHEAD + 1) * T{n}::SLOT"
            kind = f"Product<T{n}, {str(not self.backward).lower()}>"
            lines.append(f"const {kind} product{n}(coords{n}, {weight}, {room}, job.global_weights);")
        lines.append("const size_t first = (size_t)coords0.model * job.steps * job.batch + coords0.row;")
        lines.append("const size_t start = (size_t)coords0.model * job.batch + coords0.row;")
        if self.read_parameters:
            lines.append(f"float p[{len(self.read_parameters)}][T0::ITEMS];")
        for n, v in enumerate(self.read_parameters):
            name, offset, row = self.parameters[v]
            unit, exists = ("0", "true") if v.width == 1 else ("coords0.unit(q)", f"coords0.unit(q) < {v.width}")
            place = f"coords0.model * {row} + {offset} + {unit}"
            lines.append(f"{ITEMS} p[{n}][q] = {exists} ? {self.tensor(name)}[{place}] : 0.0f;")
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
        read_streams = [wait, *reads, "start_prefetch(step + T0::AHEAD);"]
        return [
            f"float x[{max(1, self.stream_count)}][T0::ITEMS];",
            *braces("auto start_prefetch = [&](int step)", start, "};"),
            *braces("auto read_streams = [&](int step)", read_streams, "};"),
            "for (int step = 0; step < T0::AHEAD; step++) start_prefetch(step);",
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
        texts = {v: f"x[{n}][q]" for n, v in enumerate(self.streams)} | self.parameter_texts()
        for n, stage in enumerate(self.stages):
            texts |= {v: f"sum{n}[q][{o}]" for o, v in enumerate(stage.outputs)}
        return texts

    def parameter_texts(self) -> dict[Node, str]:
        return {v: f"p[{n}][q]" for n, v in enumerate(self.read_parameters)}

    def middle(self) -> tuple[list[str], dict[Node, str]]:
        """The middle of a step, its inner stages and what is computed between them, and the texts of all nodes."""
        lines: list[str] = []
        arrays: list[str] = []
        texts = self.leaf_texts()
        for phase in self.schedule.phases:
            inner = sorted({self.stage_of[p] for p in phase.products})
            inner = [n for n in inner if not self.stages[n].carried]
            lines += self.send(inner, texts)
            lines += self.wait(inner)
            lines += [f"product{n}(coords{n}, exchange{n}, step + 1, sum{n});" for n in inner]
            roots = [v for each in phase.passes for v in (*each.roots, *each.saved)]
            computed = [v for v in dict.fromkeys(roots) if v not in texts]
            if computed:
                lines += braces(ITEMS, self.compute(computed, texts))
                arrays += [f"float node{v.id}[T0::ITEMS];" for v in computed]
                texts |= {v: f"node{v.id}[q]" for v in computed}
        return [*arrays, *lines], texts

    def send(self, stages: Sequence[int], texts: Texts) -> list[str]:
        """Send the inputs of stages; units that do not exist, and rows that have ended, send zeros."""
        lines = [line for n in stages for line in self._publish(n, texts)]
        return [*lines, *(f"exchange{n}.arrive();" for n in stages[:1])]

    def _publish(self, n: int, texts: Texts) -> list[str]:
        stage, step = self.stages[n], self.round_of(n)
        exist = [f"running && coords0.unit(q) < {v.width}" for v in stage.inputs]
        if stage.product is None:
            computed, names = self.expressions(stage.inputs, texts)
            pairs = enumerate(zip(stage.inputs, exist, strict=True))
            added = [f"parts[{i}] += {exists} ? {text_of(v, names)} : 0.0f;" for i, (v, exists) in pairs]
            call = f"product{n}.publish(coords{n}, exchange{n}, {step}, parts);"
            return braces("", [f"float parts[T{n}::OUT] = {{}};", *braces(ITEMS, [*computed, *added]), call])
        lines = []
        for i, (v, exists) in enumerate(zip(stage.inputs, exist, strict=True)):
            send = f"sent[q] = {exists} ? {text_of(v, texts)} : 0.0f;"
            call = f"exchange{n}.publish(coords{n}, {step}, {i}, sent);"
            lines += braces("", [f"float sent[T{n}::ITEMS];", f"{ITEMS} {send}", call])
        return lines

    def wait(self, stages: Sequence[int]) -> list[str]:
        """Wait for the inputs of stages; one barrier serves all of them."""
        waits = [f"exchange{n}.wait(coords{n}, {self.round_of(n)});" for n in stages]
        return [*waits[:1], *(f"if (T{n}::ASYNC_STORE) {w}" for n, w in zip(stages[1:], waits[1:], strict=True))]

    def round_of(self, n: int) -> str:
        """Which round of a stage's exchange a step sends: the first of sums that are carried is sent before step 0."""
        return "step + 1" if n in self.first_sent else "step"

    @cached_property
    def first_sent(self) -> list[int]:
        return [n for n in self.carried if self.stages[n].product is None]

    def send_first(self, texts: Texts) -> list[str]:
        """Send what the sums of the first step add up."""
        if not self.first_sent:
            return []
        sent = [*self.send(self.first_sent, texts), *self.wait(self.first_sent)]
        return braces("", ["const int step = -1;", "const bool running = 0 < coords0.length;", *sent])

    @cached_property
    def carried(self) -> list[int]:
        """The stages whose inputs the step before sends."""
        return [n for n, stage in enumerate(self.stages) if stage.carried]

    def run_carried(self) -> list[str]:
        return [f"product{n}(coords{n}, exchange{n}, {self.round_of(n)}, sum{n});" for n in self.carried]

    def send_carried(self, texts: Texts) -> list[str]:
        return self.send(self.carried, texts)

    def end_step(self) -> list[str]:
        """Read the streams of the next step, and wait for the inputs of its carried stages."""
        return ["read_streams(step + 1);", *self.wait(self.carried)]

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
