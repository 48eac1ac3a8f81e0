"""The command line: ``evenflow --help`` lists the commands, and each has a help with an example.

Exit codes: 0 done, 1 failed, 2 bad usage. A user's slip is one line on stderr, never a stack trace.
"""

from __future__ import annotations

import errno
import io
import sys
from collections.abc import Sequence

import typer

from evenflow.lab.cli import data, lists, look, reproduce, sweep, train  # each hangs its commands on the app
from evenflow.lab.cli.app import app, complain
from evenflow.lab.training.settings import SYNONYMS

INTERRUPTED = 130  # what the parser makes of Ctrl-C in a command

__all__ = ["app", "data", "lists", "look", "main", "reproduce", "run", "sweep", "train"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and leave with its exit code."""
    run(app, "evenflow", arguments)


def run(application: typer.Typer, name: str, arguments: Sequence[str] | None = None) -> None:
    """Run a command line under a name: a user's mistake becomes one line on stderr and exit code 2."""
    import torch

    from evenflow.lab.training import NonFiniteLoss

    for stream in (sys.stdout, sys.stderr):  # a letter that a terminal does not have should not cost the answer
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    torch.set_flush_denormal(True)  # a vanishing gradient is full of denormals, which slow a CPU down
    try:
        code = application(args=arguments, prog_name=name, standalone_mode=False)
        if code == INTERRUPTED:
            raise KeyboardInterrupt
    except (ValueError, OSError) as error:
        full = isinstance(error, OSError) and error.errno == errno.ENOSPC  # no slip of the user's
        code = complain(str(error), 1 if full else 2)
    except KeyboardInterrupt:
        code = complain("interrupted; a run goes on where it was with `evenflow resume FOLDER`", 1)
    except NonFiniteLoss as error:
        code = complain(str(error), 1)
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError | torch.OutOfMemoryError) and "allocate memory" not in str(error):
            raise
        said = str(error).strip().splitlines()[0] if str(error).strip() else "no memory"
        code = complain(f"there is not enough memory: try fewer units, steps or sequences in a batch ({said})", 1)
    except Exception as error:
        # The parser's own errors carry a message and a code; anything else is a defect and shows itself.
        if not hasattr(error, "format_message"):
            raise
        if (setting := getattr(error, "option_name", "").lstrip("-").replace("-", "_")) in SYNONYMS:
            error.possibilities = [f"--{SYNONYMS[setting]}"]  # type: ignore[attr-defined]
        shown = type(error).__name__ == "NoArgsIsHelpError"  # its message is the help, printed already
        code = 2 if shown else complain(error.format_message(), 2)
    finally:
        torch.set_flush_denormal(False)
    sys.exit(code or 0)
