"""The settings of several runs in one table, differences marked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from evenflow.lab.report.record import Record, flatten

ABSENT = "–"


@dataclass(frozen=True)
class Row:
    """One setting: its name, its value in each run, and whether the values differ."""

    name: str
    values: list[str]
    differs: bool


@dataclass(frozen=True)
class Group:
    """The rows of one table of the configuration: task, system, training."""

    name: str
    rows: list[Row]


def table(runs: Sequence[Record]) -> list[Group]:
    """Groups and rows in the order in which the runs name them; a setting that a run does not have shows a dash."""
    groups = []
    for group in dict.fromkeys(name for run in runs for name in run.settings):
        flat = [flatten(run.settings.get(group, {})) for run in runs]
        names = dict.fromkeys(name for one in flat for name in one)
        rows = []
        for name in names:
            values = [_text(one[name]) if name in one else ABSENT for one in flat]
            rows.append(Row(name.replace("_", " ").replace(".", " › "), values, len(set(values)) > 1))
        if rows:
            groups.append(Group(group.capitalize(), rows))
    return groups


def caption(groups: Sequence[Group], runs: int) -> str:
    """A sentence on what differs."""
    if runs == 1:
        return "Everything needed to run this again."
    names = [row.name for group in groups for row in group.rows if row.differs]
    if not names:
        return "All settings are the same in all runs."
    return f"Highlighted rows differ between the runs: {', '.join(names)}. All other settings are the same."


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list):
        return ", ".join(_text(item) for item in value)
    return str(value)
