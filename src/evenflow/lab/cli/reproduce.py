"""The documents' tables and figures: listed, and run again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from evenflow.lab.cli.app import app, said_again
from evenflow.lab.cli.options import Data, Quiet
from evenflow.lab.terminal import say


@app.command("recipes")
def list_recipes() -> None:
    """List the documents' tables and figures that can be run again, with the time each takes.

    Example:  evenflow recipes
    """
    from evenflow.lab.recipes.table import show_recipes

    show_recipes()


@app.command()
def reproduce(
    name: Annotated[str, typer.Argument(help="A table or figure, as sgornn/table-1; see `evenflow recipes`.")],
    scale: Annotated[str, typer.Option(help="quick (minutes on two cores) or full (the document's budget).")] = "quick",
    seeds: Annotated[int | None, typer.Option(help="How many seeds; the recipe's own if not given.")] = None,
    seed: Annotated[int | None, typer.Option(help="The first of them, to add others to those run elsewhere.")] = None,
    rows: Annotated[str | None, typer.Option(help="Labels of the rows to run, with semicolons or commas.")] = None,
    task: Annotated[str | None, typer.Option(help="Another task for the recipe's, as har for har-rebuilt.")] = None,
    data: Data = None,
    folder: Annotated[
        Path | None, typer.Option(help="For runs, page and record; runs/NAME/SCALE if not given.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, cuda:N or mps.")] = None,
    seconds: Annotated[
        float | None, typer.Option(help="Stop after about this long, with a record of what has ended.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Train what a document trained, and set the numbers beside those it printed.

    Stopped and started again, it goes on where it was. A row that diverges or whose data is missing is an outcome.

    Example:  evenflow reproduce sgornn/table-1 --scale quick
    """
    from evenflow.lab.recipes import load
    from evenflow.lab.recipes import reproduce as run
    from evenflow.lab.recipes.labels import choose
    from evenflow.lab.recipes.table import show_reproduction

    recipe = load(name)
    say(f"{recipe.title} ({recipe.address}, {scale}).")
    where = None if data is None else str(data.absolute())
    with said_again():
        done = run(
            recipe,
            scale,
            folder=folder,
            seeds=seeds,
            seed=seed,
            rows=None if rows is None else choose(recipe, rows),
            task=task,
            data=where,
            device=device,
            limit=seconds,
            progress=not quiet,
            announce=say,
        )
    if done.record is not None:
        show_reproduction(done)
        say(f"The record: {done.record}   The page: {done.page}")
    if done.left:
        ended = len(done.outcomes)
        say(f"Out of time: {ended} of {ended + done.left} rows and seeds have ended; the same command goes on.")
