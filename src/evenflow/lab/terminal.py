"""How commands read values and print sentences, tables, warnings and errors."""

from __future__ import annotations

import os
import re
import sys
import tomllib
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

WORDS = {"true": True, "false": False, "none": None}
NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?", re.IGNORECASE)


def read_value(text: str) -> Any:
    """Parse a value as TOML or Python spells it: a number, True, False, None or a list; any other text stays text.

    >>> [read_value(text) for text in ("False", ".1", "[1, 2]", "henaff")]
    [False, 0.1, [1, 2], 'henaff']
    """
    try:
        value = tomllib.loads(f"value = {text}")["value"]
        if isinstance(value, bool | int | float | str | list | dict):  # a date stays text
            return value
    except tomllib.TOMLDecodeError:
        pass
    if text.lower() in WORDS:
        return WORDS[text.lower()]
    return float(text) if NUMBER.fullmatch(text) and not text.lstrip("+-").isdigit() else text


def new_table(*columns: str, right: Collection[str] = ()) -> Table:
    """Return an empty table with these headings; the columns in `right` are aligned to the right."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left")
    return table


def show(table: Table) -> None:
    """Print a table: as wide as the terminal, or 180 characters if the output is not a terminal."""
    from rich.console import Console

    Console(width=None if sys.stdout.isatty() else 180).print(table)


def say(text: str) -> None:
    """Print a sentence and flush; under torchrun only process 0 prints."""
    if os.environ.get("RANK", "0") == "0":
        print(text, flush=True)


def complain(message: str, code: int = 0) -> int:
    """Print a warning or an error as one line on standard error, and return the exit code `code`."""
    print(f"evenflow: {' '.join(message.split())}", file=sys.stderr)
    return code
