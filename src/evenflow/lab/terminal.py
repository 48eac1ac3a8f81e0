"""What commands print: sentences and tables on standard output, warnings and errors on standard error."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table


def new_table(*columns: str, right: Collection[str] = ()) -> Table:
    """Return an empty table with these headings; the columns in `right` are aligned to the right."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left")
    return table


def show(table: Table) -> None:
    """Print a table: as wide as the terminal, or 160 characters if the output is not a terminal."""
    from rich.console import Console

    Console(width=None if sys.stdout.isatty() else 160).print(table)


def say(text: str) -> None:
    """Print a sentence and flush; under torchrun only process 0 prints."""
    if os.environ.get("RANK", "0") == "0":
        print(text, flush=True)


def complain(message: str, code: int = 0) -> int:
    """Print a warning or an error as one line on standard error, and return the exit code `code`."""
    print(f"evenflow: {' '.join(message.split())}", file=sys.stderr)
    return code
