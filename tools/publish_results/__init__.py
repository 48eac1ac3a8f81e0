"""Publishes results: stores records of full-scale runs and sweeps in docs/results, and writes pages from them."""

from __future__ import annotations

from .publish import differing, merge, pages, write
from .stored_record import StoredLine, StoredRecord, StoredRun
from .stored_sweep import StoredPoint, StoredSweep

__all__ = [
    "StoredLine",
    "StoredPoint",
    "StoredRecord",
    "StoredRun",
    "StoredSweep",
    "differing",
    "merge",
    "pages",
    "write",
]
