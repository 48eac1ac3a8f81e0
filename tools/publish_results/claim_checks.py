"""Checks of a claim: a comparison of one cell of a recipe with a number or with another row."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from evenflow.checks import unknown
from evenflow.lab.recipes import Column, Recipe, Reproduction
from evenflow.lab.recipes.measures import measure_of
from evenflow.lab.recipes.recipe_cell import DIVERGED, TableCell, as_number
from evenflow.lab.recipes.recipe_ordering import rank
from evenflow.lab.recipes.recipe_verdict import SIGMAS

HOLDS, FAILS, NOISY, NOT_RUN = "holds", "does not hold", "too noisy to tell", "not run yet"
ONE_SEED = "with one seed"
KEYS = ("row", "column", "at_least", "at_most", "beats", "by", "level_with", "within")


@dataclass(frozen=True)
class Outcome:
    """The outcome of a check, whether it rests on one seed or on earlier settings, and the values it is about."""

    word: str
    shown: tuple[str, ...] = ()
    one_seed: bool = False
    earlier: bool = False


@dataclass(frozen=True)
class Check:
    """One of four comparisons of a cell.

    Attributes:
        row, column: the cell. Default column: the claim's, or the recipe's first.
        at_least, at_most: a limit that every seed must keep; a seed that diverged keeps none.
        beats, by: a row that the cell must be better than by more than `by`, and by two standard errors more.
        level_with, within: a row that the cell may differ from by at most `within`, with two standard errors to spare.
    """

    row: str
    column: Column
    at_least: float | None = None
    at_most: float | None = None
    beats: str = ""
    by: float = 0.0
    level_with: str = ""
    within: float = 0.0

    def outcome(self, result: Reproduction) -> Outcome:
        """What the cells of a reproduction say."""
        cells = [result.cells.get((row, self.column.name)) for row in (self.row, self.beats or self.level_with) if row]
        ranked = [cell for cell in cells if cell is not None and rank(cell, self.column) is not None]
        # A row of earlier settings is not compared with one of today's.
        if len(ranked) < len(cells) or len({cell.earlier for cell in ranked}) > 1:
            rows = tuple(row for row in (self.row, self.beats or self.level_with) if row)
            return Outcome(NOT_RUN, rows, earlier=any(cell.earlier for cell in ranked))
        word = self._limit(ranked[0]) if len(ranked) == 1 else self._compare(*ranked)
        return Outcome(
            word,
            tuple(
                f"{cell.row.label}: {cell.column.name} {cell.measured_text()}{cell.missing_text()}" for cell in ranked
            ),
            measure_of(self.column).trains and min(_seeds(cell) for cell in ranked) < 2,
            any(cell.earlier for cell in ranked),
        )

    def _limit(self, cell: TableCell) -> str:
        low = -math.inf if self.at_least is None else self.at_least
        high = math.inf if self.at_most is None else self.at_most
        kept = [low <= value <= high for value in cell.numbers] + [False] * cell.gaps.count(DIVERGED)
        return HOLDS if all(kept) else NOISY if any(kept) else FAILS

    def _compare(self, first: TableCell, second: TableCell) -> str:
        a, b = rank(first, self.column), rank(second, self.column)
        assert a is not None
        assert b is not None
        gap = a - b if self.column.better == "higher" else b - a
        noise = SIGMAS * math.hypot(first.error or 0.0, second.error or 0.0)
        if math.isnan(gap):
            return NOISY
        margin = gap - self.by if self.beats else self.within - abs(gap)
        return NOISY if abs(margin) <= noise or margin == 0 else HOLDS if margin > 0 else FAILS


def _seeds(cell: TableCell) -> int:
    return len(cell.numbers) + cell.gaps.count(DIVERGED)


def read_check(recipe: Recipe, entry: Mapping[str, Any], column: str | None) -> Check:
    """A check from its table in claims.toml; a limit may be a word of the column's measure."""
    for key in entry:
        if key not in KEYS:
            raise ValueError(unknown("key of a check", key, KEYS))
    if sum(key in entry for key in ("at_least", "at_most", "beats", "level_with")) < 1:
        raise ValueError(f"a check must have at_least, at_most, beats or level_with, got {dict(entry)}")
    names = {c.name: c for c in recipe.columns}
    name = entry.get("column", column or recipe.columns[0].name)
    if name not in names:
        raise ValueError(unknown(f"column of {recipe.address}", name, names))
    for key in ("row", "beats", "level_with"):
        if key in entry:
            recipe.row(entry[key])
    values = {**entry, "column": names[name]}
    for key in ("at_least", "at_most"):
        if key in values:
            values[key] = as_number(names[name], values[key])
            if values[key] is None:
                raise ValueError(f"{key} must be a number or a word of the column {name!r}, got {entry[key]!r}")
    return Check(**values)
