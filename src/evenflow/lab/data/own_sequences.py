"""A user's own sequences and targets, as `read_table` and `read_npz` return them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from evenflow.checks import one_of
from evenflow.models.data_column import DataColumn

from .guarded import FilePath, cannot_read

KINDS = ("classification", "regression", "next")
READOUTS = ("last", "every")
LIMIT = 1 << 33  # bytes; a user's own file may be large
MOST_CLASSES = 100_000
WHOLE = re.compile(r"[+-]?[0-9]{1,15}")

Labels = tuple[int, ...] | tuple[str, ...]


class Clock(NamedTuple):
    """What the column of times of a table says.

    Attributes:
        name: of the column.
        unit: "number" or "timestamp"; times of timestamps are in seconds.
        step: the median time between two steps; None if it is 0.
        gaps: how many times between two steps are more than twice the median.
        longest, longest_at: the longest time between two steps, and the line after it.
    """

    name: str
    unit: str
    step: float | None
    gaps: int
    longest: float
    longest_at: str

    def note(self) -> str:
        """A sentence on the gaps; empty if there are none."""
        if not self.gaps:
            return ""
        unit = " s" if self.unit == "timestamp" else ""
        return (
            f"{self.gaps:,} gap{'s' * (self.gaps > 1)} in {self.name!r}: steps are {self.step:g}{unit} apart, the "
            f"longest time between two is {self.longest:g}{unit}, before {self.longest_at}"
        )


@dataclass(frozen=True, eq=False)
class OwnSequences:
    """N sequences of I inputs, with targets.

    Shapes:
        inputs: N arrays ``(T_n, I)`` float32.
        targets: for readout "last", ``(N,)`` int64 (classification) or ``(N, O)`` float32 (regression); for readout
            "every", N arrays ``(T_n,)`` int64 or ``(T_n, O)`` float32; None for kind "next".

    Attributes:
        kind: "classification", "regression", or "next" (predict the inputs of the next step).
        readout: "last", one target per sequence; "every", one target per step.
        columns: the inputs, not scaled yet. In `inputs` categories are positions in ``column.categories``, and missing
            values that will be filled are nan.
        labels: the classes as the file spells them, sorted; targets are positions in it. Empty for other kinds.
        outputs: numbers that a model has to output: classes, targets, or inputs for kind "next".
        validation, test: sequences for validation and for testing, if the file has them.
        groups: what each sequence belongs to, such as a person; empty if the file does not say.
        ids: the name of each sequence in the file; empty for one long series.
        clock: what the times of the file are; None if it has none.
    """

    inputs: list[np.ndarray]
    targets: np.ndarray | list[np.ndarray] | None
    kind: str
    readout: str
    columns: tuple[DataColumn, ...]
    labels: Labels = ()
    outputs: int = 0
    test: OwnSequences | None = field(default=None, repr=False)
    validation: OwnSequences | None = field(default=None, repr=False)
    groups: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    clock: Clock | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the inputs."""
        return tuple(column.name for column in self.columns)

    @property
    def lengths(self) -> np.ndarray:
        """The length of each sequence ``(N,)`` int64."""
        return np.array([len(sequence) for sequence in self.inputs], np.int64)


def padded(sequences: Sequence[np.ndarray], steps: int | None = None) -> np.ndarray:
    """Pad sequences ``(T_n, ...)`` with zeros to one array ``(T, N, ...)``, time first.

    Args:
        sequences: one or more arrays whose shapes agree but for the first dimension.
        steps: T. Default: the length of the longest sequence.

        >>> padded([np.ones((2, 1)), np.ones((1, 1))])[..., 0].tolist()
        [[1.0, 1.0], [1.0, 0.0]]
    """
    longest = max(len(sequence) for sequence in sequences)
    if steps is not None and steps < longest:
        raise ValueError(f"steps must be at least the longest sequence's {longest}, got {steps}")
    first = sequences[0]
    array = np.zeros((steps or longest, len(sequences), *first.shape[1:]), first.dtype)
    for n, sequence in enumerate(sequences):
        array[: len(sequence), n] = sequence
    return array


def check_choices(kind: str | None, readout: str | None) -> None:
    """Raise a ValueError unless each is None or one of the allowed words."""
    if kind is not None:
        one_of("kind", kind, KINDS)
    if readout is not None:
        one_of("readout", readout, READOUTS)
    if kind == "next" and readout == "last":
        raise ValueError("readout must be every for kind next, got 'last'")


def classes(path: FilePath, values: Iterable[object]) -> tuple[Labels, dict[object, int]]:
    """The sorted labels, and the position of each value: whole numbers if all values are, else text."""
    words = {value: str(value) for value in set(values)}
    whole = all(WHOLE.fullmatch(word) for word in words.values())
    spelled: dict[object, Any] = {value: int(word) if whole else word for value, word in words.items()}
    labels: Labels = tuple(sorted(set(spelled.values())))
    if len(labels) < 2:
        raise cannot_read(path, f"every target is {labels[0]!r}, and classification needs two classes")
    if len(labels) > MOST_CLASSES:
        raise cannot_read(path, f"its targets are {len(labels):,} classes; for numbers to predict choose regression")
    positions = {label: position for position, label in enumerate(labels)}
    return labels, {value: positions[label] for value, label in spelled.items()}
