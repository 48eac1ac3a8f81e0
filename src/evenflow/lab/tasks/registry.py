"""The tasks by name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
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
from .own_data import CsvData, NpzData, OwnData
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
        CsvData,
        NpzData,
        Curriculum,
    )
}


def make(name: str, **options: Any) -> Task:
    """The task called `name` with the given options; ``csv:FILE`` and ``npz:FILE`` name a file of one's own.

    >>> make("copy", length=50).baseline
    0.2970...
    """
    name, options = with_file(name, options)
    if name not in TASKS:
        raise ValueError(unknown("task", name, TASKS))
    return TASKS[name].from_options(options)


def with_file(name: str, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """``("csv:FILE", {})`` → ``("csv", {"file": "/where/it/is/FILE"})``; other names stay as they are."""
    kind, colon, file = str(name).partition(":")
    if not colon or not issubclass(TASKS.get(kind, Task), OwnData):
        return name, dict(options)
    if not file:
        raise ValueError(f"{kind}: must be followed by a file, as in {kind}:motion.{kind}")
    # In full, so that a run can be resumed from another folder.
    return kind, {"file": str(Path(file).expanduser().absolute()), **options}
