"""The tasks by name."""

from __future__ import annotations

from typing import Any

from evenflow.checks import unknown

from .adding import Adding
from .copy import Copy
from .curriculum import Curriculum
from .digits import Digits
from .kth_largest import KthLargest
from .multiplication import Multiplication
from .recall_first import RecallFirst
from .task import Task
from .temporal_order import TemporalOrder
from .xor import Xor

TASKS: dict[str, type[Task]] = {
    task.name: task
    for task in (
        Adding,
        Multiplication,
        Xor,
        TemporalOrder,
        Copy,
        RecallFirst,
        KthLargest,
        Digits,
        Curriculum,
    )
}


def make(name: str, **options: Any) -> Task:
    """The task called `name` with the given options.

    >>> make("copy", length=50).baseline
    0.2970...
    """
    if name not in TASKS:
        raise ValueError(unknown("task", name, TASKS))
    return TASKS[name].from_options(options)
