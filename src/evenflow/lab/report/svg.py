"""Matplotlib figures as inline SVG that follows the page: its fonts, its light and dark colours, unique ids.

Figures are drawn without pyplot, and rc settings apply inside a `with` block only, so no global state changes.
The same numbers give the same bytes: the hash salt is fixed and no date is written.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import matplotlib.style
from markupsafe import escape
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from evenflow import figures
from evenflow.figures import PrintFigure

# Placeholder colours, one per CSS variable: matplotlib writes them into the SVG, `inline` replaces them by var(--name).
INK, MUTED, GRID = "#010101", "#010102", "#010103"
PLACEHOLDERS = {INK: "ink", MUTED: "muted", GRID: "grid"}
SERIES = len(figures.COLOURS)  # colours of runs

STYLE = {
    **figures.STYLE,
    **{name: INK if value == figures.INK else MUTED for name, value in figures.STYLE.items() if "color" in name},
    "grid.color": GRID,
    "svg.fonttype": "none",
    "svg.hashsalt": "evenflow",
}
SPARE_DIGITS = re.compile(r"(\.\d\d)\d+")  # a hundredth of a unit is finer than any screen


def series_colour(index: int) -> str:
    """Placeholder for the colour of run number `index`; the colours repeat after 8 runs."""
    return f"#0200{index % SERIES:02x}"


def series_variable(index: int) -> str:
    """The same colour as a CSS variable of the page."""
    return f"var(--series-{index % SERIES + 1})"


@contextmanager
def drawing(width: float = 480, height: float = 300) -> Iterator[PrintFigure]:
    """A figure of this size in SVG units, in the page's style whatever the user's own matplotlib settings are."""
    with matplotlib.style.context(["default", STYLE]):
        figure = PrintFigure(figsize=(width / 72, height / 72), layout="constrained")
        FigureCanvasSVG(figure)
        yield figure


def inline(figure: Figure, key: str, alt: str) -> str:
    """The figure as an `<svg>` element for an HTML page; every id starts with `key`.

    Call inside `drawing`. Style sheets, metadata and name spaces are left out, because they would affect the page.
    """
    sheet = io.StringIO()
    for patch in (figure.patch, *(axes.patch for axes in figure.axes)):
        patch.set_facecolor("none")
    figure.set_dpi(200)
    # Not savefig, which would lay out and draw everything a second time.
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
    body = minify(re.sub(r"\s*\n\s*", " ", body))
    assert viewbox is not None
    return f'<svg viewBox="{viewbox[1]}" role="img" aria-label="{escape(alt)}" focusable="false">{body}</svg>'


def style_sheet() -> str:
    """The rules of an SVG file that has no page around it: the page's colours, light and dark, and a font."""
    colours = (Path(__file__).parent / "colours.css").read_text(encoding="utf-8")
    return f"{colours} text {{ font-family: system-ui, sans-serif; }}"


def standalone(svg: str, background: str = "var(--card)") -> str:
    """An element made by `inline` as a file of its own."""
    width, height = re.findall(r"[\d.]+", svg)[2:4]
    head, _, body = svg.partition(">")
    head = head.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    rectangle = f'<rect width="{width}" height="{height}" style="fill: {background}"/>'
    return f"{head}><style>{style_sheet()}</style>{rectangle}{body}\n"


def _variable(match: re.Match[str]) -> str:
    code = match[0]
    return f"var(--{PLACEHOLDERS[code]})" if code in PLACEHOLDERS else series_variable(int(code[-2:], 16))


def minify(body: str) -> str:
    """The same drawing in about half the bytes: no unused ids, bare groups, zero rotations or invisible shapes.

    >>> minify('<g id="a"> <path d="M 1.23456 2 L 3 4 L 5 6 " style="fill: none; stroke: red"/> </g>')
    '<path d="M 1.23 2 3 4 5 6" style="fill: none; stroke: red"/>'
    """
    used = set(re.findall(r'href="#([^"]*)"', body)) | set(re.findall(r"url\(#([^)]*)\)", body))
    body = re.sub(r' id="([^"]*)"', lambda match: match[0] if match[1] in used else "", body)
    body = re.sub(r' transform="rotate\(-?0 [^)]*\)"', "", body)
    body = re.sub(r'<path d="[^"]*" style="fill: none"/>', "", body)
    body = re.sub(r'(?<= d=")[^"]*', lambda match: _shorten_path(match[0]), body)
    body = re.sub(r' [xy]="[^"]*"', lambda match: SPARE_DIGITS.sub(r"\1", match[0]), body)
    return re.sub(r"> +<", "><", _without_bare_groups(body)).strip()


def _shorten_path(d: str) -> str:
    d = SPARE_DIGITS.sub(r"\1", d).strip()
    # Without a letter, the points after a move are lines.
    return d if set(re.findall("[A-Za-z]", d)) - set("MLz") else d.replace(" L ", " ")


def _without_bare_groups(body: str) -> str:
    """Drop `<g>` elements that have no attributes, and keep their content."""
    kept: list[bool] = []

    def tag(match: re.Match[str]) -> str:
        if match[0] == "</g>":
            return match[0] if kept.pop() else ""
        kept.append(match[0] != "<g>")
        return match[0] if kept[-1] else ""

    return re.sub(r"<g(?: [^>]*)?>|</g>", tag, body)
