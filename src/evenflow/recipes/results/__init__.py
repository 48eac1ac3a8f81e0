"""Published results: records of full-scale runs as committed files, and the pages that follow from them."""

from __future__ import annotations

from .committed import Entry, Line, Record
from .publish import differing, merge, pages, write

__all__ = ["Entry", "Line", "Record", "differing", "merge", "pages", "write"]
