"""What config.toml holds of a run, and whether a file of the user's own is still the one it began with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evenflow.lab.tasks import Task
from evenflow.lab.tasks.own_data import OwnData

from .run_folder import Run
from .settings import Settings

DATA = "data"  # the table with the SHA-256 of a file of the user's own


def tables(task: Task, settings: Settings, others: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The tables task and training, what there is of others, and data for a task on a file of the user's own."""
    own = _own(task)
    return {
        "task": {"name": task.name, **task.options()},
        **{name: written(table) for name, table in (others or {}).items()},
        "training": settings.to_dict(),
        **({} if own is None else {DATA: {"sha256": own.sha256()}}),
    }


def written(table: Mapping[str, Any]) -> dict[str, Any]:
    """A table of options without None, for which TOML has no word: all that may be None are so by default but margin,
    which knows the text."""
    kept = {name: value for name, value in table.items() if value is not None}
    return {name: kept.get(name, "none") for name in table if name in kept or name == "margin"}


def check_data(run: Run, task: Task, table: Mapping[str, Any]) -> None:
    """A ValueError if the task's file is not the one the run began with; runs from before it was noted go on."""
    own, known = _own(task), run.config.get(DATA, {}).get("sha256")
    if own is not None and known is not None and table[DATA]["sha256"] != known:
        raise ValueError(
            f"file {own.path!r} is not the one that run {str(run.folder)!r} began with, its SHA-256 differs: "
            "put that file back, or train anew in another folder"
        )


def _own(task: Task) -> OwnData | None:
    return task if isinstance(task, OwnData) else None
