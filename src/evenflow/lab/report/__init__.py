"""Reports: one HTML page that loads nothing, for one run or several side by side, and single figures."""

from __future__ import annotations

from evenflow.lab.report.components import ComponentNorms, component_norms, component_panel, write_components
from evenflow.lab.report.page import write_report

__all__ = ["ComponentNorms", "component_norms", "component_panel", "write_components", "write_report"]
