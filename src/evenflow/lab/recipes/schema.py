"""The data classes of a recipe: one table or figure of a document, with its rows, columns, settings and scales."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from evenflow.checks import one_of, unknown

TABLES = ("task", "system", "training")
SCALES = ("quick", "full")

Value = float | int | bool | str
Table = dict[str, Any]


@dataclass(frozen=True)
class Column:
    """One quantity that is measured for every row.

    Attributes:
        name: heading of the column.
        measure: a name in `measures.MEASURES`.
        better: "higher", "lower", or "same" where the measured value should equal the published one.
        tolerance: largest difference from the published value that can count as reproduced, in the column's unit,
            however large the noise.
        factor: the measured value is multiplied by this, for example 100 for a percentage.
        incomparable: why the published values of this column cannot be compared with ours; empty if they can.
        any_scale: whether the column is compared at quick scale too, because the scale does not change its values.
        published_seeds: number of runs that a published standard deviation is of.
    """

    name: str
    measure: str
    better: str = "lower"
    tolerance: float = 0.0
    factor: float = 1.0
    incomparable: str = ""
    any_scale: bool = False
    published_seeds: int = 1


@dataclass(frozen=True)
class RecipeRow:
    """One row of a table, or one curve of a figure.

    Attributes:
        label: name of the row, unique in the recipe.
        use: names of the recipe's `sets` that apply to the row; later sets override earlier ones.
        group: rows of one group share a plot.
        line, x: in a plot of lines, the line that the row is a point of, and the point's x.
        published: column name to the published value: a number, a word, or true or false.
        spread: column name to the published standard deviation.
        task, system, training: settings that override those of the recipe and of the sets.
        lrs: learning rates to try in place of the recipe's; empty for those.
        note: a sentence about the row.
        incomparable: why the published values of the row cannot be compared with ours; empty if they can.
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
    lrs: tuple[float, ...] = ()
    note: str = ""
    incomparable: str = ""


@dataclass(frozen=True)
class RecipeScale:
    """What a scale, quick or full, changes in a recipe.

    Attributes:
        rows: labels of the rows to run. Default: all.
        seeds, lrs: replace those of the recipe.
        sets: settings added to the recipe's sets of the same name.
        task, system, training: settings that override all others but those of `sets`.
        ordering: whether the scale is large enough to judge the recipe's ordering, or the chains that it can judge.
        seconds: measured time of the whole scale, if known.
        note: a sentence about the scale.
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
    """A table or figure of a document.

    Attributes:
        document, name: the recipe is run by ``evenflow reproduce DOCUMENT/NAME``.
        title: what the table or figure shows.
        measures: what is measured, in a sentence.
        columns: measured quantities; the ordering is judged by the first one.
        rows: the rows of the table.
        quick, full: the two scales.
        also: other names of the same runs, such as the figure that shows a table's curves.
        seeds: seeds that every row is trained with.
        lrs: learning rates to try in turn; empty if each row sets its own.
        search: try learning rates "until-converged", or all of them and keep the "best".
        ordering: chains of row labels, better first, as the document claims.
        resolution: smaller differences of the first column do not count in the ordering.
        figures: names of the figures of the page, see `recipe_figures.FIGURES`.
        notes: one sentence for each choice that the document leaves open and for each correction.
        sets: named groups of settings that rows take by `use`.
        task, system, training: settings of all rows.
    """

    document: str
    name: str
    title: str
    measures: str
    columns: tuple[Column, ...]
    rows: tuple[RecipeRow, ...]
    quick: RecipeScale
    full: RecipeScale = field(default_factory=RecipeScale)
    also: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (1,)
    lrs: tuple[float, ...] = ()
    search: str = "until-converged"
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

    def scale(self, name: str) -> RecipeScale:
        one_of("scale", name, SCALES)
        return self.quick if name == "quick" else self.full

    def row(self, label: str) -> RecipeRow:
        for row in self.rows:
            if row.label == label:
                return row
        raise ValueError(unknown(f"row of {self.address}", label, (row.label for row in self.rows)))

    def claims(self, scale: str) -> tuple[tuple[str, ...], ...]:
        """The chains of labels that are judged at a scale."""
        ordering = self.scale(scale).ordering
        return self.ordering if isinstance(ordering, bool) else ordering

    def rows_at(self, scale: str) -> list[RecipeRow]:
        """The rows that run at a scale, in the recipe's order."""
        labels = self.scale(scale).rows
        return [row for row in self.rows if labels is None or row.label in labels]

    def split_labels(self, text: str) -> list[str]:
        """Row labels from a text that separates them by semicolons or commas; a label may contain commas itself.

        >>> load("sgornn/table-1").split_labels("SGORNN, T=500, LSTM, T=500")
        ['SGORNN, T=500', 'LSTM, T=500']
        """
        if ";" in text:
            return [self.row(part.strip()).label for part in text.split(";") if part.strip()]
        parts, labels, result = [part.strip() for part in text.split(",")], [row.label for row in self.rows], []
        while parts:
            # The longest label that the text goes on with.
            length = next((n for n in range(len(parts), 0, -1) if ", ".join(parts[:n]) in labels), 1)
            result.append(self.row(", ".join(parts[:length])).label)
            del parts[:length]
        return result


def folder_name(label: str) -> str:
    """The folder name of a row: ``"sgornn, T = 500"`` becomes ``"sgornn-T-500"``."""
    allowed = "".join(c if c.isalnum() or c in "._" else "-" for c in label)
    return "-".join(part for part in allowed.split("-") if part) or "row"
