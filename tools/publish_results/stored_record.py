"""The stored record of a recipe: one line of JSON for each row and seed, and the lines of its figures.

DOCUMENT/NAME.json          values, hardware, versions, date and time of every run
DOCUMENT/NAME.curves.json   lines of the figures, of one seed of each row

Published values are part of the recipe, not of the record.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from evenflow.checks import unknown
from evenflow.lab.recipes.schema import Recipe

FORMAT = 1
Kept = TypeVar("Kept", "StoredRun", "StoredLine")


@dataclass(frozen=True)
class StoredRun:
    """The run of a row and seed.

    Attributes:
        row, seed: what was trained.
        lr: the learning rate that the search selected; None without a search.
        outcome: "finished", "stopped early", "diverged" or "not trained".
        updates: updates made.
        best_step: update of the best validation, whose weights were tested; None in older records.
        seconds: how long the machine was busy with all learning rates of the search; runs that trained side by side
            share the time equally.
        values: column to a number, a text, or "never".
        hardware, evenflow, torch, date: provenance.
        recipe: digest of the recipe's settings at that time, see `import_record.digest`.
        changed: settings that differ from the recipe's.
        data: what a reader should know about the data.
    """

    row: str
    seed: int
    lr: float | None
    outcome: str
    updates: int
    seconds: float
    values: Mapping[str, float | str]
    hardware: str
    evenflow: str
    torch: str
    date: str
    recipe: str
    changed: Mapping[str, Any] = field(default_factory=dict)
    data: str = ""
    best_step: int | None = None


@dataclass(frozen=True)
class StoredLine:
    """A line of a figure, see `recipe_curves.CURVES`, and the levels drawn beside it."""

    row: str
    seed: int
    kind: str
    levels: Sequence[float]
    x: Sequence[float]
    y: Sequence[float]


@dataclass(frozen=True)
class StoredRecord:
    """All rows and seeds of a recipe that have run at full scale."""

    recipe: Recipe
    runs: tuple[StoredRun, ...] = ()
    lines: tuple[StoredLine, ...] = ()

    def merged(self, runs: Iterable[StoredRun], lines: Iterable[StoredLine]) -> StoredRecord:
        """The record with other runs added or replaced by row and seed; the lines of the lowest seed remain."""
        runs_of = {(run.row, run.seed): run for run in (*self.runs, *runs)}
        drawn: dict[str, list[StoredLine]] = {}
        for row in {run.row for run in runs_of.values()}:
            of_row = {(line.seed, line.kind): line for line in (*self.lines, *lines) if line.row == row}
            lowest = min((seed for seed, _ in of_row), default=0)
            drawn[row] = [line for (seed, _), line in of_row.items() if seed == lowest]
        order = {row.label: at for at, row in enumerate(self.recipe.rows)}
        for row, _ in runs_of:
            if row not in order:
                raise ValueError(unknown(f"row of {self.recipe.address}", row, order))
        kinds = [line for label in order for line in sorted(drawn.get(label, []), key=lambda line: line.kind)]
        return StoredRecord(
            self.recipe, tuple(sorted(runs_of.values(), key=lambda r: (order[r.row], r.seed))), tuple(kinds)
        )

    def files(self) -> dict[str, str]:
        """Paths below the results folder, with the text of each file."""
        recipe = self.recipe
        files = {f"{recipe.address}.json": self._text("runs", [_table(run) for run in self.runs])}
        if self.lines:
            lines = [dataclasses.asdict(line) for line in self.lines]
            files[f"{recipe.address}.curves.json"] = self._text("lines", lines)
        return files

    def summary(self) -> str:
        rows = len({run.row for run in self.runs})
        return f"{self.recipe.address}: {len(self.runs)} runs in {rows} of {len(self.recipe.rows_at('full'))} rows."

    def _text(self, name: str, parts: Sequence[Mapping[str, Any]]) -> str:
        rows = ",\n".join("  " + json.dumps(part, ensure_ascii=False, allow_nan=False) for part in parts)
        head = json.dumps({"format": FORMAT, "recipe": self.recipe.address, "scale": "full"})
        return f'{head[:-1]}, "{name}": [\n{rows}\n]}}\n'


def _table(run: StoredRun) -> dict[str, Any]:
    """A run's fields in order; what is empty of `changed`, `data` and `best_step` is left out."""
    optional = ("changed", "data", "best_step")
    return {k: v for k, v in dataclasses.asdict(run).items() if k not in optional or v}


def read(folder: Path, recipe: Recipe) -> StoredRecord:
    """The stored record of a recipe; an empty one if there is no file."""
    runs = _read(folder / f"{recipe.address}.json", recipe, "runs", StoredRun)
    lines = _read(folder / f"{recipe.address}.curves.json", recipe, "lines", StoredLine)
    return StoredRecord(recipe).merged(runs, lines)


def _read(path: Path, recipe: Recipe, name: str, kind: type[Kept]) -> list[Kept]:
    if not path.is_file():
        return []
    try:
        table = json.loads(path.read_text("utf-8"))
        if not isinstance(table, dict) or (table.get("format"), table.get("recipe")) != (FORMAT, recipe.address):
            raise ValueError(f"it is no record of {recipe.address} in format {FORMAT}")
        return [kind(**part) for part in table[name]]
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise ValueError(f"record {str(path)!r} cannot be read: {error}") from error
