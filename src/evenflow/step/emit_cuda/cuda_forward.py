"""The forward pass of a step as a kernel."""

from __future__ import annotations

from functools import cached_property

from evenflow.step.emit_cuda.cuda_direction import CudaDirection
from evenflow.step.emit_cuda.cuda_items import ITEMS, text_of
from evenflow.step.emit_cuda.cuda_stages import SUMS, CudaStage, size
from evenflow.step.generated_code import braces
from evenflow.step.graph import Node
from evenflow.step.program import flat
from evenflow.step.schedule import PassProduct


class CudaForward(CudaDirection):
    """Writes all states, and the numbers and marks that the backward pass reads."""

    def targets(self) -> list[Node]:
        return [*flat(self.program.new), *self.places.kept, *self.places.marks]

    @property
    def rows(self) -> list[tuple[str, tuple[Node, ...]]]:
        return [("a", self.program.a), ("resets", self.program.resets)]

    def in_registers(self) -> set[Node]:
        return set(flat(self.program.states))

    def is_carried(self, product: PassProduct) -> bool:
        """Return True if states, and for sums parameters, are all that the inputs are computed from."""
        if product.number < SUMS:
            return set(product.inputs) <= self.in_registers()
        computed = self._computed(product.inputs, set())
        read = {*product.inputs, *(u for v in computed for u in self.operands(v))} - computed
        known = all(v.op == "const" or v in self.parameters or v in self.in_registers() for v in read)
        return known and not any(v.op in ("product", "sum") for v in computed)

    @cached_property
    def registers(self) -> dict[Node, tuple[int, int]]:
        """State and block of the states that a thread has."""
        return {v: (i, k) for i, blocks in enumerate(self.program.states) for k, v in enumerate(blocks)}

    def state_texts(self) -> dict[Node, str]:
        return {v: f"s{i}_{k}[q]" for v, (i, k) in self.registers.items()}

    def leaf_texts(self) -> dict[Node, str]:
        return super().leaf_texts() | self.state_texts()

    def body(self) -> list[str]:
        program, states = self.program, self.state_texts()
        load, row = [], "first + (size_t)step * job.batch"
        addresses = [f"const float *a = {self.tensor('a')} + ({row}) * {size(program.a)};"]
        addresses += [f"const float *resets = {self.tensor('resets')} + {row};"] if program.resets else []
        for v, (i, k) in self.registers.items():
            blocks = program.states[i]
            unit = "0" if v.width == 1 < self.width else "coords0.unit(q)"
            place = f"{self.tensor(f's0_{i}')}[start * {size(blocks)} + {size(blocks[:k])} + {unit}]"
            load.append(f"float s{i}_{k}[T0::ITEMS];")
            load.append(f"{ITEMS} {states[v]} = coords0.runs() && {self.has(v)} ? {place} : 0.0f;")
        middle, texts = self.middle()
        pairs = list(zip(self.registers.items(), flat(program.new), strict=True))
        next_states = [
            f"const float next{i}_{k} = running && {self.has(v)} ? {text_of(new, texts)} : 0.0f;"
            for (v, (i, k)), new in pairs
        ]
        assign = [f"s{i}_{k}[q] = next{i}_{k};" for i, k in self.registers.values()]
        store = ["const size_t at = first + (size_t)step * job.batch;"]
        for i, blocks in enumerate(program.states):
            store += self.write(f"s{i}", "at", blocks, [states[v] for v in blocks])
        for name, blocks, kind in (("kept", self.places.kept, "float"), ("marks", self.places.marks, "signed char")):
            store += self.write(name, "at", blocks, [texts[v] for v in blocks], kind)
        loop = [
            *(f"float sum{n}[T{n}::SUMS][T{n}::OUT];" for n in range(len(self.stages))),
            "const bool running = step < coords0.length;",
            *self.run_carried(),
            *middle,
            *braces(ITEMS, [*next_states, *assign]),
            *self.send_carried(states | self.parameter_texts()),
            *braces("if (coords0.copy == 0 && running)", store),
            *self.end_step(),
        ]
        return [
            *self.begin(),
            *load,
            *self.copy_streams(addresses, "step < coords0.length"),
            *(line for n, stage in enumerate(self.stages) for line in self._init_exchange(n, stage)),
            *self.send_first(states | self.parameter_texts()),
            *braces("for (int step = 0; step < coords0.steps; step++)", loop),
            *self.finish(),
        ]

    def _init_exchange(self, n: int, stage: CudaStage) -> list[str]:
        """The first inputs of a stage: the initial states of a carried product, zeros of others."""
        if not stage.carried or stage.product is None:
            return [f"exchange{n}.init(coords{n}, [&](int, int, int) {{ return 0.0f; }});"]
        lines = []
        for at, v in enumerate(stage.inputs):
            i, k = self.registers[v]
            blocks = self.program.states[i]
            place = f"(coords0.model * job.batch + row) * {size(blocks)} + {size(blocks[:k])} + unit"
            lines.append(f"if (in == {at}) return unit < {v.width} ? {self.tensor(f's0_{i}')}[{place}] : 0.0f;")
        return braces(f"exchange{n}.init(coords{n}, [&](int row, int in, int unit)", [*lines, "return 0.0f;"], "});")
