"""The table of the settings of several runs, with differences marked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from evenflow.lab.report.run_record import RunRecord
from evenflow.lab.training.loggers import flatten

ABSENT = "–"


@dataclass(frozen=True)
class SettingsRow:
    """One setting: its name, its value in each run, and whether the values differ."""

    name: str
    values: list[str]
    differs: bool


@dataclass(frozen=True)
class SettingsGroup:
    """The rows of one table of the config: task, system or training."""

    name: str
    rows: list[SettingsRow]


def settings_groups(runs: Sequence[RunRecord]) -> list[SettingsGroup]:
    """Groups and rows in the order in which the runs name them; a dash replaces a setting that a run lacks."""
    groups = []
    for group in dict.fromkeys(name for run in runs for name in run.settings):
        flat = [flatten(run.settings.get(group, {})) for run in runs]
        rows = []
        for name in dict.fromkeys(name for one in flat for name in one):
            values = [_text(one[name]) if name in one else ABSENT for one in flat]
            rows.append(SettingsRow(name.replace("_", " ").replace(".", " › "), values, len(set(values)) > 1))
        if rows:
            groups.append(SettingsGroup(group.capitalize(), rows))
    return groups


def caption(groups: Sequence[SettingsGroup], runs: int) -> str:
    """A sentence about the differences."""
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
    return ", ".join(_text(item) for item in value) if isinstance(value, list) else str(value)
