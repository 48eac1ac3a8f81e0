"""The command that publishes results, for maintainers: ``python tools/publish_results --help``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

sys.path.insert(0, str(Path(__file__).parents[1]))  # so that the folder can be run as it is

import publish_results as published
from evenflow.lab.cli import run
from evenflow.lab.terminal import complain, say

app = typer.Typer(add_completion=False, context_settings={"help_option_names": ["-h", "--help"]})


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command and exit with its exit code."""
    run(app, "publish_results", arguments)


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
    """Merge the records of full-scale recipes and sweeps into the stored ones, and write the pages.

    Rows, seeds and sweeps are added, or replace those of the same name.

    Without a folder, only the pages are written.

    Example:  python tools/publish_results runs/sgornn/table-1/full

    Example:  python tools/publish_results runs/sweep/har
    """
    if check:
        if folders:
            raise ValueError(f"--check goes without folders, got {', '.join(map(str, folders))}")
        differing = published.differing(into)
        for path in differing:
            complain(f"page {path} differs from its record: run `python tools/publish_results --into {into}`", 1)
        if differing:
            raise typer.Exit(1)
        say("All pages are what the records give.")
        return
    merged, left_out = published.merge(folders or [], into)
    for sentence in left_out:
        say(sentence)
    for record in merged:
        say(record.summary())
    changed = published.write(into)
    say(f"Written: {', '.join(map(str, changed))}" if changed else "The pages are as they were.")


if __name__ == "__main__":
    main()
