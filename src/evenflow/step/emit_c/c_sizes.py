"""How generated C writes the widths of blocks, and the numbers that a call passes for them."""

from __future__ import annotations

from collections.abc import Sequence

from evenflow.step.graph import Node
from evenflow.step.places import Places, layout


class CSizes:
    """Widths as text: ``n0``, ``n1``, ... in the order of a program's layout; 1 where a block is one number per row."""

    def __init__(self, widths: Sequence[int]) -> None:
        self.widths = widths
        self._rowwise = None if set(widths) == {1} else 1  # in layers of one unit both kinds of blocks are alike

    def of(self, nodes: Sequence[Node] | Node) -> str:
        """The number of numbers in some blocks side by side."""
        counts: dict[str, int] = {}
        for v in [nodes] if isinstance(nodes, Node) else nodes:
            name = self.name(v.width)
            counts[name] = counts.get(name, 0) + 1
        parts = [name if n == 1 else str(n) if name == "1" else f"{n} * {name}" for name, n in counts.items()]
        return "0" if not parts else parts[0] if len(parts) == 1 and " " not in parts[0] else f"({' + '.join(parts)})"

    def name(self, width: int) -> str:
        return "1" if width == self._rowwise else f"n{self.widths.index(width)}"

    def loop(self, v: Node) -> int | None:
        """The width of the loop that computes a node; None for a number per row."""
        return None if self.name(v.width) == "1" else v.width


def number_names(places: Places) -> list[str]:
    """The numbers of a call beyond its sizes: widths, of each matrix its columns and size, and where views begin."""
    names = [f"n{i}" for i in range(len(layout(places.program)))]
    for i in range(len(places.program.matrices)):
        names += [f"columns{i}", f"size{i}"]
    return [*names, *(f"view{p}_{n}" for p, n, _ in places.views)]
