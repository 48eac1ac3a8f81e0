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
        list[Path] | None, typer.Argument(help="Folders of full-scale recipes and of sweeps, or one above them.")
    ] = None,
    into: Annotated[Path, typer.Option(help="The results folder.")] = Path("docs/results"),
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; fail if a page differs from its record.")
    ] = False,
) -> None:
    """Merge the records of full-scale recipes and sweeps into the published ones, and write the pages that follow.

    Rows, seeds and sweeps replace those of the same name or are added.

    Without a folder the pages are written anew.

    Example:  evenflow results runs/sgornn/table-1/full

    Example:  evenflow results runs/sweep/har
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
        say(record.told())
    changed = published.write(into)
    say(f"Written: {', '.join(map(str, changed))}" if changed else "The pages are as they were.")
