"""The plotting layer of reports and recipe pages: panels, axes, lines, bands, levels and legend keys."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from evenflow.figures import DASHED, MARKERS
from evenflow.lab.report import hover
from evenflow.lab.report.numbers import number, power
from evenflow.lab.report.svg import MUTED, drawing, inline, series_colour, series_variable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from evenflow.figures import PrintFigure

WIDE_RANGE = 20.0  # largest over smallest value from which a log axis is easier to read
# matplotlib's markers, and the same shapes as SVG paths for legends, centred at (16, 7).
MARKS = {
    "o": "M16 3.4a3.6 3.6 0 1 0 .01 0z",
    "s": "M12.6 3.6h6.8v6.8h-6.8z",
    "^": "M16 2.6l4.2 8h-8.4z",
    "D": "M16 2.2l4.8 4.8-4.8 4.8-4.8-4.8z",
    "v": "M16 11.4l4.2-8h-8.4z",
    "P": "M14.4 3h3.2v2.4H20v3.2h-2.4V11h-3.2V8.6H12V5.4h2.4z",
    "X": "M13.4 2.8L16 5.4l2.6-2.6 1.6 1.6L17.6 7l2.6 2.6-1.6 1.6L16 8.6l-2.6 2.6-1.6-1.6L14.4 7l-2.6-2.6z",
}


@dataclass
class Panel:
    """A figure of a page, or the sentences that replace it.

    Attributes:
        key: id of the figure, unique on the page.
        title: its heading.
        alt: its description for readers who cannot see it.
        svg: the drawing; None if there is nothing to draw.
        notes: sentences about what is missing or cut off.
        hover: what the page's script shows under the pointer, see `report.hover`.
        quantity: what the y axis shows, for a file of its own; by default the title.
        prints: whether the drawing is kept, to be written to a file of its own.
        figure: the drawing as a matplotlib figure, if it is kept.
    """

    key: str
    title: str
    alt: str = ""
    svg: str | None = None
    notes: list[str] = field(default_factory=list)
    hover: dict[str, Any] | None = None
    quantity: str = ""
    prints: bool = False
    figure: PrintFigure | None = field(default=None, repr=False)


def series_marker(index: int) -> str:
    """Marker of run number `index`: 7 markers and 8 colours, so 56 runs differ in at least one of the two."""
    return MARKERS[index % len(MARKERS)]


def legend_mark(index: int) -> Markup:
    """A line and the marker of run number `index` as SVG paths, in the current colour."""
    line = Markup('<path d="M1 7h30" stroke="currentColor" stroke-width="2.5" stroke-linecap="round"/>')
    return line + Markup('<path d="{}" fill="currentColor"/>').format(MARKS[series_marker(index)])


def legend_key(index: int) -> Markup:
    """Line and marker of run number `index` as an SVG element of a page."""
    return Markup(
        '<svg class="key" viewBox="0 0 32 14" aria-hidden="true" focusable="false" style="color: {}">{}</svg>'
    ).format(series_variable(index), legend_mark(index))


@dataclass
class Plot:
    """A plot while it is drawn, see `plot`."""

    figure: PrintFigure
    axes: Axes
    series: list[hover.HoverSeries] = field(default_factory=list)

    def line(
        self, index: int, x: np.ndarray, y: np.ndarray, *, markers: bool = True, every: int = 0, **style: Any
    ) -> None:
        """A line in the colour of run number `index`, by default with about eight of its markers."""
        if markers:
            style = {"marker": series_marker(index), "markersize": 5, "markevery": every or max(1, len(x) // 8)} | style
        self.axes.plot(x, y, color=series_colour(index), **style)

    def band(self, x: np.ndarray, low: np.ndarray, high: np.ndarray, colour: str, alpha: float) -> None:
        """A shaded area between two lines."""
        self.axes.fill_between(x, low, high, color=colour, alpha=alpha, linewidth=0)

    def level(self, value: float, colour: str = MUTED, width: float = 1.3, **style: Any) -> None:
        """A dashed horizontal line."""
        self.axes.axhline(value, color=colour, linestyle=DASHED, linewidth=width, **style)

    def read_out(self, name: str, colour: str, x: np.ndarray, y: np.ndarray) -> None:
        """Numbers that the page shows under the pointer."""
        self.series.append(hover.HoverSeries(name, colour, x, y))


@contextmanager
def plot(
    panel: Panel, label: str | None, *, across: str | None = None, width: float = 480, height: float = 300
) -> Iterator[Plot]:
    """Draw into a panel; its `svg` and `hover` are set at the end of the `with` block.

    Args:
        panel: the panel; its `alt` must be set by the end of the block.
        label: label of the x axis, which counts updates or time steps. None: the caller sets up the x axis.
        across: name of the x axis under the pointer. Default: `label`.
        width, height: size in SVG units.
    """
    with drawing(width, height) as figure:
        current = Plot(figure, figure.add_subplot())
        yield current
        if label is not None:
            count_axis(current.axes, label)
        panel.svg = inline(figure, panel.key, panel.alt)
        panel.figure = figure if panel.prints else None
        if current.series:
            panel.hover = hover.lines(current.axes, across or label or "", current.series)


def count_axis(axes: Axes, label: str, which: str = "x") -> None:
    """An axis of whole numbers, such as updates, with a comma between thousands."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_locator(MaxNLocator(5, integer=True))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}".replace("-", "−")))
    axis.set_label_text(label)


def log_axis(axes: Axes, low: float, high: float, powers: bool = False, which: str = "y") -> None:
    """A log axis that always has labelled ticks: 1, 2, 5 within three decades, whole powers beyond."""
    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    (axes.set_xlim if which == "x" else axes.set_ylim)(low, high)
    axis = axes.xaxis if which == "x" else axes.yaxis
    near = high / low < 1000
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if near else (1.0,), numticks=9))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())
    axis.set_major_formatter(FuncFormatter(lambda value, _: _tick(value, powers)))


def _tick(value: float, powers: bool) -> str:
    exponent = math.log10(value) if value > 0 else 0.0
    return power(round(exponent)) if powers and abs(exponent - round(exponent)) < 1e-6 else number(value)
