"""The commands `data list` and `data get`: which real data sets are in the data folder, and how to get the others."""

from __future__ import annotations

from typing import Annotated

import typer

from evenflow.lab.terminal import complain, new_table, say, show

from .application import app
from .options import DataFolder, Quiet

data_app = typer.Typer(help="List and fetch the real data sets.", no_args_is_help=True)
app.add_typer(data_app, name="data")


@data_app.command("list")
def list_data(data: DataFolder = None) -> None:
    """List the real data sets: whether each is in the data folder and undamaged, its size, terms of use and origin.

    Example:  evenflow data list --data ~/sets
    """
    from evenflow.lab.data import CATALOG, data_folder
    from evenflow.lab.data.fetch import state

    folder = data_folder(data)
    table = new_table("data set", "state", "size", "terms", "from", "how", right=("size",))
    faults = []
    for name, source in CATALOG.items():
        status = state(source, folder, verify=True)
        size = "" if source.size is None else f"{source.size / 1e6:.2f} MB"
        table.add_row(name, status.word, size, source.terms, source.origin, "get" if source.fetchable else "by hand")
        if status.word == "damaged":
            faults.append(f"Damaged: {name}, {status.reason}.")
    show(table)
    for fault in faults:
        say(fault)
    say(f"The data folder: {folder.absolute()}")
    say("Fetch one:  evenflow data get mnist   One by hand: `get` says which file to put where")


@data_app.command("get")
def get_data(
    name: Annotated[str, typer.Argument(help="Name of the data set; see `evenflow data list`.")],
    data: DataFolder = None,
    quiet: Quiet = False,
) -> None:
    """Fetch a real data set and check its SHA-256, or say which file to put where by hand.

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
