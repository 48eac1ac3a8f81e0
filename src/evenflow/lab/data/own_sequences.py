"""Sequences that a user brings along, with what is to be learned from them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from evenflow.checks import one_of

from .guarded import cannot_read

KINDS = ("classification", "regression", "next")
READOUTS = ("last", "every")
LIMIT = 1 << 33  # bytes; a user's own file may be large
MOST_CLASSES = 100_000
WHOLE = re.compile(r"[+-]?[0-9]{1,15}")

Labels = tuple[int, ...] | tuple[str, ...]


@dataclass(frozen=True, eq=False)
class OwnSequences:
    """N sequences of I inputs.

    Shapes:
        inputs: N arrays ``(T_n, I)`` float32.
        targets: for readout "last", ``(N,)`` int64 (classification) or ``(N, O)`` float32 (regression); for readout
            "every", N arrays ``(T_n,)`` int64 or ``(T_n, O)`` float32; None for kind "next".

    Attributes:
        kind: "classification", "regression", or "next", where the inputs of the next step are to be predicted.
        readout: "last", one target a sequence; "every", one a step.
        names: of the inputs.
        labels: the classes in the file's own words, sorted; targets are positions in it. Empty for other kinds.
        outputs: how many numbers a model has to give: classes, targets or, for the next step, inputs.
        test: sequences kept for testing, where the file has them.
    """

    inputs: list[np.ndarray]
    targets: np.ndarray | list[np.ndarray] | None
    kind: str
    readout: str
    names: tuple[str, ...]
    labels: Labels = ()
    outputs: int = 0
    test: OwnSequences | None = field(default=None, repr=False)

    @property
    def lengths(self) -> np.ndarray:
        """Steps of each sequence ``(N,)`` int64."""
        return np.array([len(sequence) for sequence in self.inputs], np.int64)


def padded(sequences: Sequence[np.ndarray], steps: int | None = None) -> np.ndarray:
    """Sequences ``(T_n, ...)`` → one array ``(T, N, ...)``, time first, zero past each one's end.

    Args:
        sequences: at least one, alike in all but length.
        steps: T; the longest sequence's length if not given.

        >>> padded([np.ones((2, 1)), np.ones((1, 1))])[..., 0].tolist()
        [[1.0, 1.0], [1.0, 0.0]]
    """
    longest = max(len(sequence) for sequence in sequences)
    if steps is not None and steps < longest:
        raise ValueError(f"steps must be at least the longest sequence's {longest}, got {steps}")
    first = sequences[0]
    array = np.zeros((steps or longest, len(sequences), *first.shape[1:]), first.dtype)
    for place, sequence in enumerate(sequences):
        array[: len(sequence), place] = sequence
    return array


def check_choices(kind: str | None, readout: str | None) -> None:
    """Raise a ValueError unless both are known words or left open."""
    if kind is not None:
        one_of("kind", kind, KINDS)
    if readout is not None:
        one_of("readout", readout, READOUTS)
    if kind == "next" and readout == "last":
        raise ValueError("readout must be every for kind next, got 'last'")


def classes(path: str | os.PathLike[str], values: Iterable[object]) -> tuple[Labels, dict[object, int]]:
    """Distinct values → labels, sorted as whole numbers if they all are and as text otherwise, and their positions."""
    text = {value: str(value) for value in set(values)}
    distinct = set(text.values())
    if all(WHOLE.fullmatch(word) for word in distinct):
        numbers = sorted({int(word) for word in distinct})
        labels: Labels = tuple(numbers)
        order = dict(zip(numbers, range(len(numbers)), strict=True))
        positions = {value: order[int(word)] for value, word in text.items()}
    else:
        words = sorted(distinct)
        labels = tuple(words)
        places = dict(zip(words, range(len(words)), strict=True))
        positions = {value: places[word] for value, word in text.items()}
    if len(labels) < 2:
        raise cannot_read(path, f"every target is {labels[0]!r}, and classification needs two classes")
    if len(labels) > MOST_CLASSES:
        raise cannot_read(path, f"its targets are {len(labels):,} classes; for numbers to predict choose regression")
    return labels, positions
