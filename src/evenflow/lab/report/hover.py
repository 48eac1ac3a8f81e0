"""Data that the page's script shows under the pointer: the position of the axes, and the plotted numbers."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class HoverSeries:
    """A line: its name, its colour (a CSS variable, or empty) and its points."""

    name: str
    colour: str
    x: np.ndarray
    y: np.ndarray


def lines(axes: Axes, across: str, series: Sequence[HoverSeries]) -> dict[str, Any]:
    """The data of a line plot. `across` names the x axis. Call after the figure has been drawn.

    On a log axis the logarithms are stored, because float32 cannot represent gradients below 1e-45.
    """
    plane = _plane(axes)
    values = [_logs(s.y) if plane["log"] else s.y for s in series]
    return plane | {
        "across": across,
        "series": [
            {"name": s.name, "colour": s.colour, "x": packed(s.x, "uint32"), "y": packed(y, "float32")}
            for s, y in zip(series, values, strict=True)
        ],
    }


def cells(axes: Axes, values: np.ndarray, edges: np.ndarray, steps: np.ndarray, updates: np.ndarray) -> dict[str, Any]:
    """The data of a heat map.

    Shapes:
        values ``(R, C)``, the lowest row first; edges ``(R + 1)`` of the rows on the y axis; steps ``(C, 2)``, first
        and last time step of each column; updates ``(R, 2)``, first and last update of each row.
    """
    return _plane(axes) | {
        "values": packed(_logs(values), "float32"),
        "edges": [round(float(e), 3) for e in edges],
        "steps": packed(steps, "uint32"),
        "updates": packed(updates, "uint32"),
    }


def packed(values: np.ndarray, kind: str) -> str:
    """Numbers as base64 of little-endian float32 or uint32: a third of the size of their text, with seven digits."""
    with np.errstate(over="ignore"):
        return base64.b64encode(np.ascontiguousarray(values, dtype=np.dtype(kind).newbyteorder("<")).tobytes()).decode()


def _logs(values: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log10(values)


def _plane(axes: Axes) -> dict[str, Any]:
    """The rectangle of the axes in SVG units, and the limits of both axes."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    width, height = figure.get_size_inches() * 72
    box = axes.get_position()
    return {
        "box": [
            round(float(v), 2) for v in (box.x0 * width, (1 - box.y1) * height, box.x1 * width, (1 - box.y0) * height)
        ],
        "x": [float(v) for v in axes.get_xlim()],
        "y": [float(v) for v in axes.get_ylim()],
        "log": axes.get_yscale() == "log",
    }
