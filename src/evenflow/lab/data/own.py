"""A user's own sequences: where they are read from, and what they become."""

from __future__ import annotations

from .own_csv import read_csv
from .own_npz import read_npz
from .own_sequences import KINDS, READOUTS, Own, padded

__all__ = ["KINDS", "READOUTS", "Own", "padded", "read_csv", "read_npz"]
