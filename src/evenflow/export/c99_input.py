"""What the step of an exported C file reads: numbers, symbols, positions of categories."""

from __future__ import annotations

from typing import cast

from torch import Tensor

from evenflow.export.c99_constants import C99Constants
from evenflow.export.export_scaling import Scaling, input_scaling, raw_inputs
from evenflow.layers import Recurrent
from evenflow.models import SequenceModel


class C99Input:
    """Writes what comes before the first layer: embeddings and scaling.

    Args:
        model, layer: what is exported, and its layer.
        constants: where tables are written.
        int8: whether they are stored as int8.
        scaling: mean and scale of each input.

    Attributes:
        kind, count: of the inputs of a step, "INPUTS" or "SYMBOLS", and how many there are.
        parameter: of the function step.
    """

    def __init__(
        self,
        model: SequenceModel | Recurrent,
        layer: Recurrent,
        constants: C99Constants,
        int8: bool,
        scaling: Scaling | None,
    ) -> None:
        self._constants, self._int8, self._width = constants, int8, layer.input_size
        self._symbols = model.embedding if isinstance(model, SequenceModel) else None
        self._columns = model.columns if isinstance(model, SequenceModel) else None
        self._scaling = input_scaling(model, layer, scaling)
        symbols = self._symbols
        self.kind, self.count, self.parameter = "INPUTS", raw_inputs(model, layer), "const float *x"
        if symbols is not None:
            self.kind, self.count, self.parameter = "SYMBOLS", symbols.num_embeddings, "int symbol"

    def about(self, capital: str) -> str:
        """What a step takes, for the header."""
        if self._symbols is not None:
            return f"symbol is from 0 to {capital}_SYMBOLS - 1, and others leave the state as it is"
        if self._columns is None:
            return f"x has {capital}_INPUTS numbers"
        ranges = [f"x[{place}] is from 0 to {values - 1}" for place, values, _ in self._columns.sizes]
        return f"x has {capital}_INPUTS numbers; {', '.join(ranges)}, and others leave the state as it is"

    def text(self) -> tuple[list[str], str]:
        """Statements before the first layer, and what it reads."""
        if self._symbols is not None:
            refuse = f"if (symbol < 0 || symbol >= {self._symbols.num_embeddings}) return;"
            if not self._int8:
                table = self._constants.floats("embedding", self._symbols.weight)
                return [refuse], f"{table} + symbol * {self._width}"
            value = self._row("embedding", self._symbols.weight, "symbol")
            return [refuse, f"float x[{self._width}];", _loop(self._width, f"x[j] = {value}")], "x"
        lines, x = self._scaled()
        return (lines, x) if self._columns is None else self._with_vectors(lines, x)

    def _scaled(self) -> tuple[list[str], str]:
        if self._scaling is None:
            return [], "x"
        mean, scale = (
            self._constants.floats(f"input_{name}", v) for name, v in zip(("mean", "scale"), self._scaling, strict=True)
        )
        value = f"(x[j] - {mean}[j]) / {scale}[j]"
        return [f"float scaled[{self.count}];", _loop(self.count, f"scaled[j] = {value}")], "scaled"

    def _with_vectors(self, lines: list[str], x: str) -> tuple[list[str], str]:
        """Statements that put vectors in the place of positions, after those that scale the numbers."""
        assert self._columns is not None
        sizes = self._columns.sizes
        lines = [f"if (!(x[{place}] >= 0 && x[{place}] < {values})) return;" for place, values, _ in sizes] + lines
        lines.append(f"float read[{self._width}];")
        first = to = 0
        for (place, _, size), table in zip(sizes, self._columns.tables, strict=True):
            lines += self._copied(x, first, place, to)
            to += place - first
            value = self._row(f"embedding_{place}", cast(Tensor, table.weight), f"(int)x[{place}]")
            lines.append(_loop(size, f"read[{to} + j] = {value}"))
            first, to = place + 1, to + size
        return [*lines, *self._copied(x, first, self.count, to)], "read"

    def _copied(self, x: str, first: int, end: int, to: int) -> list[str]:
        return [_loop(end - first, f"read[{to} + j] = {x}[{first} + j]")] if end > first else []

    def _row(self, name: str, table: Tensor, row: str) -> str:
        """Number j in a row of a table."""
        at = f"{row} * {table.shape[1]} + j"
        if not self._int8:
            return f"{self._constants.floats(name, table)}[{at}]"
        whole, scale = self._constants.quantized(name, table)
        return f"{scale}[{row}] * (float){whole}[{at}]"


def _loop(count: int, statement: str) -> str:
    return f"for (int j = 0; j < {count}; j++) {statement};"
