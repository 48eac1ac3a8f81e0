"""Steps that nobody would write: Python source put together at random, for every engine to be held to it."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

# Of any number to moderate ones. Kinks stand where no state is by itself: zero is a value that many are.
UNARY = (
    "torch.tanh({0})", "torch.sigmoid({0})", "torch.sin({0})", "torch.cos({0})", "torch.erf({0})", "F.softplus({0})",
    "F.gelu({0})", "F.gelu({0}, approximate='tanh')", "F.silu({0})", "F.mish({0})", "F.elu({0} - 0.173)",
    "F.logsigmoid({0})", "torch.exp(-{0} * {0})", "torch.expm1(-{0}.abs() - 0.211)", "torch.log1p({0} * {0})",
    "torch.sqrt({0} * {0} + 0.3)", "torch.rsqrt({0} * {0} + 0.7)", "torch.reciprocal({0} ** 2 + 0.6)",
    "torch.log(1.3 + torch.tanh({0}))", "(1.2 + torch.tanh({0})) ** 1.7", "torch.exp2(torch.tanh({0}))",
    "torch.tan(0.4 * torch.tanh({0}))", "-{0}", "0.7 * {0} + 0.3", "(1 - {0})", "torch.relu({0} - 0.137)",
    "torch.abs({0} + 0.119)", "F.leaky_relu({0} - 0.091, 0.2)", "torch.clamp({0}, -0.83, 0.61)",
    "F.hardtanh({0}, -0.71, 0.93)",
    "torch.sign({0} - 0.057)", "{0}.detach()", "torch.clamp({0}, min=-0.37)", "F.relu6({0} - 0.013)",
)  # fmt: skip
BINARY = (
    "{0} + {1}", "{0} - {1}", "{0} * {1}", "{0} / (1.5 + torch.sigmoid({1}))", "torch.maximum({0}, {1} + 0.067)",
    "torch.minimum({0}, {1} - 0.113)", "torch.where({0} > {1} + 0.149, {0}, 0.5 * {1})",
    "torch.where(({0} <= 0.31) & ({1} > -0.17), {1}, {0} * {1})", "torch.lerp({0}, {1}, 0.3)",
    "torch.addcmul({0}, {0}, {1}, value=0.4)", "{0}.masked_fill({1} > 0.237, 0.5)",
    "torch.sigmoid({0}) * {1} + (1 - torch.sigmoid({0})) * {0}",
)  # fmt: skip
REDUCED = (
    "{0}.mean(-1, keepdim=True)", "0.3 * {0}.sum(-1, keepdim=True)", "{0}.amax(-1, keepdim=True)",
    "{0}.amin(-1, keepdim=True)", "{0}.var(-1, keepdim=True, correction=0)",
    "(({0} * {0}).sum(-1, keepdim=True) + 0.2).sqrt()",
)  # fmt: skip
WHOLE = ("torch.softmax({0}, -1)", "F.layer_norm({0}, {0}.shape[-1:], eps=0.3)")
FIXED = ("torch.zeros_like({0})", "torch.ones_like({0})", "torch.full_like({0}, 0.3)")
ENDS = (
    "torch.tanh({0})", "torch.sin({0})", "0.6 * {1} + 0.4 * torch.tanh({0})", "{1} + 0.2 * torch.tanh({0})",
    "torch.sigmoid({0}) * {1} + (1 - torch.sigmoid({0})) * torch.tanh({0})", "torch.clamp({0}, -0.97, 0.89)",
)  # fmt: skip


@dataclass(frozen=True)
class Step:
    """A step as source, with the sizes of what it takes."""

    source: str
    a: int
    states: tuple[int, ...]
    matrices: tuple[tuple[int, int], ...]
    parameters: tuple[int | None, ...]

    def __repr__(self) -> str:
        sizes = f"a={self.a}, states={self.states}, matrices={self.matrices}, parameters={self.parameters}"
        return f"Step({sizes})\n{self.source}"

    @cached_property
    def function(self) -> Callable[..., tuple[Tensor, ...]]:
        scope: dict[str, Any] = {"torch": torch, "F": F}
        exec(compile(self.source, "<random step>", "exec"), scope)
        return scope["step"]


@dataclass(frozen=True)
class Known:
    """A value that there is: (B, width), or (width,) where it is made of parameters alone."""

    name: str
    width: int
    rows: bool = True


class _Writer:
    """Adds one statement after the other, each about values there are."""

    def __init__(self, draw: Callable[..., Any], units: int) -> None:
        self.draw, self.units = draw, units
        self.lines: list[str] = []
        self.values: list[Known] = []

    def whole(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))

    def any_of(self, options: Any) -> Any:
        return self.draw(st.sampled_from(options))

    def put(self, text: str, width: int, rows: bool = True) -> str:
        self.values.append(Known(f"v{len(self.values)}", width, rows))
        self.lines.append(f"{self.values[-1].name} = {text}")
        return self.values[-1].name

    def cut(self, text: str, widths: list[int], rows: bool = True) -> None:
        first = len(self.values)
        self.values += [Known(f"v{first + n}", w, rows) for n, w in enumerate(widths)]
        how = f"chunk({len(widths)}, -1)" if len({*widths}) == 1 else f"split({widths}, -1)"
        self.lines.append(f"{', '.join(v.name for v in self.values[first:])} = ({text}).{how}")

    def some(self, least: int = 1) -> Known:
        """A value of at least so many numbers, rather one that nothing is made of."""
        fitting = [v for v in self.values if v.width >= least]
        unread = [v for v in self.unread() if v.width >= least]
        return self.any_of(unread) if unread and self.whole(0, 2) else self.any_of(fitting)

    def unread(self) -> list[Known]:
        """Values that nothing is made of so far."""
        said = " ".join(line.partition("=")[2] for line in self.lines) + " "
        return [v for v in self.values if not re.search(rf"\b{v.name}\b", said)]

    def sized(self, width: int, v: Known | None = None) -> Known:
        """Some value made as wide as this, or one number per row."""
        v = v or self.some()
        if v.width in (width, 1):
            return v
        if not v.rows:
            return self.any_of([u for u in self.values if u.rows and u.width in (width, 1)] or [Known("s0[:, :1]", 1)])
        if v.width > width:
            start = self.whole(0, 1) * (v.width - width)
            return Known(f"{v.name}[:, {start}:{start + width}]", width)
        longer = [u for u in self.values if u.rows and u.width >= width]
        if not longer:
            return Known("s0[:, :1]", 1)
        return Known(f"torch.cat([{v.name}, {self.any_of(longer).name}[:, {v.width}:{width}]], -1)", width)

    def statement(self) -> None:
        kind = self.any_of(
            ["unary", "unary", "binary", "binary", "binary", "reduced", "whole", "cut", "joined", "fixed"]
        )
        x = self.some(2 if kind in ("reduced", "whole", "cut") and self.units > 1 else 1)
        if kind == "unary":
            self.put(self.any_of(UNARY).format(x.name), x.width, x.rows)
        elif kind == "binary":
            y = self.sized(x.width)
            self.put(self.any_of(BINARY).format(x.name, y.name), x.width, x.rows or y.rows)
        elif kind == "reduced":
            self.put(self.any_of(REDUCED).format(x.name), 1, x.rows)
        elif kind == "whole":
            self.put(self.any_of(WHOLE).format(x.name), x.width, x.rows)
        elif kind == "fixed" and x.rows:
            self.put(self.any_of(FIXED).format(x.name), x.width)
        elif kind == "fixed":
            self.put(f"{x.name}.expand(len(s0), -1)", x.width)
        elif kind == "cut" and x.width > 1:
            first = x.width // 2 if x.width % 2 == 0 else self.whole(1, x.width - 1)
            self.cut(x.name, [first, x.width - first], x.rows)
        elif kind == "joined":
            y = self.some()
            if x.width + y.width <= 3 * self.units and x.rows == y.rows:
                self.put(f"torch.cat([{x.name}, {y.name}], -1)", x.width + y.width, x.rows)

    def product(self, matrix: str, rows: int, columns: int) -> None:
        """Of some value by a matrix, or by its transpose, whole or in part."""
        kind = self.any_of(["whole", "whole", "whole", "turned", "rows", "columns", "linear"])
        if kind == "turned":
            part = f"{matrix}[:{self.units}]" if rows > self.units else matrix
            self.put(f"{self.matched(self.units)} @ {part}", columns)
        elif kind == "rows" and rows > 1:
            start = self.whole(0, rows - 1)
            end = self.whole(start + 1, rows)
            self.put(f"{self.matched(columns)} @ {matrix}[{start}:{end}].mT", end - start)
        elif kind == "columns" and columns > 1:
            end = self.whole(1, columns - 1)
            self.put(f"{self.matched(end)} @ {matrix}[:, {columns - end}:].mT", rows)
        elif kind == "linear":
            shift = [v.name for v in self.values if v.width == rows and not v.rows]
            self.put(f"F.linear({self.matched(columns)}, {matrix}, {(shift or ['None'])[-1]})", rows)
        elif rows > self.units:
            self.cut(f"{self.matched(columns)} @ {matrix}.mT", [self.units] * (rows // self.units))
        else:
            self.put(f"{self.matched(columns)} @ {matrix}.mT", rows)

    def matched(self, width: int) -> str:
        """What a product takes: a row of exactly so many numbers, often a state or what was computed last."""
        exact = [v for v in self.values if v.width == width and v.rows]
        if exact and self.whole(0, 3):
            return self.any_of(exact).name
        return f"({self.sized(width).name} + torch.zeros_like(s0[:, :1]).expand(-1, {width}))"


@st.composite
def steps(draw: Callable[..., Any]) -> Step:
    """One to three states, one to four blocks, one to three products, about a dozen operations."""
    units = draw(st.sampled_from([1, 2, 3, 4, 5, 6, 7, 9, 17]))
    w = _Writer(draw, units)
    states, blocks = w.whole(1, 3), w.whole(1, 4)
    matrices = [(n * units, units) for n in draw(st.lists(st.sampled_from([1, 1, 1, 2, 3]), min_size=1, max_size=3))]
    kinds = draw(st.lists(st.sampled_from(["unit", "layer", "absent"]), max_size=3))
    w.values = [Known(f"s{i}", units) for i in range(states)]
    sizes: list[int | None] = []
    for i, kind in enumerate(kinds):
        sizes.append({"unit": units, "layer": 1, "absent": None}[kind])
        if kind != "absent":
            w.values.append(Known(f"p{i}", sizes[-1] or 0, rows=False))
    if blocks == 1:
        w.values.append(Known("a", units))
    else:
        w.cut("a", [units] * blocks)
    for number, (rows, columns) in enumerate(matrices):
        for _ in range(w.whole(0, 4)):
            w.statement()
        w.product(f"m{number}", rows, columns)
    for _ in range(w.whole(0, 7)):
        w.statement()
    left, ends = w.unread(), []
    for i in range(states):
        here = [w.sized(units, v).name for v in left[i::states] if w.whole(0, 7)]  # so that little is made in vain
        x = " - ".join([w.matched(units), *here]) if w.whole(0, 1) or not here else " + ".join([f"s{i}", *here])
        x = f"({x})"
        plain = w.whole(0, 9)
        if plain == 0:
            ends.append(f"s{w.whole(0, states - 1)}")
        elif plain == 1 and ends:
            ends.append(ends[0])
        else:
            ends.append(w.put(w.any_of(ENDS).format(x, f"s{i}"), units))
    names = [*(f"s{i}" for i in range(states)), *(f"m{i}" for i in range(len(matrices)))]
    names += [f"p{i}" for i in range(len(kinds))]
    body = "".join(f"    {line}\n" for line in [*w.lines, f"return {', '.join(ends)}{',' if states == 1 else ''}"])
    source = f"def step(a, {', '.join(names)}):\n{body}"
    return Step(source, blocks * units, (units,) * states, tuple(matrices), tuple(sizes))


def smallest(step: Step, fails: Callable[[Step], bool]) -> Step:
    """The step with as few statements, and as little in them, as still fail."""
    shorter = True
    while shorter:
        shorter = False
        for source in _simpler(step.source):
            candidate = replace(step, source=source)
            try:
                shorter = fails(candidate)
            except Exception:  # no step any more
                continue
            if shorter:
                step = candidate
                break
    return step


def _simpler(source: str) -> Iterator[str]:
    """The source without a statement, or with one of its operands in place of an expression."""
    lines = source.splitlines(keepends=True)
    for n, line in enumerate(lines):
        if same := re.fullmatch(r"    (\w+) = (\w+)\n", line):
            yield "".join(re.sub(rf"\b{same[1]}\b", same[2], other) for other in lines[:n] + lines[n + 1 :])
    for n in range(len(lines) - 2, 0, -1):
        yield "".join(lines[:n] + lines[n + 1 :])
    tree = ast.parse(source)
    for node in ast.walk(tree):
        for field, old in ast.iter_fields(node):
            for at, part in enumerate(old) if isinstance(old, list) else [(None, old)]:
                if not isinstance(part, ast.expr) or isinstance(part, ast.Name | ast.Constant | ast.Tuple | ast.List):
                    continue
                for inside in ast.iter_child_nodes(part):
                    if isinstance(inside, ast.expr) and not isinstance(inside, ast.Constant):
                        _put(node, field, at, inside)
                        yield ast.unparse(tree) + "\n"
                        _put(node, field, at, part)


def _put(node: ast.AST, field: str, at: int | None, value: ast.expr) -> None:
    if at is None:
        setattr(node, field, value)
    else:
        getattr(node, field)[at] = value
