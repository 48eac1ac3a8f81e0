"""The constant arrays of an exported C file, as floating point numbers or as bytes with scales."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

MOST = 127  # the largest whole number of an int8 weight


def literal(value: float) -> str:
    """A number as a C literal of type float, which gives the same bits when it is read."""
    rounded = torch.tensor(value, dtype=torch.float32).item()
    return f"{np.float32(rounded)!s}f" if math.isfinite(rounded) else "INFINITY" if rounded > 0 else "-INFINITY"


class C99Constants:
    """Writes arrays under names of their own; equal arrays of one name are written once.

    Attributes:
        text: the definitions.
    """

    def __init__(self) -> None:
        self.text: list[str] = []
        self._written: dict[str, list[str]] = {}

    def floats(self, name: str, values: Tensor) -> str:
        """Write an array of floats; returns its name."""
        numbers = finite(name, values).flatten().float()
        return self._write("float", name, map(literal, numbers.tolist()), len(numbers))

    def quantized(self, name: str, rows: Tensor) -> tuple[str, str]:
        """Write rows of numbers as int8, each with a scale; returns the names of both arrays."""
        whole, scales = quantize(finite(name, rows))
        return self.whole(name, whole), self.floats(f"{name}_scale", scales)

    def whole(self, name: str, values: Tensor, kind: str = "signed char") -> str:
        """Write an array of whole numbers of a type of C; returns its name."""
        return self._write(kind, name, (str(int(v)) for v in values.flatten().tolist()), values.numel())

    def _write(self, kind: str, name: str, numbers: Iterable[str], count: int) -> str:
        lines = textwrap.wrap(", ".join(numbers), 116)
        while self._written.setdefault(name, lines) != lines:
            name += "_"
        definition = [f"static const {kind} {name}[{count}] = {{", *(f"    {line}" for line in lines), "};"]
        if definition[0] not in self.text:
            self.text += definition
        return name


def finite(name: str, values: Tensor) -> Tensor:
    """The numbers of an array on the CPU in double precision, if float32 can hold them."""
    numbers = values.detach().cpu().double()
    if not bool(numbers.float().isfinite().all()):
        raise ValueError(f"the weights of the model must be finite numbers of float32, but those of {name} are not")
    return numbers


def quantize(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Whole numbers from -127 to 127 and a scale for each row: ``rows ≈ scales * whole``."""
    largest = rows.abs().amax(-1)
    scales = torch.where(largest > 0, largest / MOST, 1.0)
    return (rows / scales.unsqueeze(-1)).round(), scales
