"""Tasks on a user's own sequences by the format of the file: CSV or npz."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evenflow.lab.data import OwnSequences, read_csv, read_npz
from evenflow.lab.data.own_csv import split_names

from .own_data import OwnData
from .task import option


@dataclass(frozen=True)
class CsvData(OwnData):
    """`OwnData` from a CSV file with one row per step.

    Args:
        file, kind, read, length, stride, share, split, split_seed, data: as for `OwnData`.
        sequence: name of the column that says which sequence a row belongs to.
        target: name of the column to learn, or several names with commas for a regression on several numbers.
        group: name of a column whose values, such as persons, must not be in training and in validation.
        inputs: names of the columns to read, with commas. Default: all others.
        ignore: names of columns to leave out, with commas.

        >>> make("csv:motion.csv", target="activity").input_size
        3
    """

    sequence: str = option("sequence", "name of the column that tells the sequences apart")
    target: str = option("target", "name of the column to learn; several with commas between them")
    group: str | None = option(None, "name of a column; its values are never in training and in validation")
    inputs: str | None = option(None, "names of the input columns, with commas; by default all others")
    ignore: str | None = option(None, "names of columns to leave out, with commas")

    name = "csv"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("sequence", "target", "group", "inputs", "ignore"):
            value = getattr(self, name)
            if not isinstance(value, str) and (value is not None or name in ("sequence", "target")):
                raise ValueError(f"{name} must be the name of a column, as text, got {value!r}")

    def _sequence(self) -> str:
        return self.sequence

    def _names(self, targets: int) -> Sequence[str]:
        return split_names(self.target)

    def _read(self) -> OwnSequences:
        return read_csv(
            self.path, self.sequence, self.target, self.kind, self.read, self.group, self.inputs, self.ignore
        )


@dataclass(frozen=True)
class NpzData(OwnData):
    """`OwnData` from the arrays x, y and lengths of an npz file; x_valid, y_valid, x_test and y_test for other parts.

    Args:
        file, kind, read, length, stride, share, split, split_seed, data: as for `OwnData`.

    >>> make("npz:motion.npz").input_size
    3
    """

    name = "npz"

    def _names(self, targets: int) -> Sequence[str]:
        return ["y"] if targets == 1 else [f"y{column}" for column in range(targets)]

    def _read(self) -> OwnSequences:
        return read_npz(self.path, self.kind, self.read)
