"""The page of a recipe: the table, the figures redrawn, the notes. One file that needs nothing but itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import evenflow
from evenflow.lab.report.numbers import duration
from evenflow.lab.training import atomic

from . import verdict
from .catalog import DOCUMENTS
from .measures import MEASURES
from .record import hardware
from .table import CHOSEN, data_notes

if TYPE_CHECKING:
    from .run import Reproduction

TONES = {verdict.REPRODUCED: "good", verdict.BETTER: "good", verdict.WORSE: "bad", verdict.DIFFERENT: "bad"}


def write_page(done: Reproduction) -> Path:
    """Write report.html beside the record, in one move, and return its path."""
    path = done.folder / "report.html"
    done.folder.mkdir(parents=True, exist_ok=True)
    atomic.write(path, render(done).encode())
    return path


def render(done: Reproduction) -> str:
    """The page as text."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    from evenflow.lab import report

    from .figures import FIGURES, caption

    recipe = done.recipe
    environment = Environment(
        loader=FileSystemLoader([Path(__file__).parent, Path(report.__file__).parent]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    panels = [panel for name in recipe.figures for panel in FIGURES[name](done)]
    notes = [
        *recipe.notes,
        recipe.scale(done.scale).note,
        *(row.note for row in recipe.rows if row.label in done.labels),
    ]
    return environment.get_template("recipe.html").render(
        address=recipe.address,
        title=recipe.title,
        document=DOCUMENTS.get(recipe.document, recipe.document),
        scale=done.scale,
        measures=recipe.measures,
        lede=_lede(done),
        several=len(recipe.columns) > 1,
        columns=[(column.name, MEASURES[column.measure].about) for column in recipe.columns],
        rows=[_row(done, label) for label in done.labels],
        panels=panels,
        caption=caption(recipe),
        legends=legends(done),
        notes=[note for note in dict.fromkeys(notes) if note] + data_notes(done),
        version=evenflow.__version__,
        hardware=hardware(done),
        seconds=duration(sum(outcome.seconds for outcome in done.outcomes)),
    )


def _lede(done: Reproduction) -> str:
    """The verdicts in a sentence."""
    if not any(MEASURES[column.measure].trains for column in done.recipe.columns):
        first = "Nothing is trained for it."
    elif done.scale == "quick":
        first = f"At quick scale the numbers are too small to compare with the document's. {CHOSEN}"
    else:
        counts: dict[str, int] = {}
        for cell in done.cells.values():
            counts[cell.verdict] = counts.get(cell.verdict, 0) + 1
        first = "; ".join(f"{count} {word}" for word, count in counts.items()) + "."
    return " ".join(part for part in (first, verdict.summary(done.pairs)) if part)


def _row(done: Reproduction, label: str) -> dict[str, Any]:
    cells = [done.cells[label, column.name] for column in done.recipe.columns]
    return {
        "label": label,
        "cells": [
            {
                "name": cell.column.name,
                "measured": cell.measured_text() + cell.lost_text(),
                "published": cell.published_text(),
                "verdict": cell.verdict,
                "reason": cell.reason,
                "tone": TONES.get(cell.verdict, ""),
            }
            for cell in cells
        ],
    }


def legends(done: Reproduction) -> list[dict[str, Any]]:
    """Rows and their colours; rows of one line share one entry."""
    from markupsafe import Markup

    from evenflow.lab.report.svg import MARKERS, SERIES
    from evenflow.lab.report.views import MARKS

    from .figures import groups, place

    found: dict[str, int] = {}
    several = len(groups(done)) > 1
    for label in done.labels:
        row = done.recipe.row(label)
        name = row.line or (f"{row.group}: {label}" if several and row.group and row.group not in label else label)
        found.setdefault(name, place(done, row))
    draw = Markup('<path d="{}" fill="currentColor"/>')
    return [
        {"label": name, "colour": at % SERIES + 1, "mark": draw.format(MARKS[MARKERS[at % len(MARKERS)]])}
        for name, at in found.items()
    ]
