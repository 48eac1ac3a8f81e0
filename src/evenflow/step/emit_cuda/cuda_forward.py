"""The forward pass of a step as a kernel."""

from __future__ import annotations

from functools import cached_property

from evenflow.step.emit_cuda.cuda_direction import CudaDirection, number
from evenflow.step.emit_cuda.cuda_stages import CudaStage, size
from evenflow.step.graph import Node
from evenflow.step.program import flat
from evenflow.step.schedule import PassProduct


class CudaForward(CudaDirection):
    """Writes all states, and the numbers and marks that the backward pass reads."""

    def targets(self) -> list[Node]:
        return [*flat(self.program.new), *self.places.kept, *self.places.marks]

    def _products(self) -> list[PassProduct]:
        return [PassProduct(p, x.inputs, tuple(flat(x.outputs))) for p, x in enumerate(self.program.products)]

    @property
    def rows(self) -> list[tuple[str, tuple[Node, ...]]]:
        return [("a", self.program.a)]

    def in_registers(self) -> set[Node]:
        return set(flat(self.program.states))

    def is_carried(self, made: PassProduct) -> bool:
        return set(made.inputs) <= set(flat(self.program.states))

    @property
    def tensors(self) -> list[str]:
        program = self.program
        names = ["a", *(f"s0_{i}" for i in range(len(program.states)))]
        names += [f"p{i}" for i in range(len(program.parameters))]
        names += [*(f"s{i}" for i in range(len(program.states))), "kept", "marks"]
        return [*names, *(f"weight{n}" for n in self.weighted)]

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
            unit = "0" if self.is_rowwise(v) else "coords0.unit(q)"
            place = f"{self.tensor(f's0_{i}')}[start * {size(blocks)} + {size(blocks[:k])} + {unit}]"
            lines.append(f"float s{i}_{k}[T0::ITEMS];")
            lines.append(
                f"UNROLL for (int q = 0; q < T0::ITEMS; q++) "
                f"s{i}_{k}[q] = coords0.runs() && {self.has(v)} ? {place} : 0.0f;"
            )
        lines += self.streams_text(
            "step",
            [f"const float *a = {self.tensor('a')} + (first + (size_t)step * job.batch) * {size(self.program.a)};"],
            {"a": "a"},
            "step < coords0.length",
        )
        for n, stage in enumerate(self.stages):
            lines += self._open(n, stage)
        middle, arrays = self.phases("step")
        lines.append("for (int step = 0; step < coords0.steps; step++) {")
        lines += [f"    float sum{n}[T{n}::SUMS][T{n}::OUT];" for n in range(len(self.stages))]
        lines += [f"    {line}" for line in self.arrays_text(arrays)]
        lines.append("    const bool running = step < coords0.length;")
        lines += [
            f"    product{n}(coords{n}, exchange{n}, step, sum{n});" for n, s in enumerate(self.stages) if s.carried
        ]
        lines += [f"    {line}" for line in middle]
        lines.append("    UNROLL for (int q = 0; q < T0::ITEMS; q++) {")
        for (i, k, v), new in zip(states, flat(self.program.new), strict=True):
            text = self.known[new] if new in self.known else number(new.args[0])
            lines.append(f"        const float next{i}_{k} = running && {self.has(v)} ? {text} : 0.0f;")
        lines += [f"        s{i}_{k}[q] = next{i}_{k};" for i, k, _ in states]
        lines.append("    }")
        lines += [f"    {line}" for line in self.send_carried("step")]
        lines.append("    if (coords0.copy == 0 && running) {")
        lines.append("        const size_t at = first + (size_t)step * job.batch;")
        for i, k, v in states:
            blocks = self.program.states[i]
            row, offset = size(blocks), size(blocks[:k])
            pointer = f"{self.tensor(f's{i}', 'float')} + at * {row}"
            lines += [f"        {line}" for line in self.write_text(v, f"s{i}_{k}[q]", pointer, offset, row)]
        for name, blocks, kind in (("kept", self.places.kept, "float"), ("marks", self.places.marks, "signed char")):
            for k, v in enumerate(blocks):
                row, offset = size(blocks), size(blocks[:k])
                pointer = f"{self.tensor(name, kind)} + at * {row}"
                lines += [f"        {line}" for line in self.write_text(v, self._kept(v), pointer, offset, row, kind)]
        lines.append("    }")
        lines.append("    read_streams(step + 1);")
        lines += [f"    {line}" for line in self.wait_carried("step")]
        lines.append("}")
        return [*lines, *(f"exchange{n}.finish();" for n in range(len(self.stages)))]

    def _kept(self, v: Node) -> str:
        """A node that is kept; states and sums of this step are there, the states before are not any more."""
        return self.known[v]

    def _open(self, n: int, stage: CudaStage) -> list[str]:
        if not stage.carried:
            return [f"exchange{n}.init(coords{n}, [&](int, int, int) {{ return 0.0f; }});"]
        lines = [f"exchange{n}.init(coords{n}, [&](int row, int in, int unit) {{"]
        for at, v in enumerate(stage.inputs):
            i, k = self.registers[v]
            blocks = self.program.states[i]
            place = f"(coords0.model * job.batch + row) * {size(blocks)} + {size(blocks[:k])} + unit"
            lines.append(f"    if (in == {at}) return unit < {v.width} ? {self.tensor(f's0_{i}')}[{place}] : 0.0f;")
        return [*lines, "    return 0.0f;", "});"]
