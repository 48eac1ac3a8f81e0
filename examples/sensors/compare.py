"""Compare a file of answers with predictions.csv: python compare.py from_c.csv"""

from __future__ import annotations

import csv
import sys

import numpy as np


def read_answers(path: str) -> tuple[np.ndarray, np.ndarray]:
    """The sequences with their classes ``(N, 2)`` and the probabilities ``(N, O)``."""
    with open(path, encoding="utf-8", newline="") as file:
        cells = np.array(list(csv.reader(file))[1:])
    return cells[:, :2], cells[:, 2:].astype(float)


def main(path: str) -> None:
    wanted, probabilities = read_answers("predictions.csv")
    found, others = read_answers(path)
    if found.shape != wanted.shape:
        sys.exit(f"{path} has {len(found)} rows, predictions.csv {len(wanted)}")
    same = (found == wanted).all(1).sum()
    furthest = abs(others - probabilities).max()
    print(f"{path}: the class of predictions.csv in {same} of {len(wanted)} windows,", end=" ")
    print(f"probabilities within {furthest:.0e}")
    sys.exit(int(same < len(wanted)))


if __name__ == "__main__":
    main(sys.argv[1])
