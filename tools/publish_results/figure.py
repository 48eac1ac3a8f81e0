"""The figures of a recipe as one SVG file: panels two abreast, below one legend."""

from __future__ import annotations

import re
from pathlib import Path

from markupsafe import escape

from evenflow.lab import report
from evenflow.lab.recipes.curves import CURVES
from evenflow.lab.recipes.figures import FIGURES
from evenflow.lab.recipes.page import legends
from evenflow.lab.recipes.run import Reproduction

DRAWN = (*CURVES, "lines", "dots")  # maps of heat and bands of spectra are not kept in a record
WIDE, GAP, LINE = 480.0, 20.0, 24.0  # SVG units: a panel, between panels, a line of text
LETTER = 6.9  # of the legend's font, on average


def draw(done: Reproduction) -> str | None:
    """The SVG as text, or None where there is nothing to draw. Its colours follow the reader's light or dark page."""
    panels = []
    for name in done.recipe.figures:
        if name in DRAWN:
            panels += [panel for panel in FIGURES[name](done) if panel.svg is not None]
    if not panels:
        return None
    columns = min(2, len(panels))
    width = columns * WIDE + (columns + 1) * GAP
    parts, top = _legend(done, width)
    for at in range(0, len(panels), columns):
        row = panels[at : at + columns]
        sizes = []
        for index, panel in enumerate(row):
            assert panel.svg is not None
            size = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', panel.svg)
            assert size is not None
            left = GAP + index * (WIDE + GAP)
            parts.append(f'<text x="{left:g}" y="{top + 16:g}" class="title">{escape(panel.title)}</text>')
            place = f'<svg x="{left:g}" y="{top + LINE:g}" width="{size[1]}" height="{size[2]}" '
            parts.append(panel.svg.replace("<svg ", place, 1))
            sizes.append(float(size[2]))
        top += LINE + max(sizes) + GAP
    colours = (Path(report.__file__).parent / "colours.css").read_text(encoding="utf-8")
    style = (
        f"<style>{colours} text {{ font-family: system-ui, sans-serif; }} .title {{ font-size: 14px; font-weight: 600; "
        "fill: var(--ink); } .name { font-size: 13px; fill: var(--ink); }</style>"
    )
    alt = escape(f"{done.recipe.title}: " + " ".join(panel.alt for panel in panels))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {top:g}" width="{width:g}" height="{top:g}" '
        f'role="img" aria-label="{alt}">{style}<rect width="{width:g}" height="{top:g}" style="fill: var(--card)"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _legend(done: Reproduction, width: float) -> tuple[list[str], float]:
    """Rows with their colours and markers, from left to right, and where what follows may begin."""
    parts: list[str] = []
    left = top = GAP
    if set(done.recipe.figures) & set(DRAWN) <= {"dots"}:
        return parts, top
    for entry in legends(done):
        wide = 40 + LETTER * len(entry["label"]) + GAP
        if left > GAP and left + wide > width:
            left, top = GAP, top + LINE
        parts.append(
            f'<g transform="translate({left:g} {top:g})" style="color: var(--series-{entry["colour"]})">'
            f'<path d="M1 7h30" stroke="currentColor" stroke-width="2.5" stroke-linecap="round"/>{entry["mark"]}'
            f'<text x="38" y="12" class="name">{escape(entry["label"])}</text></g>'
        )
        left += wide
    return parts, top + LINE + GAP
