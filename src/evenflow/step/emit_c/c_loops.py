"""One pass over the units of a row as C loops: numbers per row first, then a loop for each width of blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from evenflow.step.emit_c.c_sizes import CSizes
from evenflow.step.generated_code import INFIX, braces
from evenflow.step.graph import Node
from evenflow.step.schedule import Pass, Schedule

EXPRESSIONS = {
    "positive": "(REAL)({0} <= 0 ? 0 : 1)",
    "less": "(REAL)({0} < {1} ? 1 : 0)",
    "less_equal": "(REAL)({0} <= {1} ? 1 : 0)",
    "equal": "(REAL)({0} == {1} ? 1 : 0)",
    "sign": "(REAL)(({0} > 0) - ({0} < 0))",
    "relu": "{0} <= 0 ? 0 : {0}",  # a comparison with NaN is false: NaN passes
    "abs": "{0} < 0 ? -{0} : {0}",
    "max": "{0} > {1} || {0} != {0} ? {0} : {1}",
    "min": "{0} < {1} || {0} != {0} ? {0} : {1}",
    "where": "{0} != 0 ? {1} : {2}",
    "neg": "-{0}",
    "detach": "{0}",
    "wide": "{0}",
}


def expression(v: Node, x: Sequence[str]) -> str:
    if v.op in INFIX:
        return f"{x[0]} {INFIX[v.op]} {x[1]}"
    return EXPRESSIONS[v.op].format(*x) if v.op in EXPRESSIONS else f"NAME({v.op})({x[0]})"


@dataclass(frozen=True)
class Pointer:
    """Where the numbers of a block are in the current row: the address of the first, and their type."""

    address: str
    kind: str = "REAL"


# Leaf(node, name): the text that reads a leaf's number, with [] for the index of the unit; `name` gives the variable
# of a pointer.
Leaf = Callable[[Node, Callable[[Pointer], str]], str | None]


@dataclass
class CLoops:
    """The text of one pass over the units of a row.

    Args:
        stores: where computed nodes are stored.
        stored: nodes that an earlier pass has stored.
        leaf: how leaves are read.
        row: the index of the current row in the arrays of sums over units.
        resets: the leaf of `Program.resets`, if there is one. Rows that restart have loops of their own: compilers do
            not vectorise a loop with several choices that are the same for the whole row.
    """

    sizes: CSizes
    stores: Mapping[Node, list[Pointer]]
    stored: Mapping[Node, Pointer]
    leaf: Leaf
    row: str = "b - low"
    resets: Sequence[Node] = ()
    _restarts: bool = False
    _variables: dict[Pointer, str] = field(default_factory=dict)

    def text(self, unit_pass: Pass, schedule: Schedule) -> list[str]:
        computed = schedule.computed(unit_pass, self.stored)
        if any(v.op == "where" and v.args[0] in self.resets for v in computed):
            restarting = replace(self, _restarts=True)
            lines = ["if (resets[0] != 0)", *braces("", restarting._loops(unit_pass, computed))]
            lines += ["else", *braces("", self._loops(unit_pass, computed))]
        else:
            lines = self._loops(unit_pass, computed)
        variables = [f"{p.kind} *restrict {name} = {p.address};" for p, name in self._variables.items()]
        return braces("", [*variables, *lines])

    def _loops(self, unit_pass: Pass, computed: Sequence[Node]) -> list[str]:
        targets = list(dict.fromkeys([*unit_pass.roots, *unit_pass.saved]))
        rowwise: dict[Node, str] = {}
        lines = self._statements(None, computed, targets, unit_pass.sums, rowwise)
        for width in (w for w in self.sizes.widths if self.sizes.name(w) != "1"):
            sums = [v for v in unit_pass.sums if self.sizes.loop(v.args[0]) == width]
            body = self._statements(width, computed, targets, sums, dict(rowwise))
            if body:
                start = {"sum": "0", "amax": "-INFINITY"}
                lines += [f"REAL {_total(v)} = {start[v.op]};" for v in sums]
                lines += ["EACH", *braces(f"for (int64_t j = 0; j < {self.sizes.name(width)}; j++)", body)]
                lines += [f"{sum_name(v)}[{self.row}] = {_total(v)};" for v in sums]
        return lines

    def _variable(self, pointer: Pointer) -> str:
        return self._variables.setdefault(pointer, f"q{len(self._variables)}")

    def _read(self, v: Node) -> str | None:
        """The text of a constant, a leaf, or a node that an earlier pass has stored; None for other nodes."""
        if v.op == "const":
            return f"(REAL){v.args[0]!r}".replace("inf", "INFINITY").replace("nan", "NAN")
        if v in self.stored:
            return f"{self._variable(self.stored[v])}[]"
        if (text := self.leaf(v, self._variable)) is not None:
            return text
        return f"{sum_name(v)}[{self.row}]" if v.op in ("sum", "amax") else None

    def _statements(
        self,
        width: int | None,
        computed: Sequence[Node],
        targets: Sequence[Node],
        sums: Sequence[Node],
        names: dict[Node, str],
    ) -> list[str]:
        """What the loop of a width computes and stores for one unit, or what is one number per row."""
        lines: list[str] = []
        at = "j" if width is not None else "0"

        def value(v: Node) -> str:
            if v not in names:
                index = "j" if self.sizes.loop(v) is not None else "0"
                text = self._read(v)
                if text is None and v.op == "where" and v.args[0] in self.resets:
                    return value(v.args[1 if self._restarts else 2])
                if text is None:
                    text = expression(v, [value(u) for u in v.operands])
                names[v] = f"v{v.id}"
                lines.append(f"const REAL v{v.id} = {text.replace('[]', f'[{index}]')};")
            return names[v]

        of_width = [v for v in targets if self.sizes.loop(v) == width and self.stores.get(v)]
        for v in [*(v for v in computed if self.sizes.loop(v) == width), *of_width]:
            value(v)  # all is computed before anything is stored, as a store may replace a state that is read
        for v in sums:
            if self.sizes.loop(v.args[0]) == width:
                total, x = _total(v), value(v.args[0])
                larger = f"{total} > {x} || {total} != {total} ? {total} : {x}"
                lines.append(f"{total} = {larger};" if v.op == "amax" else f"{total} += {x};")
        for v in of_width:
            for pointer in self.stores[v]:
                sign = "+=" if pointer.kind == "double" else "="
                cast = "(int8_t)" if pointer.kind == "int8_t" else ""
                lines.append(f"{self._variable(pointer)}[{at}] {sign} {cast}{value(v)};")
        return lines


def sum_name(v: Node) -> str:
    """The array of a sum over units, one number for each row of a thread."""
    return f"sum{v.id}"


def _total(v: Node) -> str:
    return f"total{v.id}"
