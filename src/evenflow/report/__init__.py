"""One self-contained HTML page for one run or several side by side, from run folders alone."""

from __future__ import annotations

from evenflow.report.page import write_report

__all__ = ["write_report"]
