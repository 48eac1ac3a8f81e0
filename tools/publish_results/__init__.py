"""Published results: records of full-scale runs and of sweeps as committed files, and the pages that follow."""

from __future__ import annotations

from .committed import Entry, Line, Record
from .publish import differing, merge, pages, write
from .swept import Swept, SweptPoint

__all__ = ["Entry", "Line", "Record", "Swept", "SweptPoint", "differing", "merge", "pages", "write"]
