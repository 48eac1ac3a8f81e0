"""Terminal output: the table of a reproduction, and the list of recipes."""

from __future__ import annotations

import math
from pathlib import Path

from evenflow.lab.report.numbers import duration
from evenflow.lab.report.result_table import ResultCell, ResultTable
from evenflow.lab.terminal import new_table, say, show

from . import cost, recipe_ordering
from .configs import plan
from .measures import measure_of, needs_training
from .recipe_catalog import load, names
from .recipe_cell import TableCell
from .reproduction import Reproduction
from .schema import Recipe

QUICK_NOTE = "Quick settings were tuned, with one seed, until the ordering showed where it could; they are no evidence."
LONGEST = 120  # characters of a table cell


def show_reproduction(result: Reproduction) -> None:
    """Print a line for every row and column: measured, published, verdict; then the ordering and the notes."""
    columns = result.recipe.columns
    several = len(columns) > 1
    table = new_table("row", *(["what"] if several else []), "measured", "published", "verdict")
    for label in result.labels:
        for index, cell in enumerate(result.row_cells(label)):
            texts = [cell.measured_text() + cell.missing_text(), cell.published_text(), cell.verdict_text()]
            what = [cell.column.name] if several else []
            table.add_row("" if index else label, *what, *(_shorten(text) for text in texts))
    show(table)
    if not several:
        say(f"Measured: {columns[0].name}, {measure_of(columns[0]).about}.")
    quick_note = QUICK_NOTE if result.scale == "quick" and result.pairs else ""
    notes = [f"The data: {note}." for note in result.data_notes]
    for sentence in (recipe_ordering.summary(result.pairs), quick_note, result.recipe.scale(result.scale).note, *notes):
        if sentence:
            say(sentence)


def reproduction_table(result: Reproduction) -> ResultTable:
    """The table for a paper: a row for every row and column of the recipe."""
    several = len(result.recipe.columns) > 1
    rows = []
    for label in result.labels:
        for cell in result.row_cells(label):
            measured = ResultCell(cell.measured_text() + cell.missing_text(), _numbers(cell), compared=True)
            published = () if cell.target is None else (cell.target,)
            what = [ResultCell(cell.column.name)] if several else []
            verdict = ResultCell(cell.verdict_text())
            rows.append((ResultCell(label), *what, measured, ResultCell(cell.published_text(), published), verdict))
    headings = ("Row", *(["What"] if several else []), "Measured", "Published", "Verdict")
    notes = ["± is the standard deviation over seeds."] if any("±" in cell.text for row in rows for cell in row) else []
    return ResultTable(headings, tuple(rows), tuple(notes))


def _numbers(cell: TableCell) -> tuple[float, ...]:
    """The numbers of a cell; none for words such as yes and no."""
    return () if measure_of(cell.column).words else tuple(v for v in cell.numbers if math.isfinite(v))


def _shorten(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def show_recipes() -> None:
    """Print a line for every recipe, with the time it takes."""
    table = new_table("recipe", "what it is", "rows", "quick", "full")
    for name in names():
        recipe = load(name)
        times = [estimate(recipe, scale) for scale in ("quick", "full")]
        shown = [f"{'≈ ' if modelled else ''}{duration(seconds, rough=True)}" for seconds, modelled in times]
        also = f" ({', '.join(recipe.also)})" if recipe.also else ""
        rows = f"{len(recipe.rows_at('quick'))} / {len(recipe.rows_at('full'))}"
        table.add_row(name + also, recipe.title, rows, *shown)
    show(table)
    say("rows: at quick and at full scale. Times of all rows and seeds: quick on a CPU, full on an H200.")
    say("With ≈ they follow from a cost model (operations and time steps of an update);")
    say("else they were measured once, see docs/recipes.md.")
    say("Run one:  evenflow reproduce sgornn/table-1 --scale quick")


def estimate(recipe: Recipe, scale: str) -> tuple[float, bool]:
    """Seconds that a scale of a recipe takes, and whether they come from the cost model instead of a measurement.

    quick is for two CPU cores, full for an H200. Every learning rate is counted, although a search may end early.
    """
    measured = recipe.scale(scale).seconds
    if measured is not None:
        return measured, False
    machine = cost.CPU if scale == "quick" else cost.GPU
    jobs = plan(recipe, scale, Path()).jobs()
    return sum(cost.training_seconds(job.config, machine) if needs_training(recipe) else 1.0 for job in jobs), True
