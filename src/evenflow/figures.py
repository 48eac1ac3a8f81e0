"""Figures for papers and notebooks: colour-blind safe, vector, fonts embedded.

Importing this module loads matplotlib. Each line has a marker besides its colour, so that lines can be told apart in
grey.
"""

from __future__ import annotations

import html
import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib.style
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from evenflow.checks import one_of

# After Okabe and Ito 2008, with a contrast of 3 to white paper; tests measure what colour-blind readers see.
COLOURS = ("#0067a8", "#c24e00", "#007a57", "#a53f86", "#4a5260", "#2b8fc4", "#5c4400", "#e0607e")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
INK, MUTED, GRID = "#1b2026", "#57606c", "#e8ebef"
DASHED = (0, (5, 4))
FORMATS = ("pdf", "png", "svg")
DPI = 300  # of PNG files
STYLE: dict[str, Any] = {
    "font.size": 12,
    "text.color": INK,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": MUTED,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "lines.linewidth": 2,
    "lines.solid_capstyle": "round",
    "legend.frameon": False,
    "path.simplify": True,
}
# TrueType fonts in PDF files; letters in SVG files are shapes, which look the same where the font is missing.
SAVED: dict[str, Any] = {"pdf.fonttype": 42, "svg.fonttype": "path", "svg.hashsalt": "evenflow", "savefig.dpi": DPI}


class PrintFigure(Figure):
    """A matplotlib figure that a notebook shows, and whose files contain their fonts; equal numbers, equal bytes."""

    def savefig(self, fname: Any, **options: Any) -> None:
        """Write the figure; options as for matplotlib's figures."""
        kind = options.get("format") or Path(str(fname)).suffix.lstrip(".")
        date = {"pdf": "CreationDate", "svg": "Date"}.get(kind)
        options = ({} if date is None else {"metadata": {date: None}}) | options
        with matplotlib.style.context(SAVED):
            super().savefig(fname, **options)

    def to_bytes(self, kind: str) -> bytes:
        """The content of a file of this kind: pdf, png or svg."""
        one_of("kind", kind, FORMATS)
        sheet = io.BytesIO()
        self.savefig(sheet, format=kind)
        return sheet.getvalue()

    def _repr_svg_(self) -> str:
        return self.to_bytes("svg").decode()


@contextmanager
def print_figure(panels: int = 1, width: float = 480, height: float = 300) -> Iterator[tuple[PrintFigure, list[Axes]]]:
    """A figure with panels side by side, each of this size in points, and their axes, in evenflow's style.

    >>> with print_figure() as (figure, (axes,)):
    ...     draw_line(axes, 0, x, y, "rnn")
    >>> figure.savefig("rnn.pdf")
    """
    with matplotlib.style.context(["default", STYLE]):
        figure = PrintFigure(figsize=(panels * width / 72, height / 72), layout="constrained")
        yield figure, [figure.add_subplot(1, panels, 1 + i) for i in range(panels)]


def draw_line(axes: Axes, index: int, x: Any, y: Any, label: str = "", **style: Any) -> None:
    """Line number `index`, in its colour, with about eight of its markers."""
    markers: dict[str, Any] = {
        "marker": MARKERS[index % len(MARKERS)],
        "markersize": 5,
        "markevery": max(1, len(np.asarray(x)) // 8),
    }
    axes.plot(x, y, color=COLOURS[index % len(COLOURS)], label=label, **(markers | style))


def span(values: Sequence[Any]) -> float:
    """The largest over the smallest of all finite values above zero; 1 if there are none."""
    every = np.concatenate([np.asarray(v, dtype=float).ravel() for v in values]) if values else np.zeros(0)
    every = every[np.isfinite(every) & (every > 0)]
    return float(every.max() / every.min()) if len(every) else 1.0


def html_table(rows: Sequence[tuple[str, str]]) -> str:
    """A table of names and values for a notebook."""
    cells = "".join(
        f'<tr><th style="text-align: left">{html.escape(name)}</th><td>{html.escape(value)}</td></tr>'
        for name, value in rows
    )
    return f"<table>{cells}</table>"
