"""The command line: ``evenflow --help`` lists the commands; the help of each command ends with an example."""

from __future__ import annotations

# Importing a module registers its commands with `app`, in the order in which `evenflow --help` lists them.
from . import train_commands, predict_commands, compare_commands, sweep_command  # isort: skip
from . import inspect_commands, reproduce_commands, list_commands, data_command  # isort: skip
from .application import app, main, run

__all__ = [
    "app",
    "compare_commands",
    "data_command",
    "inspect_commands",
    "list_commands",
    "main",
    "predict_commands",
    "reproduce_commands",
    "run",
    "sweep_command",
    "train_commands",
]
