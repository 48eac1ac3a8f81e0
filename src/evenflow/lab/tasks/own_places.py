"""Where in a user's file a sequence of a task is from."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class FilePlace(NamedTuple):
    """The place of a sequence, or of a window of it, in its file.

    Attributes:
        name: of the sequence, such as "walk-1" or "row 17 of 'x'"; empty for one long series.
        start: the number of its first step, counted from 0.
    """

    name: str
    start: int = 0


def place_names(places: Sequence[FilePlace], inputs: Sequence[np.ndarray], cut: bool, file: str) -> list[str]:
    """The places as text, such as "walk-1 in motion.csv" or "steps 101 to 200 of motion.csv".

    Args:
        places: of the sequences.
        inputs: the sequences, with all of their steps.
        cut: whether they are windows.
        file: the path of the file; empty for arrays in memory.
    """
    where, names = os.path.basename(file), []
    for place, x in zip(places, inputs, strict=True):
        steps = f"steps {place.start + 1:,} to {place.start + len(x):,}" if cut or not place.name else ""
        text = ", ".join(filter(None, (place.name, steps)))
        names.append(f"{text} {'in' if place.name else 'of'} {where}" if where else text)
    return names
