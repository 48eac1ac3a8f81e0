"""The backward pass of a step as a kernel."""

from __future__ import annotations

from functools import cached_property

from evenflow.step.emit_cuda.cuda_direction import CudaDirection, number
from evenflow.step.emit_cuda.cuda_stages import SUMS, size
from evenflow.step.graph import Node, View
from evenflow.step.program import flat
from evenflow.step.schedule import PassProduct


class CudaBackward(CudaDirection):
    """The gradients, from the last step to the first."""

    backward = True

    def targets(self) -> list[Node]:
        carried = [v for blocks in self.places.carried for v in blocks if v is not None]
        return [*self.gradient.a, *self.places.rest, *carried, *self.places.added]

    def _products(self) -> list[PassProduct]:
        found = []
        for p, views in enumerate(self.gradient.outputs):
            if views and self.gradient.returned[p]:
                found.append(PassProduct(p, tuple(flat(views)), self.gradient.returned[p]))
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

    def is_carried(self, made: PassProduct) -> bool:
        """Whether all that it returns is read by the step before alone."""
        if made.number >= SUMS:
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
        return [*names, *(f"weight{n}" for n in self.weighted)]

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
            row, offset = size(blocks), size(blocks[:k])
            aligned = self.is_aligned(offset, row, v.width)
            pointer = f"{self.tensor(f'g{i}')} + at * {row} + {offset}"
            call = f"fetch_block<T0, {v.width}, {aligned}>(coords0, prefetch, step, {n}, {pointer});"
            lines.append(f"if ({self.tensor(f'g{i}')}) {call}")
        return lines

    def _deferred(self, i: int, k: int, stage_of: dict[Node, str]) -> str:
        parts = [f"carry{i}_{k}[q]"] if self.places.carried[i][k] is not None else []
        parts += [stage_of[v] for v in self.places.deferred[i][k]]
        return " + ".join(parts) or "0.0f"

    def body(self) -> list[str]:
        program, places = self.program, self.places
        lines = self.begin()
        sums = super().leaf_text()
        addresses = ["const int t = coords0.steps - 1 - step;", "const size_t at = first + (size_t)t * job.batch;"]
        pointers: dict[str, str] = {}
        for i, blocks in enumerate(program.states):
            row = size(blocks)
            addresses.append(f"const float *before{i} = t ? {self.tensor(f's{i}')} + (at - job.batch) * {row} : "
                             f"{self.tensor(f's0_{i}')} + start * {row};")  # fmt: skip
            addresses.append(f"const float *after{i} = {self.tensor(f's{i}')} + at * {row};")
            pointers |= {f"before{i}": f"before{i}", f"after{i}": f"after{i}"}
        for name, blocks, kind in (("kept", places.kept, "const float"), ("marks", places.marks, "const signed char"),
                                   ("a", program.a, "const float")):  # fmt: skip
            addresses.append(f"{kind} *{name} = {self.tensor(name, kind)} + at * {size(blocks)};")
            pointers[name] = name
        lines += self.streams_text(
            "step", addresses, pointers, "step < coords0.steps && coords0.steps - 1 - step < coords0.length"
        )
        for i, k, _ in self.arrived:
            if places.carried[i][k] is not None:
                lines.append(f"float carry{i}_{k}[T0::ITEMS] = {{}};")
        if self.places.added:
            lines.append(f"double parameter_sums[{len(self.places.added)}][T0::ITEMS] = {{}};")
            lines.append(f"float recent[{len(self.places.added)}][T0::ITEMS] = {{}};")
        lines += [
            f"exchange{n}.init(coords{n}, [&](int, int, int) {{ return 0.0f; }});" for n in range(len(self.stages))
        ]
        lines += [f"float sum{n}[T{n}::SUMS][T{n}::OUT] = {{}};" for n in range(len(self.stages))]
        middle, arrays = self.phases("step")
        lines.append("for (int step = 0;; step++) {")
        lines.append("    const int t = coords0.steps - 1 - step;")
        lines += [f"    {line}" for line in self.arrays_text(arrays)]
        lines += [
            f"    product{n}(coords{n}, exchange{n}, step, sum{n});" for n, s in enumerate(self.stages) if s.carried
        ]
        lines.append("    if (t < 0) { /* one product more than steps, for the start */")
        lines.append("        if (coords0.copy == 0 && coords0.runs()) {")
        for i, k, _ in self.arrived:
            blocks = program.states[i]
            row, offset = size(blocks), size(blocks[:k])
            pointer = f"{self.tensor(f'd_s0_{i}', 'float')} + start * {row}"
            written = self.write_text(blocks[k], self._deferred(i, k, sums), pointer, offset, row)
            lines += [f"            {line}" for line in written]
        lines += ["        }", "        break;", "    }", "    const bool running = t < coords0.length;"]
        lines += [f"    float g{i}_{k}[T0::ITEMS];" for i, k, _ in self.arrived]
        lines.append("    UNROLL for (int q = 0; q < T0::ITEMS; q++) {")
        for n, (i, k, v) in enumerate(self.arrived, len(self.streams)):
            grad = f"({self.tensor(f'g{i}')} ? x[{n}][q] : 0.0f)"
            lines.append(
                f"        g{i}_{k}[q] = running && {self.has(v)} ? {grad} + {self._deferred(i, k, sums)} : 0.0f;"
            )
        lines.append("    }")
        lines += [f"    {line}" for line in middle]
        known = self.known
        lines += [f"    {line}" for line in self.send_carried("step")]
        lines.append("    if (coords0.copy == 0 && running) {")
        lines.append("        const size_t at = first + (size_t)t * job.batch;")
        for name, blocks in (("d_a", self.gradient.a), ("d_rest", places.rest)):
            for k, v in enumerate(blocks):
                row, offset = size(blocks), size(blocks[:k])
                pointer = f"{self.tensor(name, 'float')} + at * {row}"
                text = known[v] if v in known else number(v.args[0])
                lines += [f"        {line}" for line in self.write_text(v, text, pointer, offset, row)]
        lines.append(f"        if ({self.tensor('tap')}) {{")
        for i, k, v in self.arrived:
            if i == 0:
                blocks = self.gradient.by_new[0]
                row, offset = size(blocks), size(blocks[:k])
                pointer = f"{self.tensor('tap', 'float')} + at * {row}"
                lines += [f"            {line}" for line in self.write_text(v, f"g0_{k}[q]", pointer, offset, row)]
        lines += ["        }", "    }"]
        lines.append("    UNROLL for (int q = 0; q < T0::ITEMS; q++) {")
        for i, k, v in self.arrived:
            if (carried := places.carried[i][k]) is not None:
                text = known[carried] if carried in known else number(carried.args[0])
                lines.append(f"        carry{i}_{k}[q] = running && {self.has(v)} ? {text} : 0.0f;")
        for n, v in enumerate(self.places.added):
            there = f"coords0.unit(q) < {v.width}"
            text = known[v] if v in known else number(v.args[0])
            lines.append(f"        if (running && {there}) recent[{n}][q] += {text};")
            total = f"parameter_sums[{n}][q] += recent[{n}][q], recent[{n}][q] = 0;"
            lines.append(f"        if (T0::TENSOR_CORES || t % SHORT_SUM == 0) {total}")
        lines += ["    }", "    read_streams(step + 1);"]
        lines += [f"    {line}" for line in self.wait_carried("step")]
        lines.append("}")
        lines += [f"exchange{n}.finish();" for n in range(len(self.stages))]
        if self.places.added:
            lines.append("if (coords0.copy == 0 && coords0.runs())")
            each = f"UNROLL for (int n = 0; n < {len(self.places.added)}; n++)"
            lines.append(f"    {each} UNROLL for (int q = 0; q < T0::ITEMS; q++)")
            first = f"(n * job.models * job.batch + start) * {self.width}"
            place = f"{self.tensor('sums', 'double')}[{first} + coords0.unit(q)]"
            lines.append(f"        if (coords0.unit(q) < {self.width}) {place} = parameter_sums[n][q];")
        return lines
