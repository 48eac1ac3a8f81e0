"""The backward pass of a step as a kernel."""

from __future__ import annotations

from functools import cached_property

from evenflow.step.emit_cuda.cuda_direction import CudaDirection
from evenflow.step.emit_cuda.cuda_items import ITEMS, Texts, text_of
from evenflow.step.emit_cuda.cuda_stages import SUMS, size
from evenflow.step.generated_code import braces
from evenflow.step.graph import Node
from evenflow.step.places import Places
from evenflow.step.program import flat
from evenflow.step.schedule import PassProduct


class CudaBackward(CudaDirection):
    """The gradients, from the last step to the first."""

    backward = True

    def __init__(self, places: Places) -> None:
        super().__init__(places)
        # The gradients by the states before as `Places` has them, but what is no product is known to the step itself.
        parts = self.narrow.parts
        self.deferred = [
            [[w for v in nodes if (w := parts[v][0] if v in parts else v) is not None] for nodes in blocks]
            for blocks in places.deferred
        ]
        self.handed: list[list[Node | None]] = []
        for blocks, deferred, carried in zip(self.program.states, places.deferred, places.carried, strict=True):
            summands = [
                [*([] if c is None else [c]), *(parts[v][1] for v in d if v in parts)]
                for d, c in zip(deferred, carried, strict=True)
            ]
            self.handed.append([places.total(v, b.width) for v, b in zip(summands, blocks, strict=True)])

    def targets(self) -> list[Node]:
        handed = [v for blocks in self.handed for v in blocks if v is not None]
        return [*self.gradient.a, *self.places.rest, *handed, *self.places.added]

    @property
    def rows(self) -> list[tuple[str, tuple[Node, ...]]]:
        before = [(f"before{i}", blocks) for i, blocks in enumerate(self.program.states)]
        after = [(f"after{i}", blocks) for i, blocks in enumerate(self.program.new)]
        return [*before, *after, *self._arrays]

    @property
    def _arrays(self) -> list[tuple[str, tuple[Node, ...]]]:
        arrays = [("kept", self.places.kept), ("marks", self.places.marks), ("again", self.places.again)]
        arrays.append(("a", self.program.a))
        return [*arrays, *([("resets", self.program.resets)] if self.program.resets else [])]

    def in_registers(self) -> set[Node]:
        return set(flat(self.gradient.by_new))

    def is_carried(self, product: PassProduct) -> bool:
        """Return True if only the step before reads the product's outputs."""
        if product.number >= SUMS:
            return False
        stack, seen = [*self.targets(), *(v for other in self.products for v in other.inputs)], set()
        while stack:
            v = stack.pop()
            if v in product.outputs:
                return False
            if v not in seen and not self.is_leaf(v):
                seen.add(v)
                stack.extend(self.operands(v))
        return True

    @cached_property
    def arriving(self) -> list[tuple[int, int, Node]]:
        """State and block of the gradients by new states."""
        return [(i, k, v) for i, blocks in enumerate(self.gradient.by_new) for k, v in enumerate(blocks)]

    @property
    def stream_count(self) -> int:
        return len(self.streams) + len(self.arriving)

    def leaf_texts(self) -> dict[Node, str]:
        return super().leaf_texts() | {v: f"g{i}_{k}[q]" for i, k, v in self.arriving}

    def start_copies(self) -> list[str]:
        lines = super().start_copies()
        for n, (i, k, v) in enumerate(self.arriving, len(self.streams)):
            blocks, grad = self.gradient.by_new[i], self.tensor(f"g{i}")
            row, offset = size(blocks), size(blocks[:k])
            call = f"fetch_block<T0, {v.width}, {self.is_aligned(offset, row, v.width)}>"
            lines.append(f"if ({grad}) {call}(coords0, prefetch, step, {n}, {grad} + at * {row} + {offset});")
        return lines

    def _from_later(self, i: int, k: int, texts: Texts) -> str:
        """The gradient by block k of state i that comes from the step after."""
        parts = [f"carry{i}_{k}[q]"] if self.handed[i][k] is not None else []
        return " + ".join([*parts, *(texts[v] for v in self.deferred[i][k])]) or "0.0f"

    def body(self) -> list[str]:
        program, places, added = self.program, self.places, self.places.added
        leaves = super().leaf_texts()
        handed = [(i, k, node) for i, k, _ in self.arriving if (node := self.handed[i][k]) is not None]
        middle, texts = self.middle()
        first_gradients = [
            line
            for i, blocks in enumerate(program.states)
            for line in self.write(
                f"d_s0_{i}", "start", blocks, [self._from_later(i, k, leaves) for k in range(len(blocks))]
            )
        ]
        incoming = [
            f"g{i}_{k}[q] = running && {self.has(v)} ? "
            f"({self.tensor(f'g{i}')} ? x[{n}][q] : 0.0f) + {self._from_later(i, k, leaves)} : 0.0f;"
            for n, (i, k, v) in enumerate(self.arriving, len(self.streams))
        ]
        store = ["const size_t at = first + (size_t)t * job.batch;"]
        for name, blocks in (("d_a", self.gradient.a), ("d_rest", places.rest)):
            store += self.write(name, "at", blocks, [text_of(v, texts) for v in blocks])
        tapped = self.gradient.by_new[0]
        tap = self.write("tap", "at", tapped, [f"g0_{k}[q]" for k in range(len(tapped))])
        carry = []
        for i, k, v in handed:
            carry.append(f"carry{i}_{k}[q] = running && {self.has(v)} ? {text_of(v, texts)} : 0.0f;")
        for n, v in enumerate(added):
            total = f"parameter_sums[{n}][q] += recent[{n}][q], recent[{n}][q] = 0;"
            carry.append(f"if (running && coords0.unit(q) < {v.width}) recent[{n}][q] += {text_of(v, texts)};")
            carry.append(f"if (T0::TENSOR_CORES || t % SHORT_SUM == 0) {total}")
        loop = [
            "const int t = coords0.steps - 1 - step;",
            *self.run_carried(),
            *braces(
                "if (t < 0)", [*braces("if (coords0.copy == 0 && coords0.runs())", first_gradients), "break;"]
            ),  # there is one product more than steps, for the initial states
            "const bool running = t < coords0.length;",
            *(f"float g{i}_{k}[T0::ITEMS];" for i, k, _ in self.arriving),
            *braces(ITEMS, incoming),
            *middle,
            *self.send_carried(texts),
            *braces("if (coords0.copy == 0 && running)", [*store, *braces(f"if ({self.tensor('tap')})", tap)]),
            *braces(ITEMS, carry),
            *self.end_step(),
        ]
        sums = [f"{kind}[{len(added)}][T0::ITEMS] = {{}};" for kind in ("double parameter_sums", "float recent")]
        stages = range(len(self.stages))
        return [
            *self.begin(),
            *self.copy_streams(self._addresses(), "step < coords0.steps && coords0.steps - 1 - step < coords0.length"),
            *(f"float carry{i}_{k}[T0::ITEMS] = {{}};" for i, k, _ in handed),
            *(sums if added else []),
            *(f"exchange{n}.init(coords{n}, [&](int, int, int) {{ return 0.0f; }});" for n in stages),
            *(f"float sum{n}[T{n}::SUMS][T{n}::OUT] = {{}};" for n in stages),
            *braces("for (int step = 0;; step++)", loop),
            *self.finish(),
            *(self._store_sums() if added else []),
        ]

    def _addresses(self) -> list[str]:
        """Pointers to the row of a step in each array."""
        lines = ["const int t = coords0.steps - 1 - step;", "const size_t at = first + (size_t)t * job.batch;"]
        for i, blocks in enumerate(self.program.states):
            row, states = size(blocks), self.tensor(f"s{i}")
            before = f"t ? {states} + (at - job.batch) * {row} : {self.tensor(f's0_{i}')} + start * {row}"
            lines += [f"const float *before{i} = {before};", f"const float *after{i} = {states} + at * {row};"]
        for name, blocks in self._arrays:
            kind = "const signed char" if name == "marks" else "const float"
            lines.append(f"{kind} *{name} = {self.tensor(name, kind)} + at * {size(blocks)};")
        return lines

    def _store_sums(self) -> list[str]:
        """Write the sums over all steps for gradients by parameters, of each row and unit."""
        each = f"UNROLL for (int n = 0; n < {len(self.places.added)}; n++)"
        place = f"(n * job.models * job.batch + start) * {self.width} + coords0.unit(q)"
        write = f"{self.tensor('sums', 'double')}[{place}] = parameter_sums[n][q];"
        return [
            "if (coords0.copy == 0 && coords0.runs())",
            f"{each} {ITEMS} if (coords0.unit(q) < {self.width}) {write}",
        ]
