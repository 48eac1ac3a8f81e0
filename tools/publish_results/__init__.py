"""Published results: records of full-scale runs and of sweeps as committed files, and the pages that follow."""

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
