"""The tasks by name."""

from __future__ import annotations

import dataclasses
from typing import Any

from evenflow.checks import unknown

from .adding import Adding
from .copy import Copy
from .task import Task

TASKS: dict[str, type[Task]] = {task.name: task for task in (Adding, Copy)}


def make(name: str, **options: Any) -> Task:
    """The task called `name` with the given options.

    >>> make("copy", length=50).baseline
    0.2970...
    """
    if name not in TASKS:
        raise ValueError(unknown("task", name, TASKS))
    known = [field.name for field in dataclasses.fields(TASKS[name])]  # type: ignore[arg-type]
    for option in options:
        if option not in known:
            raise ValueError(unknown(f"option of task {name}", option, known))
    return TASKS[name](**options)
