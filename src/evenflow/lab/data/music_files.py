"""Read polyphonic music as piano rolls: which of 88 notes sound at each step."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from evenflow.checks import unknown

from .guarded import FilePath, cannot_read
from .matlab import read_cells

SETS = ("JSB_Chorales", "MuseData", "Nottingham", "Piano_midi")
NOTES = 88
PARTS = ("train", "valid", "test")


def read_music(folder: FilePath, name: str) -> dict[str, list[np.ndarray]]:
    """Read one polyphonic music set. The numbers of pieces:

    | set | train | valid | test |
    |---|---|---|---|
    | JSB_Chorales | 229 | 76 | 77 |
    | MuseData | 524 | 135 | 124 |
    | Nottingham | 694 | 173 | 170 |
    | Piano_midi | 87 | 12 | 25 |

    Args:
        folder: the data folder; the set is its ``music/NAME.mat``.
        name: name of the set, in any case, with hyphens or underscores; "jsb" means JSB_Chorales.

    Returns:
        "train", "valid" and "test", each a list of pieces ``(T, 88)`` uint8 of zeros and ones, lowest note (A0) first.

    Raises:
        ValueError: the name is unknown, or the file is missing, damaged, or holds something other than piano rolls.

    Reference: Boulanger-Lewandowski et al. 2012.
    """
    names = {"jsb": "JSB_Chorales"} | {_plain(choice): choice for choice in SETS}
    if _plain(name) not in names:
        raise ValueError(unknown("music set", name, SETS))
    path = Path(folder) / "music" / f"{names[_plain(name)]}.mat"
    cells = read_cells(path)
    if missing := [part for part in PARTS if not cells.get(f"{part}data")]:
        raise cannot_read(path, f"it has no cell '{missing[0]}data' of piano rolls")
    return {part: [_roll(path, part, i, roll) for i, roll in enumerate(cells[f"{part}data"])] for part in PARTS}


def _roll(path: Path, part: str, place: int, roll: np.ndarray) -> np.ndarray:
    piece = f"piece {place} of '{part}data'"
    if roll.ndim != 2 or roll.shape[1] != NOTES or not len(roll):
        raise cannot_read(path, f"{piece} has shape {roll.shape}, expected (T, {NOTES})")
    if not ((roll == 0) | (roll == 1)).all():
        raise cannot_read(path, f"{piece} holds something else than 0 and 1")
    return roll.astype(np.uint8, order="C")


def _plain(name: str) -> str:
    return str(name).lower().replace("-", "_")
