"""Tasks on a user's own sequences by the format of the file: CSV, Parquet or npz."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from evenflow.lab.data import OwnSequences, read_npz, read_table
from evenflow.lab.data.table_layout import TableLayout
from evenflow.models.data_column import FILLS

from .own_data import OwnData
from .task import option

COLUMNS = ("sequence", "target", "group", "inputs", "ignore", "time", "missing", "gap", "embed")


@dataclass(frozen=True)
class CsvData(OwnData):
    """`OwnData` from a CSV file with one row per step.

    Args:
        file, kind, read, length, stride, share, split, split_seed, validation, horizon, known, data: as for
            `OwnData`.
        sequence: name of the column that says which sequence a row belongs to.
        target: name of the column to learn, or several names with commas for a regression on several numbers.
        group: name of a column whose values, such as persons, must not be in training and in validation.
        inputs: names of the columns to read, with commas. Default: all others.
        ignore: names of columns to leave out, with commas.
        time: name of the column that says when a row was measured; the rows of a sequence are sorted by it.
        missing: "mean" or "previous": what replaces a missing input, which is an error otherwise. The model also reads
            a 1 where an input was missing.
        gap: also read the time since the row before.
        embed: the size of a trained vector that stands for a word, in columns of words. Default: each word has a number
            of its own, 1 where it stands (one-hot).

        >>> make("csv:motion.csv", target="activity").input_size
        3
    """

    sequence: str = option("sequence", "name of the column that tells the sequences apart")
    target: str = option("target", "name of the column to learn; several with commas between them")
    group: str | None = option(None, "name of a column; its values are never in training and in validation")
    inputs: str | None = option(None, "names of the input columns, with commas; by default all others")
    ignore: str | None = option(None, "names of columns to leave out, with commas")
    time: str = option("time", "name of the column of times; the rows of a sequence are sorted by it")
    missing: str | None = option(
        None, "mean or previous: what replaces missing inputs; an error otherwise", choices=FILLS
    )
    gap: bool = option(False, "also read the time since the row before")
    embed: int | None = option(
        None, "size of a trained vector that stands for a word; by default a number for each word", whole=1
    )

    name = "csv"

    def __post_init__(self) -> None:
        super().__post_init__()
        TableLayout(**self._layout())

    def _layout(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in COLUMNS}

    def _places(self) -> dict[str, str]:
        return {"sequence": self.sequence, "time": self.time}

    def _names(self, targets: int) -> Sequence[str]:
        return TableLayout(**self._layout()).targets

    def _read(self) -> OwnSequences:
        return read_table(self.path, kind=self.kind, readout=self.read, **self._layout())


@dataclass(frozen=True)
class ParquetData(CsvData):
    """`OwnData` from a Parquet file with one row per step; needs pyarrow.

    Args:
        file, kind, read, length, stride, share, split, split_seed, validation, horizon, known, data: as for
            `OwnData`.
        sequence, target, group, inputs, ignore, time, missing, gap, embed: as for `CsvData`.

    >>> make("parquet:motion.parquet").input_size
    3
    """

    name = "parquet"


@dataclass(frozen=True)
class NpzData(OwnData):
    """`OwnData` from the arrays x, y and lengths of an npz file; x_valid, y_valid, x_test and y_test for other parts.

    Args:
        file, kind, read, length, stride, share, split, split_seed, validation, horizon, known, data: as for
            `OwnData`.

    >>> np.savez("motion.npz", x=windows, y=activities)
    >>> make("npz:motion.npz").input_size
    2
    """

    name = "npz"

    def _names(self, targets: int) -> Sequence[str]:
        return ["y"] if targets == 1 else [f"y{column}" for column in range(targets)]

    def _read(self) -> OwnSequences:
        return read_npz(self.path, self.kind, self.read)
