"""report.html of a recipe: the table, the figures redrawn, and the notes, in one file that loads nothing."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import evenflow
from evenflow.lab.report.numbers import duration
from evenflow.lab.report.page import template
from evenflow.lab.training import atomic

from . import recipe_verdict
from .measures import measure_of, needs_training
from .recipe_catalog import DOCUMENTS
from .recipe_figures import FIGURES, caption, legend
from .recipe_table import QUICK_NOTE
from .reproduction import Reproduction, unique

TONES = {
    recipe_verdict.REPRODUCED: "good",
    recipe_verdict.BETTER: "good",
    recipe_verdict.WORSE: "bad",
    recipe_verdict.DIFFERENT: "bad",
}


def write_page(done: Reproduction) -> Path:
    """Write report.html beside the record, in one move, and return its path."""
    path = done.folder / "report.html"
    done.folder.mkdir(parents=True, exist_ok=True)
    atomic.write(path, render(done).encode())
    return path


def render(done: Reproduction) -> str:
    """The page as text."""
    recipe = done.recipe
    notes = [*recipe.notes, recipe.scale(done.scale).note, *(row.note for row in done.rows)]
    return template("recipe.html", Path(__file__).parent).render(
        done=done,
        recipe=recipe,
        document=DOCUMENTS.get(recipe.document, recipe.document),
        lede=_lede(done),
        columns=[(column.name, measure_of(column).about) for column in recipe.columns],
        tones=TONES,
        panels=[panel for name in recipe.figures for panel in FIGURES[name](done)],
        caption=caption(recipe),
        legend=legend(done),
        notes=unique(notes) + [f"The data: {note}." for note in done.data_notes],
        version=evenflow.__version__,
        seconds=duration(done.seconds),
    )


def _lede(done: Reproduction) -> str:
    """The verdicts in a sentence."""
    if not needs_training(done.recipe):
        first = "Nothing is trained for it."
    elif done.scale == "quick":
        first = f"At quick scale the numbers are too small to compare with the document's. {QUICK_NOTE}"
    else:
        counts = Counter(cell.verdict for cell in done.cells.values())
        first = "; ".join(f"{count} {word}" for word, count in counts.items()) + "."
    return f"{first} {recipe_verdict.summary(done.pairs)}".strip()
