"""Draws the figures of a recipe as one SVG file: two panels in a row, below one legend."""

from __future__ import annotations

import re

from markupsafe import escape

from evenflow.lab.recipes import Reproduction
from evenflow.lab.recipes.recipe_curves import CURVES
from evenflow.lab.recipes.recipe_figures import FIGURES
from evenflow.lab.recipes.recipe_legend import legend
from evenflow.lab.report.svg import series_variable, style_sheet

DRAWN = (*CURVES, "lines", "dots")  # a record does not store the data of heat maps and spectra
WIDTH, GAP, LINE = 480.0, 20.0, 24.0  # SVG units: a panel, between panels, a line of text
LETTER = 6.9  # average width of a letter of the legend
STYLE = " .title { font-size: 14px; font-weight: 600; fill: var(--ink); } .name { font-size: 13px; fill: var(--ink); }"


def draw(result: Reproduction) -> str | None:
    """The SVG as text, or None if there is nothing to draw. Its colours follow the reader's light or dark scheme."""
    kinds = [name for name in result.recipe.figures if name in DRAWN]
    panels = [panel for name in kinds for panel in FIGURES[name](result) if panel.svg is not None]
    if not panels:
        return None
    columns = min(2, len(panels))
    width = columns * WIDTH + (columns + 1) * GAP
    parts, top = _legend(result, width) if set(kinds) - {"dots"} else ([], GAP)
    for at in range(0, len(panels), columns):
        heights = []
        for index, panel in enumerate(panels[at : at + columns]):
            assert panel.svg is not None
            size = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', panel.svg)
            assert size is not None
            left = GAP + index * (WIDTH + GAP)
            parts.append(f'<text x="{left:g}" y="{top + 16:g}" class="title">{escape(panel.title)}</text>')
            place = f'<svg x="{left:g}" y="{top + LINE:g}" width="{size[1]}" height="{size[2]}" '
            parts.append(panel.svg.replace("<svg ", place, 1))
            heights.append(float(size[2]))
        top += LINE + max(heights) + GAP
    alt = escape(f"{result.recipe.title}: " + " ".join(panel.alt for panel in panels))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {top:g}" width="{width:g}" height="{top:g}" '
        f'role="img" aria-label="{alt}"><style>{style_sheet()}{STYLE}</style>'
        f'<rect width="{width:g}" height="{top:g}" style="fill: var(--card)"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _legend(result: Reproduction, width: float) -> tuple[list[str], float]:
    """Rows with their colours and markers, from left to right, and the height at which the panels may start."""
    parts: list[str] = []
    left = top = GAP
    for entry in legend(result):
        entry_width = 40 + LETTER * len(entry["label"]) + GAP
        if left > GAP and left + entry_width > width:
            left, top = GAP, top + LINE
        parts.append(
            f'<g transform="translate({left:g} {top:g})" style="color: {series_variable(entry["index"])}">'
            f'{entry["mark"]}<text x="38" y="12" class="name">{escape(entry["label"])}</text></g>'
        )
        left += entry_width
    return parts, top + LINE + GAP
