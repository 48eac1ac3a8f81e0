"""The tasks by name."""

from __future__ import annotations

from typing import Any

from evenflow.checks import unknown

from .adding import Adding
from .characters import Characters
from .copy import Copy
from .curriculum import Curriculum
from .digits import Digits
from .har import Har, HarRebuilt, HarSubset
from .kth_largest import KthLargest
from .multilabel import MultilabelRows
from .multiplication import Multiplication
from .music import Music
from .pixels import Pixels
from .recall_first import RecallFirst
from .task import Task
from .temporal_order import TemporalOrder
from .ucr import Ucr
from .words import Words
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
        Pixels,
        Words,
        Characters,
        Har,
        HarRebuilt,
        HarSubset,
        Ucr,
        Music,
        MultilabelRows,
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
