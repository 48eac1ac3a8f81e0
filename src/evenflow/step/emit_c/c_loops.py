"""One pass over the units of a row as C loops: numbers per row first, then a loop for each width of blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from evenflow.step.emit_c.c_sizes import CSizes
from evenflow.step.graph import Node
from evenflow.step.schedule import Pass, Schedule

INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
MASKS = {"positive": "{0} <= 0 ? 0 : 1", "less": "{0} < {1} ? 1 : 0", "less_equal": "{0} <= {1} ? 1 : 0"}
MASKS |= {"equal": "{0} == {1} ? 1 : 0", "sign": "({0} > 0) - ({0} < 0)"}
CHOICES = {
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
    if v.op in MASKS:
        return f"(REAL)({MASKS[v.op].format(*x)})"
    if v.op in CHOICES:
        return CHOICES[v.op].format(*x)
    return f"NAME({v.op})({x[0]})"


@dataclass(frozen=True)
class Spot:
    """Where the numbers of a block lie in the row under way: the address of the first, and their type."""

    address: str
    kind: str = "REAL"


# Of a leaf the text that reads its number, with [] where the unit goes, given what names the pointer of a spot.
Leaf = Callable[[Node, Callable[[Spot], str]], str | None]


@dataclass
class CLoops:
    """The text of one pass.

    Args:
        stores: where computed nodes are stored.
        known: nodes that a pass before has stored.
        leaf: how leaves are read.
    """

    sizes: CSizes
    stores: Mapping[Node, list[Spot]]
    known: Mapping[Node, Spot]
    leaf: Leaf
    _pointers: dict[Spot, str] = field(default_factory=dict)

    def text(self, each: Pass, schedule: Schedule) -> list[str]:
        computed = schedule.computed(each, self.known)
        wanted = list(dict.fromkeys([*each.roots, *each.saved]))
        rowwise: dict[Node, str] = {}
        lines = self._statements(None, computed, wanted, each.sums, rowwise)
        for width in (w for w in self.sizes.widths if self.sizes.name(w) != "1"):
            sums = [v for v in each.sums if self.sizes.loop(v.args[0]) == width]
            body = self._statements(width, computed, wanted, sums, dict(rowwise))
            if body:
                start = {"sum": "0", "amax": "-INFINITY"}
                lines += [f"REAL {_total(v)} = {start[v.op]};" for v in sums]
                lines += ["EACH", f"for (int64_t j = 0; j < {self.sizes.name(width)}; j++) {{"]
                lines += [*(f"    {line}" for line in body), "}"]
                lines += [f"{sum_name(v)}[b - low] = {_total(v)};" for v in sums]
        pointers = [f"{spot.kind} *restrict {name} = {spot.address};" for spot, name in self._pointers.items()]
        return ["{", *(f"    {line}" for line in [*pointers, *lines]), "}"]

    def _pointer(self, spot: Spot) -> str:
        return self._pointers.setdefault(spot, f"q{len(self._pointers)}")

    def _read(self, v: Node) -> str | None:
        """The text of a node that is there already."""
        if v.op == "const":
            return f"(REAL){v.args[0]!r}".replace("inf", "INFINITY").replace("nan", "NAN")
        if v in self.known:
            return f"{self._pointer(self.known[v])}[]"
        if (found := self.leaf(v, self._pointer)) is not None:
            return found
        return f"{sum_name(v)}[b - low]" if v.op in ("sum", "amax") else None

    def _statements(
        self,
        width: int | None,
        computed: Sequence[Node],
        wanted: Sequence[Node],
        sums: Sequence[Node],
        names: dict[Node, str],
    ) -> list[str]:
        """What the loop of a width computes and stores for one unit, or what is one number per row."""
        lines: list[str] = []
        at = "j" if width is not None else "0"

        def value(v: Node) -> str:
            if v not in names:
                index = "j" if self.sizes.loop(v) is not None else "0"
                found = self._read(v)
                if found is None:
                    found = expression(v, [value(u) for u in v.operands])
                names[v] = f"v{v.id}"
                lines.append(f"const REAL v{v.id} = {found.replace('[]', f'[{index}]')};")
            return names[v]

        mine = [v for v in wanted if self.sizes.loop(v) == width]
        for v in [*(v for v in computed if self.sizes.loop(v) == width), *mine]:
            value(v)  # all of them before any is stored, where another may be read from
        for v in mine:
            for spot in self.stores.get(v, []):
                sign = "+=" if spot.kind == "double" else "="
                cast = "(int8_t)" if spot.kind == "int8_t" else ""
                lines.append(f"{self._pointer(spot)}[{at}] {sign} {cast}{value(v)};")
        for v in sums:
            if self.sizes.loop(v.args[0]) == width:
                total, x = _total(v), value(v.args[0])
                larger = f"{total} > {x} || {total} != {total} ? {total} : {x}"
                lines.append(f"{total} = {larger};" if v.op == "amax" else f"{total} += {x};")
        return lines


def sum_name(v: Node) -> str:
    """The array of a sum over units, a number for each row of a thread."""
    return f"sum{v.id}"


def _total(v: Node) -> str:
    return f"total{v.id}"
