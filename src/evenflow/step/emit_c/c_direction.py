"""What both passes of a step have in common as C: leaves, memory, and the function around the loop over time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

from evenflow.step.emit_c.c_loops import CLoops, Pointer, sum_name
from evenflow.step.emit_c.c_sizes import CSizes, number_names
from evenflow.step.generated_code import braces, tensor_names
from evenflow.step.graph import Node
from evenflow.step.places import Place, Places, layout
from evenflow.step.program import flat
from evenflow.step.schedule import PassProduct, Schedule


class CDirection:
    """One pass of a step; see `CForward` and `CBackward`.

    The names in its text: ``m`` the model, ``t`` the step, ``b`` the row of the batch, ``j`` the unit. A thread runs
    the rows from ``low`` to ``high``, of which those before ``running`` still run at this step. ``at`` is the first row
    of the step in arrays of all steps.

    Attributes:
        scratch: a thread's memory, in the order of its allocation: names, and how many numbers.
        packing: statements that bring each model's matrices into the order in which products read them.
        buffers: where a step's passes over the units store nodes that its later passes read.
        results: where products write their results.
    """

    backward = False
    loop = "for (int64_t t = 0; t < T; t++)"

    def __init__(self, places: Places) -> None:
        self.places, self.program, self.gradient = places, places.program, places.gradient
        self.sizes = CSizes(layout(self.program))
        self.scratch: list[tuple[str, str]] = []
        self.packing: list[str] = []
        self.buffers: dict[Node, Pointer] = {}
        self.results: dict[Node, Pointer] = {}

    # What the two passes define.

    def arrays(self) -> list[tuple[str, Sequence[Node], str]]:
        """Arrays that leaves are read from: name of the row's pointer, its blocks, type of its numbers."""
        raise NotImplementedError

    def products(self) -> list[PassProduct]:
        raise NotImplementedError

    def targets(self) -> list[Node]:
        raise NotImplementedError

    def stores(self) -> dict[Node, list[Pointer]]:
        """Where computed nodes are stored."""
        raise NotImplementedError

    def allocate_products(self, products: Sequence[PassProduct]) -> None:
        """Allocate matrices and results of products."""
        raise NotImplementedError

    def allocate_buffers(self, schedule: Schedule, products: Sequence[PassProduct]) -> None:
        """Allocate what later passes over the units read."""
        for v in (v for unit_pass in schedule.passes() for v in unit_pass.saved):
            self.allocate_saved(v)

    def product_text(self, product: PassProduct) -> list[str]:
        raise NotImplementedError

    def model_text(self) -> list[str]:
        """Statements at the beginning of each model."""
        raise NotImplementedError

    def step_text(self) -> list[str]:
        """Statements at the beginning of each step."""
        raise NotImplementedError

    def row_text(self) -> list[str]:
        """Pointers to the current row."""
        raise NotImplementedError

    def reset_text(self) -> list[str]:
        resets = self.program.resets
        return [self.row("resets", "resets", "(at + b)", resets)] if resets else []

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
    def streams(self) -> dict[Node, Pointer]:
        """The leaves in arrays."""
        streams: dict[Node, Pointer] = {}
        for name, blocks, kind in self.arrays():
            for v, pointer in self.pointers(name, blocks, f"const {kind}"):
                streams.setdefault(v, pointer)
        return streams

    @cached_property
    def parameters(self) -> dict[Node, Pointer]:
        parameters: dict[Node, Pointer] = {}
        for i, blocks in enumerate(self.program.parameters):
            parameters |= dict(self.pointers(f"p{i}", blocks, "const REAL"))
        return parameters

    def pointers(self, name: str, blocks: Sequence[Node], kind: str = "REAL") -> list[tuple[Node, Pointer]]:
        """The blocks of a row at `name`, with their pointers."""
        return [(v, Pointer(f"{name} + {self.sizes.of(blocks[:k])}", kind)) for k, v in enumerate(blocks)]

    def is_leaf(self, v: Node) -> bool:
        return v.op == "const" or v in self.streams or v in self.parameters

    def leaf(self, v: Node, variable: Callable[[Pointer], str]) -> str | None:
        for pointers in (self.streams, self.parameters, self.results):
            if v in pointers:
                return f"{variable(pointers[v])}[]"
        return None

    # Memory and products.

    def tensor(self, name: str, kind: str = "const REAL") -> str:
        return f"({kind} *)job->tensor[{tensor_names(self.program, self.backward, matrices=True).index(name)}]"

    def row(self, name: str, tensor: str, at: str, blocks: Sequence[Node], kind: str = "const REAL") -> str:
        """A pointer to row `at` of a tensor."""
        return f"{kind} *{name} = {self.tensor(tensor, kind)} + {at} * {self.sizes.of(blocks)};"

    def allocate(self, name: str, numbers: str) -> None:
        self.scratch.append((name, numbers))

    def allocate_rows(self, name: str, row: str) -> None:
        self.allocate(name, f"rows * {row}")

    def allocate_saved(self, v: Node) -> None:
        """Memory for a node between two passes over the units."""
        if v not in self.buffers:
            self.allocate_rows(f"saved{v.id}", self.sizes.of(v))
            self.buffers[v] = Pointer(f"saved{v.id} + (b - low) * {self.sizes.of(v)}")

    def allocate_result(self, name: str, nodes: Sequence[Node]) -> None:
        """Memory for the result of a product, whose rows are padded to whole panels."""
        row = f"NAME(padded)({self.sizes.of(nodes)})"
        self.allocate_rows(name, row)
        self.results |= dict(self.pointers(f"{name} + (b - low) * {row}", nodes, "const REAL"))

    def matrix(self, p: int, n: int) -> str:
        """The address of the part of a matrix that a product uses."""
        view = self.program.products[p].views[n]
        return f"{self.tensor(f'w{view.matrix}')} + m * size{view.matrix} + view{p}_{n}"

    def source(self, place: Place | None, pointers: Mapping[str, str]) -> tuple[str, str] | None:
        """Address of a product's inputs at row `low`, and the stride of rows; None where they have to be joined."""
        if place is None:
            return None
        row = self.sizes.of(place.row)
        name = pointers.get(f"{place.array}{place.index}" if place.array in ("before", "state") else place.array)
        return None if name is None else (f"{name} + low * {row} + {self.sizes.of(place.skipped)}", row)

    def is_square(self, p: int) -> bool:
        """Return True for a product of one whole square matrix, whose large entries are then added last."""
        product = self.program.products[p]
        view = product.views[0]
        whole = len(product.views) == 1 and (view.rows, view.columns) == self.program.matrices[view.matrix]
        return whole and not view.transposed and self.sizes.of(product.inputs) == self.sizes.of(product.outputs[0])

    # The whole.

    def text(self) -> str:
        products = self.products()
        schedule = Schedule(products, self.targets(), self.is_leaf)
        self.allocate_products(products)
        self.allocate_buffers(schedule, products)
        for v in (v for unit_pass in schedule.passes() for v in unit_pass.sums):
            self.allocate(sum_name(v), "rows")
        by_number = {product.number: product for product in products}
        stored: dict[Node, Pointer] = {}
        body: list[str] = []
        for phase in schedule.phases:
            for p in phase.products:
                body += self.product_text(by_number[p])
            if not phase.passes:
                continue
            lines = [*self.row_text(), *([] if stored else self.tap_text())]
            for unit_pass in phase.passes:
                lines += CLoops(self.sizes, self.stores(), dict(stored), self.leaf, resets=self.program.resets).text(
                    unit_pass, schedule
                )
                stored |= {v: self.buffers[v] for v in (*unit_pass.roots, *unit_pass.saved) if v in self.buffers}
            body += self.each_row(lines)
        return self._function(body)

    def each_row(self, lines: Sequence[str]) -> list[str]:
        return braces("for (int64_t b = low; b < running; b++)", lines)

    def _function(self, body: list[str]) -> str:
        name = "backward" if self.backward else "forward"
        numbers = [f"const int64_t {n} = job->number[{k}];" for k, n in enumerate(number_names(self.places))]
        split = {piece for piece, _ in self.scratch if piece.startswith("split")}
        allocate = [
            f"NAME(split) {piece} = NAME(take_split)(&scratch, {n});"
            if piece in split
            else f"REAL *{piece} = NAME(take)(&scratch, {n});"
            for piece, n in self.scratch
        ]
        needed = [f"NAME(split_scratch)({n})" if piece in split else n for piece, n in self.scratch]
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
            *braces("if (!job->packed)", self.packing),
            *braces(self.loop, steps),
            *self.model_end(),
        ]
        rows = [
            "const struct job *job = argument;",
            "const int64_t B = job->batch, T = job->steps, rows = last - first;",
            *numbers,
            *allocate,
            *braces("for (int64_t m = first / B; m * B < last; m++)", models),
        ]
        call = [
            "const int64_t B = job->batch, T = job->steps;",
            *numbers,
            "int64_t bounds[MOST_THREADS + 1];",
            f"const double work = (double)job->models * T * B * ({self._work()});",
            "const int64_t threads = job->bytes || job->scratch ? 1 : worthwhile(job->threads, work);",
            "split_rows(job->models, B, T, job->batch_sizes, threads, bounds);",
            "const int64_t rows = longest(bounds, threads);",
            *(f"expect({self.tensor(n, k)}, sizeof({k}) * job->models * T * B * {c});" for n, k, c in self.written()),
            f"const size_t bytes = ({' + '.join(needed) or '0'}) * sizeof(REAL) + {margin};",
            "if (job->bytes) return *job->bytes = bytes, 0;",
            f"if (job->scratch) return alone(NAME({name}_rows), job, rows, job->scratch);",
            f"return parallel(NAME({name}_rows), job, bounds, threads, bytes);",
        ]
        head = f"static void NAME({name}_rows)(const void *argument, int64_t first, int64_t last, char *scratch)"
        return "\n".join([*braces(head, rows), "", *braces(f"int NAME({name})(const struct job *job)", call), ""])

    def _work(self) -> str:
        """Multiplications of one row and step."""
        parts = [f"{self.sizes.of(p.inputs)} * {self.sizes.of(flat(p.outputs))}" for p in self.program.products]
        return " + ".join([self.sizes.of(flat(self.program.states)), *parts])
