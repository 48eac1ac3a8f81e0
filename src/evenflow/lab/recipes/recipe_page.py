"""report.html of a recipe: the table, the figures redrawn, and the notes, in one file that loads nothing."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import evenflow
from evenflow.lab.report.numbers import duration
from evenflow.lab.report.page import template
from evenflow.lab.training import atomic

from . import recipe_ordering, recipe_verdict
from .measures import measure_of, needs_training
from .recipe_catalog import DOCUMENTS
from .recipe_figures import recipe_panels
from .recipe_legend import caption, legend
from .recipe_table import QUICK_NOTE
from .reproduction import Reproduction

TONES = {
    recipe_verdict.REPRODUCED: "good",
    recipe_verdict.BETTER: "good",
    recipe_verdict.WORSE: "bad",
    recipe_verdict.DIFFERENT: "bad",
}


def write_page(result: Reproduction) -> Path:
    """Write report.html beside the record, in one move, and return its path."""
    path = result.folder / "report.html"
    result.folder.mkdir(parents=True, exist_ok=True)
    atomic.write(path, render(result).encode())
    return path


def render(result: Reproduction) -> str:
    """The page as text."""
    recipe = result.recipe
    notes = [*recipe.notes, recipe.scale(result.scale).note, *(row.note for row in result.rows)]
    return template("recipe.html", Path(__file__).parent).render(
        result=result,
        recipe=recipe,
        document=DOCUMENTS.get(recipe.document, recipe.document),
        lede=_lede(result),
        columns=[(column.name, measure_of(column).about) for column in recipe.columns],
        tones=TONES,
        panels=recipe_panels(result),
        caption=caption(recipe),
        legend=legend(result),
        notes=[note for note in dict.fromkeys(notes) if note] + [f"The data: {note}." for note in result.data_notes],
        version=evenflow.__version__,
        seconds=duration(result.seconds),
    )


def _lede(result: Reproduction) -> str:
    """The verdicts in a sentence."""
    if not needs_training(result.recipe):
        first = "Nothing is trained for it."
    elif result.scale == "quick":
        first = f"At quick scale the numbers are too small to compare with the document's. {QUICK_NOTE}"
    else:
        counts = Counter(cell.verdict for cell in result.cells.values())
        first = "; ".join(f"{count} {word}" for word, count in counts.items()) + "."
    return f"{first} {recipe_ordering.summary(result.pairs)}".strip()
