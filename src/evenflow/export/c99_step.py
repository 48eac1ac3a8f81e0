"""One step of a layer as a C function for one sequence, from the loops that the compiled CPU engine has too."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from evenflow.export.c99_constants import literal
from evenflow.export.c99_functions import C99Functions
from evenflow.export.c99_product import C99Products
from evenflow.export.exported_step import ExportedStep
from evenflow.step.compute import part
from evenflow.step.emit_c.c_loops import CLoops, Pointer, sum_name
from evenflow.step.emit_c.c_sizes import CSizes
from evenflow.step.generated_code import braces, forward_products
from evenflow.step.graph import Node
from evenflow.step.places import layout
from evenflow.step.program import flat
from evenflow.step.schedule import Pass, Schedule

Spot = tuple[str, int]  # an array, and where a block begins in it


class LiteralSizes(CSizes):
    """Widths as numbers."""

    def of(self, nodes: Sequence[Node] | Node) -> str:
        return str(sum(v.width for v in ([nodes] if isinstance(nodes, Node) else nodes)))

    def name(self, width: int) -> str:
        return str(width)


class C99Step:
    """Writes ``static void step_l0(const float *x, float *s0, ...)``, which replaces the states by the new ones.

    Args:
        suffix: of all names, such as ``_l0``.
        step: the step.
        products, functions: collect the constants and functions that it needs.
    """

    def __init__(self, suffix: str, step: ExportedStep, products: C99Products, functions: C99Functions) -> None:
        self.suffix, self.step, self.program = suffix, step, step.program
        self.products, self.functions = products, functions
        self.sizes = LiteralSizes(layout(self.program))
        self.arrays: list[tuple[str, int]] = []  # local memory
        self.spots: dict[Node, Spot] = dict(_spots("a", self.program.a))
        for i, blocks in enumerate(self.program.states):
            self.spots |= dict(_spots(f"s{i}", blocks))
        self.before = {v: i for i, blocks in enumerate(self.program.states) for v in blocks}
        self.parameters: dict[Node, tuple[int, int]] = {}
        for i, blocks in enumerate(self.program.parameters):
            self.parameters |= {v: (i, at) for v, (_, at) in _spots("", blocks)}
        self.listed = forward_products(self.program)
        self.schedule = Schedule(self.listed, flat(self.program.new), self._is_leaf)

    def text(self) -> list[str]:
        """The function."""
        new, stores = self._place_new_states()
        for p, outputs in enumerate(each.outputs for each in self.program.products):
            for n, out in enumerate(outputs):
                self.spots |= dict(_spots(self._local(f"z{p}_{n}", out), out))
        for v in (v for unit_pass in self.schedule.passes() for v in unit_pass.saved):
            self._save(v, stores)
        for product in self.listed:
            for v in product.inputs:
                if v not in self.spots:
                    self._save(v, stores)
        body = self._passes({v: [_pointer(spot) for spot in spots] for v, spots in stores.items()})
        for i, array in enumerate(new):
            if array != f"s{i}":
                body.append(_copy(array, f"s{i}", sum(v.width for v in self.program.states[i])))
        names = "".join(f", float *s{i}" for i in range(len(self.program.states)))
        weights, width = self.step.weights, self.step.weights["weight_ih"].shape[0]
        call = self.products.dense(
            f"weight_ih{self.suffix}", weights["weight_ih"], weights.get("bias"), "x", self._local("a", self.program.a)
        )
        assert width == dict(self.arrays)["a"]
        local = [f"float {name}[{size}];" for name, size in self.arrays]
        return braces(f"static void step{self.suffix}(const float *x{names})", [*local, call, *body])

    def _place_new_states(self) -> tuple[list[str], dict[Node, list[Spot]]]:
        """The array of each new state, and where each of its blocks is stored.

        A new state takes the place of the state before if nothing reads that afterwards, and an array of its own
        otherwise. A block of one number is stored before the loops of its pass, which may read it.
        """
        last = dict.fromkeys(range(len(self.program.states)), -1)
        made = dict.fromkeys(range(len(self.program.states)), -1)
        for at, (reads, writes) in enumerate(self._events()):
            last |= {self.before[v]: at for v in reads if v in self.before}
            for i, blocks in enumerate(self.program.new):
                if made[i] < 0 and any(v in writes for v in blocks):
                    made[i] = at
        names: list[str] = []
        stores: dict[Node, list[Spot]] = {}
        for i, blocks in enumerate(self.program.new):
            fits = last[i] <= made[i] and all(v.width > 1 for v in blocks)
            names.append(f"s{i}" if fits else self._local(f"new{i}", blocks))
            for v, spot in _spots(names[-1], blocks):
                stores.setdefault(v, []).append(spot)
                if not self._is_leaf(v):
                    self.spots.setdefault(v, spot)
        return names, stores

    def _events(self) -> Iterator[tuple[set[Node], set[Node]]]:
        """The products and passes in order: which leaves each reads, and which nodes it stores."""
        known: set[Node] = set()
        for phase in self.schedule.phases:
            for p in phase.products:
                yield set(self.program.products[p].inputs), set()
            for unit_pass in phase.passes:
                computed = self.schedule.computed(unit_pass, dict.fromkeys(known))
                targets = [*unit_pass.roots, *unit_pass.saved]
                yield {u for v in [*computed, *unit_pass.sums] for u in v.operands} | set(targets), set(targets)
                known |= set(targets)

    def _passes(self, stores: dict[Node, list[Pointer]]) -> list[str]:
        body: list[str] = []
        stored: dict[Node, Pointer] = {}
        for phase in self.schedule.phases:
            for p in phase.products:
                body += self._product(p)
            for unit_pass in phase.passes:
                body += self._sums(unit_pass)
                loops = CLoops(self.sizes, stores, dict(stored), self._leaf, row="0")
                body += [self._plain(line) for line in loops.text(unit_pass, self.schedule) if line.strip() != "EACH"]
                kept = (v for v in (*unit_pass.roots, *unit_pass.saved) if v in stores and not self._is_leaf(v))
                stored |= {v: stores[v][0] for v in kept}
        return body

    def _sums(self, unit_pass: Pass) -> list[str]:
        return [f"float {sum_name(v)}[1];" for v in unit_pass.sums]

    def _product(self, p: int) -> list[str]:
        product = self.program.products[p]
        spots = [self.spots[v] for v in product.inputs]
        lines: list[str] = []
        x, at = _address(spots[0]), 0
        for v, (array, offset) in zip(product.inputs, spots, strict=True):
            if (array, offset) != (spots[0][0], spots[0][1] + at):  # not side by side
                x, lines = self._joined(p)
                break
            at += v.width
        for n, (view, out) in enumerate(zip(product.views, product.outputs, strict=True)):
            matrix = self.step.matrices[view.matrix]
            whole = not view.transposed and (view.rows, view.columns) == tuple(matrix.shape)
            name, map = f"w{p}_{n}{self.suffix}", self.step.maps[view.matrix] if whole else None
            call = None if map is None else self.products.mapped(name, *map, x, f"z{p}_{n}")
            lines.append(call or self.products.dense(name, part(matrix, view), None, x, f"z{p}_{n}"))
            assert sum(v.width for v in out) == view.height
        return lines

    def _joined(self, p: int) -> tuple[str, list[str]]:
        """Copy the inputs of a product side by side."""
        inputs = self.program.products[p].inputs
        name = self._local(f"x{p}", inputs)
        pairs = zip(inputs, _spots(name, inputs), strict=True)
        return name, [_copy(_address(self.spots[v]), _address(to), v.width) for v, (_, to) in pairs]

    def _local(self, name: str, blocks: Sequence[Node]) -> str:
        self.arrays.append((name, sum(v.width for v in blocks)))
        return name

    def _save(self, v: Node, stores: dict[Node, list[Spot]]) -> None:
        """Memory for a node that a later pass or a product reads."""
        if v not in stores:
            stores[v] = [(self._local(f"saved{v.id}", [v]), 0)]
        self.spots.setdefault(v, stores[v][0])

    def _is_leaf(self, v: Node) -> bool:
        return v.op in ("const", "input")

    def _leaf(self, v: Node, variable: Callable[[Pointer], str]) -> str | None:
        """The text that reads a number of the input, a state, a parameter or the result of a product."""
        if v in self.parameters:
            i, at = self.parameters[v]
            name, values = self.step.names[i], self.step.parameters[i]
            assert values is not None
            name = f"parameter_{name if name.isascii() else i}{self.suffix}"
            array = self.products.constants.floats(name, values)
            return f"{variable(Pointer(_address((array, at)), 'const REAL'))}[]"
        if v.op in ("input", "product"):
            return f"{variable(Pointer(_address(self.spots[v]), 'const REAL'))}[]"
        return None

    def _plain(self, line: str) -> str:
        """A line of the compiled engine as C99 for floats."""
        line = re.sub(r"\(REAL\)(-?\d[\d.e+-]*)", lambda m: literal(float(m[1])), line)
        line = re.sub(r"NAME\((\w+)\)", lambda m: self.functions.name(m[1]), line)
        line = re.sub(r"\b(INFINITY|NAN)\b", lambda m: self.functions.special(m[1]), line)
        return line.replace("*restrict ", "*").replace("REAL", "float").replace("int64_t", "int")


def _spots(array: str, blocks: Sequence[Node]) -> list[tuple[Node, Spot]]:
    """Where blocks are that stand side by side in an array."""
    spots, at = [], 0
    for v in blocks:
        spots.append((v, (array, at)))
        at += v.width
    return spots


def _address(spot: Spot) -> str:
    return spot[0] if spot[1] == 0 else f"{spot[0]} + {spot[1]}"


def _pointer(spot: Spot) -> Pointer:
    return Pointer(_address(spot))


def _copy(source: str, to: str, count: int) -> str:
    return f"for (int j = 0; j < {count}; j++) ({to})[j] = ({source})[j];"
