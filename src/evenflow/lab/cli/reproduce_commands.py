"""The commands `recipes` and `reproduce`: list published tables and figures, and train them again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from evenflow.lab.launches import LaunchPlace
from evenflow.lab.terminal import say

from .application import app, same_command_continues
from .options import Data, Figures, Quiet, Table
from .place_options import takes_place
from .result_files import say_files


@app.command("recipes")
def list_recipes() -> None:
    """List the published tables and figures that can be reproduced, with the time each takes.

    Example:  evenflow recipes
    """
    from evenflow.lab.recipes.recipe_table import show_recipes

    show_recipes()


@app.command()
@takes_place
def reproduce(
    name: Annotated[str, typer.Argument(help="A table or figure such as sgornn/table-1; see `evenflow recipes`.")],
    scale: Annotated[
        str, typer.Option(help="quick (minutes on two cores) or full (the document's training budget).")
    ] = "quick",
    seeds: Annotated[int | None, typer.Option(help="Number of seeds. Default: the recipe's own.")] = None,
    seed: Annotated[int | None, typer.Option(help="The first seed, to add seeds to those trained before.")] = None,
    rows: Annotated[str | None, typer.Option(help="Labels of the rows to train, with semicolons or commas.")] = None,
    task: Annotated[
        str | None, typer.Option(help="A task in place of the recipe's, such as har for har-rebuilt.")
    ] = None,
    data: Data = None,
    folder: Annotated[
        Path | None, typer.Option(help="Folder of the runs, the page and the record. Default: runs/NAME/SCALE.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, cuda:N or mps.")] = None,
    seconds: Annotated[
        float | None, typer.Option(help="Stop after about this time, with a record of the finished runs.")
    ] = None,
    table: Table = None,
    figures: Figures = None,
    quiet: Quiet = False,
    *,
    place: LaunchPlace,
) -> None:
    """Train the models of a published table or figure, and compare the measured numbers with the published ones.

    If it was interrupted, the same command continues. A row that diverges or whose data is missing is reported as such.

    Example:  evenflow reproduce sgornn/table-1 --scale quick

    Example:  evenflow reproduce urnn/table-3 --table latex --figures pdf
    """
    from evenflow.lab import recipes
    from evenflow.lab.recipes.labels_at_scale import labels_at
    from evenflow.lab.recipes.recipe_figures import recipe_panels
    from evenflow.lab.recipes.recipe_legend import legend
    from evenflow.lab.recipes.recipe_table import reproduction_table, show_reproduction
    from evenflow.lab.report import check_formats, write_figures, write_table

    check_formats(table, figures)
    recipe, requested = recipes.load(name), None
    if rows is not None:
        for label, shown in labels_at(recipe, scale).items():
            rows = rows.replace(shown, label)
        requested = recipe.split_labels(rows)
    say(f"{recipe.title} ({recipe.address}, {scale}).")
    with same_command_continues():
        reproduction = recipes.reproduce(
            recipe,
            scale,
            folder=folder,
            seeds=seeds,
            seed=seed,
            rows=requested,
            task=task,
            data=None if data is None else str(data.absolute()),
            device=device,
            limit=seconds,
            place=place,
            progress=not quiet,
            announce=say,
        )
    if reproduction.record is not None:
        show_reproduction(reproduction)
        say(f"The record: {reproduction.record}   The page: {reproduction.page}")
    if reproduction.page is not None and table is not None:
        say_files([write_table(reproduction.page, reproduction_table(reproduction), table)])
    if reproduction.page is not None and figures is not None:
        labels = {entry["index"]: entry["label"] for entry in legend(reproduction)}
        say_files(write_figures(reproduction.page, recipe_panels(reproduction), figures, labels))
    if reproduction.left:
        ended = len(reproduction.outcomes)
        total = ended + reproduction.left
        say(f"Out of time: {ended} of {total} rows and seeds have ended; the same command goes on.")
