"""What a recipe is: one table or figure of a document as data, checked once when it is read."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evenflow.checks import one_of, unknown

from .labels import folder_name

TABLES = ("task", "system", "training")
SCALES = ("quick", "full")
KINDS = ("table", "figure")
BETTER = ("higher", "lower", "same")
SEARCHES = ("until-solved", "best")

Value = float | int | bool | str
Table = dict[str, Any]


@dataclass(frozen=True)
class Column:
    """One quantity that every row is measured by.

    Attributes:
        name: what it is called in the table.
        measure: a name in `measures.MEASURES`.
        better: higher, lower, or same where it should simply agree.
        tolerance: how far from the published number still counts as reproduced, in the column's unit.
        factor: what the measured number is multiplied by, 100 for a percentage.
        any_scale: whether it should agree at quick scale too, because the size changes nothing about it.
        incomparable: why the published numbers of this column cannot be compared with ours; empty if they can.
    """

    name: str
    measure: str
    better: str = "lower"
    tolerance: float = 0.0
    factor: float = 1.0
    incomparable: str = ""
    any_scale: bool = False


@dataclass(frozen=True)
class Row:
    """One line of the table, or one curve of the figure.

    Attributes:
        label: unique in the recipe.
        use: names of `sets` whose tables it takes, in order.
        group: rows of one group share a plot.
        line, x: in a plot against a number, which line the row is a point of, and where.
        published: column to what the document printed: a number, a word, or true and false.
        spread: column to the published standard deviation.
        task, system, training: over the recipe's own tables and those of the sets.
    """

    label: str
    use: tuple[str, ...] = ()
    group: str = ""
    line: str = ""
    x: float | None = None
    published: Mapping[str, Value] = field(default_factory=dict)
    spread: Mapping[str, float] = field(default_factory=dict)
    task: Table = field(default_factory=dict)
    system: Table = field(default_factory=dict)
    training: Table = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True)
class Scale:
    """What one scale changes.

    Attributes:
        rows: the labels that run; all of them by default.
        seeds, lrs: in place of the recipe's.
        sets: over the recipe's sets; task, system, training: over everything.
        ordering: False where this scale is too small for the ordering to mean anything; or the chains that it is large
            enough for.
        seconds: measured time of the whole scale, where it was.
        note: a sentence about this scale.
    """

    rows: tuple[str, ...] | None = None
    seeds: tuple[int, ...] | None = None
    lrs: tuple[float, ...] | None = None
    sets: Mapping[str, Table] = field(default_factory=dict)
    task: Table = field(default_factory=dict)
    system: Table = field(default_factory=dict)
    training: Table = field(default_factory=dict)
    ordering: bool | tuple[tuple[str, ...], ...] = True
    seconds: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Recipe:
    """A table or a figure of a document.

    Attributes:
        document, name: ``evenflow reproduce DOCUMENT/NAME``; also: other names of the same runs, such as the figure
            that shows a table's curves.
        title, measures: what it is, and what is measured, in a sentence each.
        columns: what is measured; the first one decides the ordering.
        ordering: chains of labels, better first, that the document claims; resolution: differences of the first column
            below it tell nothing.
        lrs: learning rates tried in turn; search: until the task is solved, or all of them and the best one kept.
        figures: what the page draws, see `figures`.
        notes: one sentence for each choice that the document leaves open and for each slip that is corrected.
        sets: named tables that rows take by `use`.
    """

    document: str
    name: str
    title: str
    measures: str
    kind: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    quick: Scale
    full: Scale = field(default_factory=Scale)
    also: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (1,)
    lrs: tuple[float, ...] = ()
    search: str = "until-solved"
    ordering: tuple[tuple[str, ...], ...] = ()
    resolution: float = 0.0
    figures: tuple[str, ...] = ("metric",)
    notes: tuple[str, ...] = ()
    sets: Mapping[str, Table] = field(default_factory=dict)
    task: Table = field(default_factory=dict)
    system: Table = field(default_factory=dict)
    training: Table = field(default_factory=dict)

    @property
    def address(self) -> str:
        return f"{self.document}/{self.name}"

    def scale(self, name: str) -> Scale:
        one_of("scale", name, SCALES)
        return self.quick if name == "quick" else self.full

    def row(self, label: str) -> Row:
        for row in self.rows:
            if row.label == label:
                return row
        raise ValueError(unknown(f"row of {self.address}", label, (row.label for row in self.rows)))

    def claims(self, scale: str) -> tuple[tuple[str, ...], ...]:
        """The chains that a scale is judged by."""
        own = self.scale(scale).ordering
        return self.ordering if isinstance(own, bool) else own

    def chosen(self, scale: str) -> list[Row]:
        """The rows that run at a scale, in the recipe's order."""
        labels = self.scale(scale).rows
        return [row for row in self.rows if labels is None or row.label in labels]


