"""`TableLayout`: which columns of a user's table are what."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from evenflow.checks import one_of, whole_number
from evenflow.models.data_column import FILLS

from .guarded import cannot_read
from .table_file import TableFile

SEQUENCE, TARGET, TIME = "sequence", "target", "time"


@dataclass(frozen=True)
class TableLayout:
    """What the columns of a table are, by their names.

    Args:
        sequence: says which sequence a row belongs to. Without this column the table is one long series.
        target: what to learn; several names with commas between them for a regression on several numbers.
        group: what a sequence belongs to, such as a person.
        inputs: the inputs, with commas. Default: all columns without another use.
        ignore: columns to leave out, with commas.
        time: when a row was measured, a number or a time such as 2024-01-31 12:00:00; rows are sorted by it.
        missing: how missing inputs are filled: "mean", or "previous", the value of the step before. The model then also
            reads which values were missing. Default: a missing value is an error.
        gap: also read the time since the step before.
        embed: the size of a trained vector that stands for a word, in columns of words. Default: a number for each
            word.
    """

    sequence: str = SEQUENCE
    target: str = TARGET
    group: str | None = None
    inputs: str | None = None
    ignore: str | None = None
    time: str = TIME
    missing: str | None = None
    gap: bool = False
    embed: int | None = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if (
                field.name not in ("gap", "missing", "embed")
                and not isinstance(value, str)
                and value is not field.default
            ):
                raise ValueError(f"{field.name} must be the name of a column, as text, got {value!r}")
        if self.missing is not None:
            one_of("missing", self.missing, FILLS)
        if self.embed is not None:
            whole_number("embed", self.embed, 1)
        if type(self.gap) is not bool:
            raise ValueError(f"gap must be true or false, got {self.gap!r}")

    @property
    def targets(self) -> list[str]:
        """The names of the targets."""
        return split_names(self.target)

    def learned(self, table: TableFile, kind: str | None) -> list[str]:
        """The targets that the table has and the kind of problem needs; none for predicting the next step."""
        present = [name for name in self.targets if name in table.header]
        if len(present) < len(self.targets) and (present or self.target != TARGET or kind not in (None, "next")):
            table.need(self.targets)
        return [] if kind == "next" else present

    def chosen(self, table: TableFile) -> list[str]:
        """The names of the inputs that are columns of the table; the table must have every column that is named."""
        asked, left_out = split_names(self.inputs), split_names(self.ignore)
        named = [name for name, default in ((self.sequence, SEQUENCE), (self.time, TIME)) if name != default]
        table.need([*named, *([] if self.group is None else [self.group]), *left_out, *asked])
        if self.gap:
            table.need([self.time])
        others = {self.sequence, self.group, self.time, *self.targets, *left_out}
        for name in asked:
            if name in others:
                raise ValueError(f"inputs must be columns without another use, got {name!r}")
        names = asked or [name for name in table.header if name not in others]
        if not names and not self.gap:
            raise cannot_read(table.path, f"it has no input column, only {', '.join(map(repr, table.header))}")
        return names

    def timed(self, table: TableFile) -> bool:
        """Whether the table says when its rows were measured."""
        return self.time in table.header and self.time not in split_names(self.ignore)


def split_names(names: str | None) -> list[str]:
    """The names in a text with commas between them."""
    return [name.strip() for name in names.split(",")] if names else []
