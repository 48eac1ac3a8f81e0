"""Results at full scale: taken into the committed records, and the pages written from them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from evenflow.cli.app import app, complain
from evenflow.terminal import say


@app.command()
def results(
    folders: Annotated[
        list[Path] | None, typer.Argument(help="Folders of full-scale recipes, or a folder above them.")
    ] = None,
    into: Annotated[Path, typer.Option(help="The results folder.")] = Path("docs/results"),
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; fail if a page differs from its record.")
    ] = False,
) -> None:
    """Merge the records of full-scale recipes into the published ones, and write the pages that follow from them.

    Rows and seeds replace those of the same name or are added. Without a folder the pages are written anew.

    Example:  evenflow results runs/sgornn/table-1/full
    """
    from evenflow.recipes import results as published

    if check:
        if folders:
            raise ValueError(f"--check goes without folders, got {', '.join(map(str, folders))}")
        wrong = published.differing(into)
        for path in wrong:
            complain(f"page {path} differs from what the records give: run `evenflow results --into {into}`", 1)
        if wrong:
            raise typer.Exit(1)
        say("All pages are what the records give.")
        return
    merged, left = published.merge(folders or [], into)
    for sentence in left:
        say(sentence)
    for record in merged:
        rows = len({run.row for run in record.runs})
        say(f"{record.recipe.address}: {len(record.runs)} runs in {rows} of {len(record.recipe.chosen('full'))} rows.")
    changed = published.write(into)
    say(f"Written: {', '.join(map(str, changed))}" if changed else "The pages are as they were.")
