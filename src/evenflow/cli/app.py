"""The command line's root, which the commands hang on, and its way to complain."""

from __future__ import annotations

import sys

import typer

app = typer.Typer(
    name="evenflow",
    help="Recurrent networks whose gradients neither vanish nor explode.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def complain(message: str, code: int) -> int:
    print(f"evenflow: {' '.join(message.split())}", file=sys.stderr)
    return code