def read(path: Path) -> Recipe:
    """The recipe in a TOML file; a ValueError names the file and what will not do."""
    try:
        return parse(tomllib.loads(path.read_text("utf-8")))
    except (ValueError, OSError) as error:
        raise ValueError(f"recipe {path.name}: {error}") from error


def parse(table: Mapping[str, Any]) -> Recipe:
    """A recipe from the tables of its file."""
    values = dict(table)
    values["columns"] = [_make(Column, column, "a column") for column in values.get("columns", [])]
    values["rows"] = [_make(Row, row, f"row {row.get('label', '?')!r}") for row in values.get("rows", [])]
    for scale in SCALES:
        if scale in values:
            values[scale] = _make(Scale, values[scale], f"scale {scale}")
    recipe = _make(Recipe, values, "a recipe")
    _check(recipe)
    return recipe


def _make(kind: type, values: Mapping[str, Any], what: str) -> Any:
    """The dataclass from a table: unknown and missing keys are refused, arrays become tuples."""
    if not isinstance(values, Mapping):
        raise ValueError(f"{what} must be a table, got {values!r}")
    fields = {f.name: f for f in dataclasses.fields(kind)}
    for key in values:
        if key not in fields:
            raise ValueError(unknown(f"key of {what}", key, fields))
    for name, f in fields.items():
        required = f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        if required and name not in values:
            raise ValueError(f"{what} must have a {name}")
    return kind(**{key: _frozen(value) for key, value in values.items()})


def _frozen(value: Any) -> Any:
    return tuple(_frozen(part) for part in value) if isinstance(value, list) else value


def _check(recipe: Recipe) -> None:
    from .figures import FIGURES
    from .measures import MEASURES

    one_of("kind", recipe.kind, KINDS)
    one_of("search", recipe.search, SEARCHES)
    if not recipe.columns or not recipe.rows:
        raise ValueError("a recipe must have at least one column and one row")
    for column in recipe.columns:
        if column.measure not in MEASURES:
            raise ValueError(unknown("measure", column.measure, MEASURES))
        one_of("better", column.better, BETTER)
    for name in recipe.figures:
        if name not in FIGURES:
            raise ValueError(unknown("figure", name, FIGURES))
    labels = [row.label for row in recipe.rows]
    if len({folder_name(label) for label in labels}) < len(labels):
        raise ValueError("rows must have different labels")
    columns = {column.name for column in recipe.columns}
    for row in recipe.rows:
        for name in (*row.published, *row.spread):
            if name not in columns:
                raise ValueError(unknown(f"column of row {row.label!r}", name, columns))
        for name in row.use:
            if name not in recipe.sets:
                raise ValueError(unknown(f"set of row {row.label!r}", name, recipe.sets))
    for name, table in [*recipe.sets.items(), *recipe.quick.sets.items(), *recipe.full.sets.items()]:
        if name not in recipe.sets:
            raise ValueError(unknown("set of a scale", name, recipe.sets))
        for key in table:
            if key not in TABLES:
                raise ValueError(unknown(f"table of set {name!r}", key, TABLES))
    for scale in SCALES:
        for label in (label for chain in recipe.claims(scale) for label in chain):
            recipe.row(label)
        for label in recipe.scale(scale).rows or ():
            recipe.row(label)
