"""The tasks by name, and `make`, which makes one from its name and options."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from evenflow.checks import unknown
from evenflow.runtime.import_path import COLON, announced, imported

from .adding import Adding
from .characters import Characters
from .cifar import NoisePaddedCifar, SequentialCifar
from .copy import Copy
from .curriculum import CURRICULUM_OPTIONS, Curriculum
from .digits import Digits
from .forecasting import Lorenz, MackeyGlass
from .har import Har, HarRebuilt, HarSubset
from .kth_largest import KthLargest
from .multilabel import MultilabelRows
from .multiplication import Multiplication
from .music import Music
from .own_formats import CsvData, NpzData, ParquetData
from .pixels import FashionPixels, Pixels
from .recall_first import RecallFirst
from .state_tracking import StateTracking
from .task import Task, option_fields
from .temporal_order import TemporalOrder
from .ucr import Ucr
from .words import Words
from .xor import Xor

SYNTHETIC = (Adding, Multiplication, Xor, TemporalOrder, Copy, RecallFirst, KthLargest, StateTracking)
CHAOTIC = (MackeyGlass, Lorenz)
IMAGES = (Digits, Pixels, FashionPixels, SequentialCifar, NoisePaddedCifar)
REAL = (*IMAGES, Words, Characters, Har, HarRebuilt, HarSubset, Ucr, Music, MultilabelRows)
FILES: dict[str, type[Task]] = {task.name: task for task in (CsvData, ParquetData, NpzData)}
NAMED: dict[str, type[Task]] = {task.name: task for task in (*SYNTHETIC, *CHAOTIC, *REAL)}
TASKS: dict[str, type[Task]] = NAMED | FILES | {"curriculum": Curriculum}

GROUP = "evenflow.tasks"  # of entry points


def make(name: str | type[Task], **options: Any) -> Task:
    """Make the task called `name` with these options.

    ``csv:FILE``, ``parquet:FILE`` and ``npz:FILE`` name a file of your own, ``module:name`` a class of your own, which
    may also be given itself; installed packages announce names in their entry points ``evenflow.tasks``.

    >>> make("copy", length=50).baseline
    0.2970...
    """
    name, options = with_file(name, options)
    kind = find_task(name)
    return _curriculum(options) if kind is Curriculum else kind.from_options(options)


def find_task(name: Any) -> type[Task]:
    """The class of tasks that a name, an import path or the class itself stands for."""
    kind = name
    if isinstance(name, str):
        if name in TASKS:
            return TASKS[name]
        others = announced(GROUP)
        path = others.get(name, name)
        if COLON not in path:
            ending = Path(name).suffix.removeprefix(".").lower()
            if ending in FILES:
                raise ValueError(f"unknown task {name!r}; for a file of your own write {ending}:{name}")
            raise ValueError(unknown("task", name, [*TASKS, *others]))
        try:
            kind = imported("task", path)
        except ValueError:
            if _names_file(name):
                *first, last = (f"{kind}:FILE" for kind in FILES)
                raise ValueError(f"unknown task {name!r}, a file of your own is {', '.join(first)} or {last}") from None
            raise
    if not (isinstance(kind, type) and issubclass(kind, Task)):
        raise ValueError(f"task must be a name or a subclass of evenflow.tasks.Task, got {name!r}, which is {kind!r}")
    return kind


def _names_file(name: str) -> bool:
    """Whether a text with a colon that cannot be imported looks like a file of the user's own."""
    kind, _, file = name.partition(COLON)
    return bool(get_close_matches(kind.lower(), FILES)) or len(Path(file).parts) > 1 or Path(file).is_file()


def _curriculum(options: Mapping[str, Any]) -> Task:
    """A curriculum around the task that the option ``task`` names; both take their options from the same ones."""
    name = options.get("task", Adding.name)
    if name == Curriculum.name or not _is_known(name):
        raise ValueError(unknown("task of a curriculum", name, (task for task in TASKS if task != Curriculum.name)))
    inner = [field.name for field in option_fields(find_task(name))]
    for option in options:
        if option not in (*CURRICULUM_OPTIONS, *inner):
            known = [*CURRICULUM_OPTIONS, *inner]
            raise ValueError(unknown(f"option of task {Curriculum.name} of {name}", option, known))
    own = {option: options[option] for option in CURRICULUM_OPTIONS if option in options and option != "task"}
    return Curriculum(make(name, **{key: options[key] for key in options if key not in CURRICULUM_OPTIONS}), **own)


def _is_known(name: Any) -> bool:
    """Whether a name is listed, announced by a package or an import path; or a class itself."""
    if not isinstance(name, str):
        return isinstance(name, type)
    kind, colon, _ = name.partition(COLON)
    return name in TASKS or (bool(colon) and kind not in TASKS) or name in announced(GROUP)


def with_file(name: Any, options: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Turn ``("csv:FILE", {})`` into ``("csv", {"file": "/absolute/path/FILE"})``; leave other names unchanged."""
    kind, colon, file = str(name).partition(":")
    if not colon or kind not in FILES:
        return name, dict(options)
    if not file:
        raise ValueError(f"{kind}: must be followed by a file, as in {kind}:motion.{kind}")
    # An absolute path: a run may be resumed from another working directory.
    files = {"file": file, **({"validation": options["validation"]} if options.get("validation") else {})}
    return kind, {**options, **{name: str(Path(path).expanduser().absolute()) for name, path in files.items()}}
