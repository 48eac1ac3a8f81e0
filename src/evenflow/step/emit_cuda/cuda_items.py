"""Statements that compute nodes of a step for the items of a thread."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from evenflow.step.emit_cuda.cuda_stages import CudaStages
from evenflow.step.generated_code import INFIX
from evenflow.step.graph import Node

EXPRESSIONS = {
    "positive": "({0} <= 0.0f ? 0.0f : 1.0f)",
    "less": "({0} < {1} ? 1.0f : 0.0f)",
    "less_equal": "({0} <= {1} ? 1.0f : 0.0f)",
    "equal": "({0} == {1} ? 1.0f : 0.0f)",
    "relu": "({0} <= 0.0f ? 0.0f : {0})",  # a comparison with NaN is false: NaN passes
    "abs": "fabsf({0})",
    "max": "({0} > {1} || {0} != {0} ? {0} : {1})",
    "min": "({0} < {1} || {0} != {0} ? {0} : {1})",
    "where": "({0} != 0.0f ? {1} : {2})",
    "neg": "-{0}",
    "detach": "{0}",
    "wide": "{0}",
    "sign": "sign({0})",
    "sigmoid": "sigmoid({0})",
}
ITEMS = "UNROLL for (int q = 0; q < T0::ITEMS; q++)"
Texts = Mapping[Node, str]  # the C expression of a node's number for item q


class CudaItems(CudaStages):
    """The stages of a pass, and the statements between them."""

    def compute(self, roots: Iterable[Node], texts: Texts) -> list[str]:
        """Statements that compute nodes for item q and store them in their arrays."""
        roots = list(roots)
        lines, names = self.expressions(roots, texts)
        return [*lines, *(f"node{root.id}[q] = {names[root]};" for root in roots)]

    def expressions(self, roots: Iterable[Node], texts: Texts) -> tuple[list[str], dict[Node, str]]:
        """Statements that compute nodes for item q, and the texts of all nodes."""
        lines: list[str] = []
        names = dict(texts)
        for root in roots:
            stack = [(root, False)]
            while stack:
                v, ready = stack.pop()
                if v in names:
                    continue
                if v.op == "const":
                    names[v] = number(v.args[0])
                elif not ready:
                    stack.append((v, True))
                    stack.extend((u, False) for u in self.operands(v))
                elif v in self.definitions:
                    names[v] = names[self.definitions[v]]
                else:
                    names[v] = f"v{v.id}"
                    lines.append(f"const float v{v.id} = {expression(v, [names[u] for u in v.operands])};")
        return lines, names


def expression(v: Node, x: Sequence[str]) -> str:
    if v.op in INFIX:
        return f"{x[0]} {INFIX[v.op]} {x[1]}"
    return EXPRESSIONS[v.op].format(*x) if v.op in EXPRESSIONS else f"{v.op}f({x[0]})"


def text_of(v: Node, texts: Texts) -> str:
    """The text of a node that is known, or a constant."""
    return texts[v] if v in texts else number(v.args[0])


def number(value: float) -> str:
    if value in (float("inf"), float("-inf")):
        return "INFINITY" if value > 0 else "(-INFINITY)"
    return f"{value!r}f" if value >= 0 else f"({value!r}f)"
