"""The typer application that the commands are registered with, and `main`, which runs it.

Exit codes: 0 for success, 1 for a failure, 2 for bad usage. A user's mistake is reported in one line on standard error,
without a stack trace.
"""

from __future__ import annotations

import errno
import io
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

import evenflow
from evenflow.lab.terminal import complain, say

PACKAGE = str(Path(__file__).parents[2])
INTERRUPTED = 130  # the exit code that typer returns after Ctrl-C in a command

app = typer.Typer(
    name="evenflow",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(requested: bool) -> None:
    if requested:
        say(f"evenflow {evenflow.__version__}")
        raise typer.Exit()


@app.callback()
def root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Train, compare and inspect recurrent networks whose gradients neither vanish nor explode.

    `evenflow COMMAND --help` explains a command and ends with an example. New here: run `evenflow demo`.
    """
    context.with_resource(warnings.catch_warnings())
    show_others = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], filename: str, *rest: Any, **more: Any) -> None:
        """Print a warning of this package as one line."""
        if filename.startswith(PACKAGE):
            complain(str(message))
        else:
            show_others(message, category, filename, *rest, **more)

    warnings.showwarning = show


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    run(app, "evenflow", arguments)


def run(application: typer.Typer, name: str, arguments: Sequence[str] | None = None) -> None:
    """Run an application under `name`: a user's mistake becomes one line on standard error and exit code 2."""
    import torch

    from evenflow.lab.training import NonFiniteLoss
    from evenflow.lab.training.process_group import ProcessLost
    from evenflow.lab.training.settings import SYNONYMS

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal may lack a letter that is printed
    torch.set_flush_denormal(True)  # vanishing gradients are denormal numbers, which slow a CPU down
    paths = list(sys.path)
    # The current folder holds systems and tasks of the user's own. It comes last, so that no file in it takes the place
    # of a module of an installed package.
    sys.path.append("")
    try:
        code = application(args=arguments, prog_name=name, standalone_mode=False)
        if code == INTERRUPTED:
            raise KeyboardInterrupt
    except (ValueError, OSError) as error:
        disk_full = isinstance(error, OSError) and error.errno == errno.ENOSPC
        code = complain(str(error), 1 if disk_full else 2)
    except KeyboardInterrupt:
        code = complain("interrupted; a run goes on where it was with `evenflow resume FOLDER`", 1)
    except (NonFiniteLoss, ProcessLost) as error:
        code = complain(str(error), 1)
    except (MemoryError, RuntimeError) as error:
        message = (str(error).strip() or "no memory").splitlines()[0]
        if not isinstance(error, MemoryError | torch.OutOfMemoryError) and "allocate memory" not in str(error):
            raise
        code = complain(f"there is not enough memory: try fewer units, steps or sequences in a batch ({message})", 1)
    except Exception as error:
        # typer's own errors have a `format_message`; any other exception is a defect, whose traceback is shown.
        if not hasattr(error, "format_message"):
            raise
        option = getattr(error, "option_name", "").lstrip("-").replace("-", "_")
        if option in SYNONYMS:
            error.possibilities = [f"--{SYNONYMS[option]}"]  # type: ignore[attr-defined]
        help_shown = type(error).__name__ == "NoArgsIsHelpError"
        code = 2 if help_shown else complain(error.format_message(), 2)
    finally:
        sys.path[:] = paths
        torch.set_flush_denormal(False)
    sys.exit(code or 0)


@contextmanager
def same_command_continues() -> Iterator[None]:
    """For commands that train many runs: after Ctrl-C, say that the same command continues, not `evenflow resume`."""
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(complain("interrupted; the same command goes on where it was", 1)) from None
