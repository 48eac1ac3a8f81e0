"""Reports: one HTML page that loads nothing, for one run or several side by side, and single figures."""

from __future__ import annotations

from evenflow.lab.report.components import ComponentNorms, component_norms, component_panel, write_components
from evenflow.lab.report.page import write_report
from evenflow.lab.report.print_files import check_formats, write_beside, write_figures, write_table
from evenflow.lab.report.result_table import result_table
from evenflow.lab.report.run_record import read_groups
from evenflow.lab.report.search_page import write_search_page

__all__ = [
    "ComponentNorms",
    "check_formats",
    "component_norms",
    "component_panel",
    "read_groups",
    "result_table",
    "write_beside",
    "write_components",
    "write_figures",
    "write_report",
    "write_search_page",
    "write_table",
]
