"""The tasks by name, and `make`, which makes one from its name and options."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evenflow.checks import unknown

from .adding import Adding
from .characters import Characters
from .copy import Copy
from .curriculum import CURRICULUM_OPTIONS, Curriculum
from .digits import Digits
from .har import Har, HarRebuilt, HarSubset
from .kth_largest import KthLargest
from .multilabel import MultilabelRows
from .multiplication import Multiplication
from .music import Music
from .own_data import OwnData
from .own_formats import CsvData, NpzData, ParquetData
from .pixels import Pixels
from .recall_first import RecallFirst
from .task import Task, option_fields
from .temporal_order import TemporalOrder
from .ucr import Ucr
from .words import Words
from .xor import Xor

SYNTHETIC = (Adding, Multiplication, Xor, TemporalOrder, Copy, RecallFirst, KthLargest)
REAL = (Digits, Pixels, Words, Characters, Har, HarRebuilt, HarSubset, Ucr, Music, MultilabelRows)
TASKS: dict[str, type[Task]] = {
    task.name: task for task in (*SYNTHETIC, *REAL, CsvData, ParquetData, NpzData, Curriculum)
}


def make(name: str, **options: Any) -> Task:
    """Make the task called `name` with these options. ``csv:FILE`` and ``npz:FILE`` name a file of your own.

    >>> make("copy", length=50).baseline
    0.2970...
    """
    name, options = with_file(name, options)
    if name not in TASKS:
        kind = Path(str(name)).suffix.removeprefix(".").lower()
        if issubclass(TASKS.get(kind, Task), OwnData):
            raise ValueError(f"unknown task {name!r}; for a file of your own write {kind}:{name}")
        raise ValueError(unknown("task", name, TASKS))
    return _curriculum(options) if name == Curriculum.name else TASKS[name].from_options(options)


def _curriculum(options: Mapping[str, Any]) -> Task:
    """A curriculum around the task that the option ``task`` names; both take their options from the same ones."""
    name = options.get("task", Adding.name)
    if not isinstance(name, str) or name not in TASKS or name == Curriculum.name:
        raise ValueError(unknown("task of a curriculum", name, (task for task in TASKS if task != Curriculum.name)))
    inner = [field.name for field in option_fields(TASKS[name])]
    for option in options:
        if option not in (*CURRICULUM_OPTIONS, *inner):
            known = [*CURRICULUM_OPTIONS, *inner]
            raise ValueError(unknown(f"option of task {Curriculum.name} of {name}", option, known))
    own = {option: options[option] for option in CURRICULUM_OPTIONS if option in options and option != "task"}
    return Curriculum(make(name, **{key: options[key] for key in options if key not in CURRICULUM_OPTIONS}), **own)


def with_file(name: str, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Turn ``("csv:FILE", {})`` into ``("csv", {"file": "/absolute/path/FILE"})``; leave other names unchanged."""
    kind, colon, file = str(name).partition(":")
    if not colon or not issubclass(TASKS.get(kind, Task), OwnData):
        return name, dict(options)
    if not file:
        raise ValueError(f"{kind}: must be followed by a file, as in {kind}:motion.{kind}")
    # An absolute path: a run may be resumed from another working directory.
    files = {"file": file, **({"validation": options["validation"]} if options.get("validation") else {})}
    return kind, {**options, **{name: str(Path(path).expanduser().absolute()) for name, path in files.items()}}
