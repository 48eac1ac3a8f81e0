"""The real data sets: which are there, and how to get the others."""

from __future__ import annotations

from typing import Annotated

import typer

from evenflow.lab.cli.app import app, complain
from evenflow.lab.cli.options import DataFolder, Quiet
from evenflow.lab.terminal import say, show_sources

data_app = typer.Typer(help="List and fetch the real data sets.", no_args_is_help=True)
app.add_typer(data_app, name="data")


@data_app.command("list")
def list_data(data: DataFolder = None) -> None:
    """List the real data sets: whether they are there and whole, their size, terms and origin.

    Example:  evenflow data list --data ~/sets
    """
    from evenflow.lab.data import data_folder

    folder = data_folder(data)
    show_sources(folder)
    say(f"The data folder: {folder.absolute()}")
    say("Fetch one:  evenflow data get mnist   One by hand: `get` says which file to put where")


@data_app.command("get")
def get_data(
    name: Annotated[str, typer.Argument(help="Which one; see `evenflow data list`.")],
    data: DataFolder = None,
    quiet: Quiet = False,
) -> None:
    """Fetch a real data set and check it against its SHA-256, or say which file to put where.

    Example:  evenflow data get mnist --data ~/sets
    """
    from evenflow.lab.data import CATALOG, data_folder
    from evenflow.lab.data.fetch import Unreachable, get

    try:
        files = get(name, data_folder(data), progress=not quiet)
    except Unreachable as error:
        raise typer.Exit(complain(str(error), 1)) from None
    say(f"{CATALOG[name].title}: in {files[0].parent.absolute()}")
    say(f"Terms: {CATALOG[name].terms}. Origin: {CATALOG[name].origin}.")
