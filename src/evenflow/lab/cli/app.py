"""The command line's root, which the commands hang on, and its way to complain."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

PACKAGE = str(Path(__file__).parents[2])

app = typer.Typer(
    name="evenflow",
    help="Recurrent networks whose gradients neither vanish nor explode.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def speak_plainly(context: typer.Context) -> None:
    """Let what the package warns of be one line, as long as a command runs."""
    context.with_resource(warnings.catch_warnings())
    usual = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], filename: str, *rest: Any, **more: Any) -> None:
        if filename.startswith(PACKAGE):
            complain(str(message), 0)
        else:
            usual(message, category, filename, *rest, **more)

    warnings.showwarning = show


def complain(message: str, code: int) -> int:
    print(f"evenflow: {' '.join(message.split())}", file=sys.stderr)
    return code


@contextmanager
def said_again() -> Iterator[None]:
    """Around what many runs are made by: after Ctrl-C it is the same command that goes on, and not `resume`."""
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(complain("interrupted; the same command goes on where it was", 1)) from None
