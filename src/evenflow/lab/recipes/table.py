"""The end of a reproduction in the terminal, and the list of recipes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evenflow.lab.terminal import new_table, say, show

from . import cost, verdict
from .catalog import load, names
from .measures import MEASURES

if TYPE_CHECKING:
    from .run import Reproduction

# Honest about what an ordering at quick scale is worth.
CHOSEN = "Quick settings were chosen, with one seed, so that the ordering shows where it can: no evidence for it."
LONGEST = 60  # characters of a measured text, such as a sentence


def show_reproduction(done: Reproduction) -> None:
    """A line for every row and column: measured, published, verdict; then the ordering and the notes."""
    columns = done.recipe.columns
    several = len(columns) > 1
    table = new_table("row", *(["what"] if several else []), "measured", "published", "verdict")
    for label in done.labels:
        first = label
        for column in columns:
            cell = done.cells[label, column.name]
            cells = [cell.measured_text() + cell.lost_text(), cell.published_text(), cell.verdict_text()]
            table.add_row(first, *([column.name] if several else []), *(_short(text) for text in cells))
            first = ""
    show(table)
    if not several:
        say(f"Measured: {columns[0].name}, {MEASURES[columns[0].measure].about}.")
    chosen = CHOSEN if done.scale == "quick" and done.pairs else ""
    for sentence in (verdict.summary(done.pairs), chosen, done.recipe.scale(done.scale).note, *data_notes(done)):
        if sentence:
            say(sentence)


def data_notes(done: Reproduction) -> list[str]:
    """What is to be known about the data, once each."""
    found = [o.evidence.task.note for o in done.outcomes if o.evidence is not None and o.evidence.task.note]
    return [f"The data: {note}." for note in dict.fromkeys(found)]


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 2 * LONGEST else text[: 2 * LONGEST - 1] + "…"


def show_recipes() -> None:
    """A line for every recipe with the time it takes."""
    table = new_table("recipe", "what it is", "rows", "quick", "full")
    for name in names():
        recipe = load(name)
        times = [cost.estimate(recipe, scale) for scale in ("quick", "full")]
        shown = [f"{'' if source == 'measured' else '≈ '}{cost.rough(value)}" for value, source in times]
        also = f" ({', '.join(recipe.also)})" if recipe.also else ""
        rows = f"{len(recipe.chosen('quick'))} / {len(recipe.chosen('full'))}"
        table.add_row(name + also, recipe.title, rows, *shown)
    show(table)
    say("rows: at quick and at full scale. Times of all rows and seeds: quick on a CPU, full on an H200.")
    say("With ≈ they follow from a cost model (operations and time steps of an update);")
    say("else they were measured once, see docs/recipes.md.")
    say("Run one:  evenflow reproduce sgornn/table-1 --scale quick")
