"""Inline SVG from matplotlib that follows the page: its fonts, its light and dark colours, its ids.

Drawn with the object interface alone: no pyplot, no global state; rc settings hold inside a `with` block only.
The same numbers give the same bytes: fixed hash salt, no date.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import matplotlib.style
from markupsafe import escape
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from evenflow.lab.report.numbers import number, power
from evenflow.lab.report.squeeze import smaller

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Stand-in colours, one per CSS variable: matplotlib writes them into the SVG, `inline` swaps in var(--name).
INK, MUTED, GRID = "#010101", "#010102", "#010103"
STAND_INS = {INK: "ink", MUTED: "muted", GRID: "grid"}
SERIES = 8
MARKERS = ("o", "s", "^", "D", "v", "P", "X")

STYLE = {
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
    "svg.fonttype": "none",
    "svg.hashsalt": "evenflow",
    "path.simplify": True,
}


@dataclass
class Panel:
    """A figure of the page, or the sentences that stand where it would be.

    key: unique on the page; svg: None when there is nothing to draw; notes: what is missing or cut off, in sentences;
    hover: what the page's script reads out under the pointer, see `report.hover`.
    """

    key: str
    title: str
    alt: str = ""
    svg: str | None = None
    notes: list[str] = field(default_factory=list)
    hover: dict[str, Any] | None = None


def series_colour(index: int) -> str:
    """Stand-in for the colour of run number `index`; colours come round again after 8 runs."""
    return f"#0200{index % SERIES:02x}"


def series_name(index: int) -> str:
    """The same colour as the page's style sheet has it."""
    return f"var(--series-{index % SERIES + 1})"


def series_marker(index: int) -> str:
    """Marker of run number `index`: 7 markers against 8 colours, so 56 runs differ in at least one of the two."""
    return MARKERS[index % len(MARKERS)]


@contextmanager
def drawing(width: float = 480, height: float = 300) -> Iterator[Figure]:
    """A figure of so many SVG units, in the style of the page whatever the user's own matplotlib settings are."""
    with matplotlib.style.context(["default", STYLE]):
        figure = Figure(figsize=(width / 72, height / 72), layout="constrained")
        FigureCanvasSVG(figure)
        yield figure


def inline(figure: Figure, key: str, alt: str) -> str:
    """The figure as an `<svg>` element for an HTML page; every id starts with `key`.

    Call inside `drawing`. Style sheets, metadata and name spaces are left out: they would leak into the page.
    """
    sheet = io.StringIO()
    for patch in (figure.patch, *(axes.patch for axes in figure.axes)):
        patch.set_facecolor("none")
    figure.set_dpi(200)
    # Not savefig, which lays out and draws everything once more before.
    cast(FigureCanvasSVG, figure.canvas).print_svg(sheet, metadata={"Date": None, "Creator": None})
    text = sheet.getvalue()
    viewbox = re.search(r'viewBox="([^"]*)"', text)
    body = text[text.index("<g id=") : text.rindex("</svg>")]
    clips = re.findall(r"<defs>\s*<clipPath.*?</defs>", text, flags=re.DOTALL)
    body += "".join(clip for clip in clips if clip not in body)
    body = re.sub(r'\bid="', f'id="{key}-', body)
    body = re.sub(r'(?:xlink:)?href="#', f'href="#{key}-', body).replace("url(#", f"url(#{key}-")
    body = body.replace("xlink:href=", "href=")
    body = re.sub(r"font-family: [^;\"]*;? ?", "", body)
    body = re.sub(r"font: (?:\w+ )*([\d.]+px) [^;\"]*", r"font-size: \1", body)
    body = re.sub(r"#(?:0101|0200)[0-9a-f]{2}\b", _variable, body)
    body = re.sub(r"base64,[^\"]*", lambda match: re.sub(r"\s", "", match[0]), body)
    body = smaller(re.sub(r"\s*\n\s*", " ", body))
    assert viewbox is not None
    return f'<svg viewBox="{viewbox[1]}" role="img" aria-label="{escape(alt)}" focusable="false">{body}</svg>'


def standalone(svg: str, background: str = "var(--card)") -> str:
    """An element made by `inline` as a file of its own, with the page's colours, light and dark."""
    width, height = re.findall(r"[\d.]+", svg)[2:4]
    colours = (Path(__file__).parent / "colours.css").read_text(encoding="utf-8")
    style = f"<style>{colours} text {{ font-family: system-ui, sans-serif; }}</style>"
    head, _, body = svg.partition(">")
    head = head.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    return f'{head}>{style}<rect width="{width}" height="{height}" style="fill: {background}"/>{body}\n'


def _variable(match: re.Match[str]) -> str:
    code = match[0]
    return f"var(--{STAND_INS[code]})" if code in STAND_INS else series_name(int(code[-2:], 16))


def count_axis(axes: Axes, label: str, which: str = "x") -> None:
    """An axis of whole numbers (updates, time steps) with thousands set apart."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_locator(MaxNLocator(5, integer=True))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}".replace("-", "−")))
    axis.set_label_text(label)


def log_axis(axes: Axes, low: float, high: float, powers: bool = False) -> None:
    """A log y axis that always has labelled ticks: 1, 2, 5 within three decades, whole powers beyond."""
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    near = high / low < 1000
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if near else (1.0,), numticks=9))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _tick(value, powers)))


def _tick(value: float, powers: bool) -> str:
    exponent = math.log10(value) if value > 0 else 0.0
    return power(round(exponent)) if powers and abs(exponent - round(exponent)) < 1e-6 else number(value)
