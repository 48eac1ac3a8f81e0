"""What both directions of a step have in common as C: leaves, memory, and the function around the loop over time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

from evenflow.step.emit_c.c_loops import CLoops, Spot, sum_name
from evenflow.step.emit_c.c_sizes import CSizes, number_names, tensor_names
from evenflow.step.graph import Node
from evenflow.step.places import Place, Places, layout
from evenflow.step.program import flat
from evenflow.step.schedule import PassProduct, Schedule


class CDirection:
    """One direction of a step; see `CForward` and `CBackward`.

    Attributes:
        scratch: memory of a thread in the order in which it is taken: what it is for, and how many numbers.
        packed: statements that bring each model's matrices into the order of products.
        buffers: where passes leave what later passes of a step read.
        results: where products leave their results.
    """

    backward = False
    loop = "for (int64_t t = 0; t < T; t++) {"

    def __init__(self, places: Places) -> None:
        self.places, self.program, self.gradient = places, places.program, places.gradient
        self.sizes = CSizes(layout(self.program))
        self.scratch: list[tuple[str, str]] = []
        self.packed: list[str] = []
        self.buffers: dict[Node, Spot] = {}
        self.results: dict[Node, Spot] = {}

    # What the two directions differ in.

    def arrays(self) -> list[tuple[str, Sequence[Node], str]]:
        """Arrays that leaves are read from: name of the row's pointer, its blocks, type of its numbers."""
        raise NotImplementedError

    def made(self) -> list[PassProduct]:
        raise NotImplementedError

    def targets(self) -> list[Node]:
        raise NotImplementedError

    def stores(self) -> dict[Node, list[Spot]]:
        """Where computed nodes are stored."""
        raise NotImplementedError

    def place_results(self, made: Sequence[PassProduct]) -> None:
        """Take memory for matrices and results of products."""
        raise NotImplementedError

    def place_buffers(self, schedule: Schedule, made: Sequence[PassProduct]) -> None:
        """Take memory for what later passes of a step read."""
        for v in (v for each in schedule.passes() for v in each.saved):
            self.save(v)

    def product_text(self, made: PassProduct) -> list[str]:
        raise NotImplementedError

    def model_text(self) -> list[str]:
        """Statements at the beginning of each model."""
        raise NotImplementedError

    def step_text(self) -> list[str]:
        """Statements at the beginning of each step."""
        raise NotImplementedError

    def row_text(self) -> list[str]:
        """Pointers to the row under way."""
        raise NotImplementedError

    def tap_text(self) -> list[str]:
        return []

    def step_end(self) -> list[str]:
        return []

    def model_end(self) -> list[str]:
        return []

    def written(self) -> list[tuple[str, str, str]]:
        """Large results: tensor, type and numbers of a row."""
        raise NotImplementedError

    # Leaves.

    @cached_property
    def streams(self) -> dict[Node, Spot]:
        found: dict[Node, Spot] = {}
        for name, blocks, kind in self.arrays():
            for k, v in enumerate(blocks):
                found.setdefault(v, Spot(f"{name} + {self.sizes.of(blocks[:k])}", f"const {kind}"))
        return found

    @cached_property
    def parameters(self) -> dict[Node, Spot]:
        found: dict[Node, Spot] = {}
        for i, blocks in enumerate(self.program.parameters):
            for k, v in enumerate(blocks):
                found[v] = Spot(f"p{i} + {self.sizes.of(blocks[:k])}", "const REAL")
        return found

    def is_leaf(self, v: Node) -> bool:
        return v.op == "const" or v in self.streams or v in self.parameters

    def leaf(self, v: Node, pointer: Callable[[Spot], str]) -> str | None:
        for found in (self.streams, self.parameters, self.results):
            if v in found:
                return f"{pointer(found[v])}[]"
        return None

    # Memory and products.

    def tensor(self, name: str, kind: str = "const REAL") -> str:
        return f"({kind} *)job->tensor[{tensor_names(self.places, self.backward).index(name)}]"

    def row(self, name: str, tensor: str, at: str, blocks: Sequence[Node], kind: str = "const REAL") -> str:
        """A pointer to row `at` of a tensor."""
        return f"{kind} *{name} = {self.tensor(tensor, kind)} + {at} * {self.sizes.of(blocks)};"

    def take(self, name: str, numbers: str) -> None:
        self.scratch.append((name, numbers))

    def take_rows(self, name: str, row: str) -> None:
        self.take(name, f"rows * {row}")

    def save(self, v: Node) -> None:
        """Memory for a node between two passes."""
        if v not in self.buffers:
            self.take_rows(f"saved{v.id}", self.sizes.of(v))
            self.buffers[v] = Spot(f"saved{v.id} + (b - low) * {self.sizes.of(v)}")

    def place_result(self, name: str, nodes: Sequence[Node]) -> None:
        """Memory for the result of a product, whose rows are as long as its panels."""
        row = f"NAME(padded)({self.sizes.of(nodes)})"
        self.take_rows(name, row)
        for k, v in enumerate(nodes):
            self.results[v] = Spot(f"{name} + (b - low) * {row} + {self.sizes.of(nodes[:k])}", "const REAL")

    def matrix(self, p: int, n: int) -> str:
        """Where the part of a matrix begins that a product uses."""
        view = self.program.products[p].views[n]
        return f"{self.tensor(f'w{view.matrix}')} + m * size{view.matrix} + view{p}_{n}"

    def source(self, place: Place | None, pointers: Mapping[str, str]) -> tuple[str, str] | None:
        """Address of a product's inputs at row `low`, and from row to row; None where they have to be joined."""
        if place is None:
            return None
        row = self.sizes.of(place.row)
        name = pointers.get(f"{place.array}{place.index}" if place.array in ("before", "state") else place.array)
        return None if name is None else (f"{name} + low * {row} + {self.sizes.of(place.skipped)}", row)

    def is_square(self, p: int) -> bool:
        """Whether a product is of one whole square matrix, whose large entries are then added last."""
        product = self.program.products[p]
        view = product.views[0]
        whole = len(product.views) == 1 and (view.rows, view.columns) == self.program.matrices[view.matrix]
        return whole and not view.transposed and self.sizes.of(product.inputs) == self.sizes.of(product.outputs[0])

    # The whole.

    def text(self) -> str:
        made = self.made()
        schedule = Schedule(made, self.targets(), self.is_leaf)
        self.place_results(made)
        self.place_buffers(schedule, made)
        for v in (v for each in schedule.passes() for v in each.sums):
            self.take(sum_name(v), "rows")
        by_number = {m.number: m for m in made}
        known: dict[Node, Spot] = {}
        body: list[str] = []
        for phase in schedule.phases:
            for p in phase.products:
                body += self.product_text(by_number[p])
            if not phase.passes:
                continue
            inside = [*self.row_text(), *([] if known else self.tap_text())]
            for each in phase.passes:
                loops = CLoops(self.sizes, self.stores(), dict(known), self.leaf)
                inside += loops.text(each, schedule)
                known |= {v: self.buffers[v] for v in (*each.roots, *each.saved) if v in self.buffers}
            body += ["for (int64_t b = low; b < running; b++) {", *(f"    {line}" for line in inside), "}"]
        return self._function(body)

    def _function(self, body: list[str]) -> str:
        name = "backward" if self.backward else "forward"
        numbers = [f"const int64_t {n} = job->number[{k}];" for k, n in enumerate(number_names(self.places))]
        split = {which for which, _ in self.scratch if which.startswith("split")}
        takes = [
            f"NAME(split) {w} = NAME(take_split)(&scratch, {n});"
            if w in split
            else f"REAL *{w} = NAME(take)(&scratch, {n});"
            for w, n in self.scratch
        ]
        needed = [f"NAME(split_scratch)({n})" if w in split else n for w, n in self.scratch]
        margin = 64 * (3 * len(self.scratch) + 3)  # each piece begins at a cache line
        steps = [
            "const int64_t running = !job->batch_sizes || job->batch_sizes[t] > high ? high : job->batch_sizes[t];",
            "if (running <= low) continue;",
            "const int64_t at = (m * T + t) * B;",
            *self.step_text(),
            *body,
            *self.step_end(),
        ]
        models = [
            "const int64_t low = first > m * B ? first - m * B : 0;",
            "const int64_t high = last < (m + 1) * B ? last - m * B : B;",
            *self.model_text(),
            *self.packed,
            self.loop,
            *(f"    {line}" for line in steps),
            "}",
            *self.model_end(),
        ]
        rows = [
            "const struct job *job = argument;",
            "const int64_t B = job->batch, T = job->steps, rows = last - first;",
            *numbers,
            *takes,
            "for (int64_t m = first / B; m * B < last; m++) {",
            *(f"    {line}" for line in models),
            "}",
        ]
        call = [
            "const int64_t B = job->batch, T = job->steps;",
            *numbers,
            "int64_t bounds[MOST_THREADS + 1];",
            f"const int64_t threads = worthwhile(job->threads, (double)job->models * T * B * ({self._work()}));",
            "split_rows(job->models, B, T, job->batch_sizes, threads, bounds);",
            "const int64_t rows = longest(bounds, threads);",
            *(f"expect({self.tensor(n, k)}, sizeof({k}) * job->models * T * B * {c});" for n, k, c in self.written()),
            f"const size_t bytes = ({' + '.join(needed) or '0'}) * sizeof(REAL) + {margin};",
            f"return parallel(NAME({name}_rows), job, bounds, threads, bytes);",
        ]
        head = f"static void NAME({name}_rows)(const void *argument, int64_t first, int64_t last, char *scratch) {{"
        lines = [head, *(f"    {line}" for line in rows), "}", "", f"int NAME({name})(const struct job *job) {{"]
        return "\n".join([*lines, *(f"    {line}" for line in call), "}", ""])

    def _work(self) -> str:
        """Multiplications of one row and step."""
        parts = [f"{self.sizes.of(p.inputs)} * {self.sizes.of(flat(p.outputs))}" for p in self.program.products]
        return " + ".join([self.sizes.of(flat(self.program.states)), *parts])
