"""What the command line prints: sentences and tables."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

    from evenflow.lab.sweep.compare import Attempt

NUMBERS = ("parameters", "best lr", "validation loss", "metric", "seconds", "size")


def show_attempts(best: Sequence[Attempt]) -> None:
    """A row for the best attempt of each system."""
    table = new_table("system", "parameters", "best lr", "validation loss", "metric", "verdict", "seconds")
    for attempt in best:
        verdict = "diverged" if attempt.diverged else "solved" if attempt.solved else "not solved"
        table.add_row(
            attempt.system,
            f"{attempt.parameters:,}",
            "its own" if math.isnan(attempt.lr) else f"{attempt.lr:g}",
            f"{attempt.valid_loss:.4f}",
            f"{attempt.valid_metric:.4f}",
            verdict,
            f"{attempt.seconds:.0f}",
        )
    show(table)


def show_sources(folder: Path) -> None:
    """A row for every data set: whether it is in `folder`, and what is known of it."""
    from evenflow.lab.data import CATALOG
    from evenflow.lab.data.fetch import state

    table = new_table("data set", "state", "size", "terms", "from", "how")
    faults = []
    for name, source in CATALOG.items():
        found = state(source, folder, verify=True)
        size = "" if source.size is None else f"{source.size / 1e6:.2f} MB"
        way = "get" if source.fetchable else "by hand"
        table.add_row(name, found.word, size, source.terms, source.origin, way)
        if found.word == "damaged":
            faults.append(f"Damaged: {name}, {found.reason}.")
    show(table)
    for fault in faults:
        say(fault)


def new_table(*columns: str) -> Table:
    """An empty table; columns of numbers stand to the right."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in NUMBERS else "left")
    return table


def show(table: Table) -> None:
    """Print a table, as wide as it needs to be where the output is not a terminal."""
    from rich.console import Console

    Console(width=None if sys.stdout.isatty() else 160).print(table)


def say(text: str) -> None:
    """Print a sentence now, not when the buffer is full."""
    if os.environ.get("RANK", "0") == "0":  # under torchrun one process speaks for all
        print(text, flush=True)
