"""The page of a search: its trials, which options matter, and the metric against each of them."""

from __future__ import annotations

import base64
import hashlib
import math
from pathlib import Path

from markupsafe import Markup

import evenflow
from evenflow.lab.report.numbers import number
from evenflow.lab.report.page import TEMPLATES, hover_data, template
from evenflow.lab.report.search_panels import search_panels
from evenflow.lab.sweep import SearchRecord
from evenflow.lab.sweep.study_record import STUDY_FILE, TrialRow
from evenflow.lab.training import atomic

ROWS = 50  # trials in the table
TONES = {"finished": "good", "diverged": "bad"}


def is_search(folder: Path) -> bool:
    """Whether a folder is that of a search."""
    return (folder / STUDY_FILE).is_file()


def write_search_page(folder: Path, out: Path | None = None, title: str | None = None) -> Path:
    """Write the page of a search and return its path, by default report.html in its folder."""
    page = render_search(SearchRecord.read(folder), title)
    return atomic.write_output(folder / "report.html" if out is None else out, page)


def render_search(record: SearchRecord, title: str | None = None) -> str:
    """The page as text."""
    panels, rows = search_panels(record), record.ranked()
    names = list(dict.fromkeys(name for row in record.trials for name in row.drawn))
    script = (TEMPLATES / "page.js").read_text(encoding="utf-8")
    task = record.request.get("task", {})
    return template("search.html").render(
        title=title or f"Search on {task.get('name', 'a task')}",
        lede=_lede(record, rows),
        panels=panels,
        names=names,
        rows=[_cells(row, names) for row in rows[:ROWS]],
        more=max(0, len(rows) - ROWS),
        tested=any(math.isfinite(row.test_metric) for row in rows),
        metric=record.metric_name,
        tones=TONES,
        ranges=record.request.get("ranges", {}),
        version=evenflow.__version__,
        plots=hover_data(panels),
        script=Markup(script),
        script_hash="sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def _cells(row: TrialRow, names: list[str]) -> dict[str, object]:
    return {
        "number": row.number,
        "drawn": [_text(row.drawn.get(name, "")) for name in names],
        "parameters": f"{row.parameters:,}",
        "updates": f"{row.updates:,}",
        "valid": _text(row.valid_metric),
        "test": _text(row.test_metric) if row.state == "finished" else "",
        "state": row.state,
        "reason": row.reason,
    }


def _lede(record: SearchRecord, rows: list[TrialRow]) -> str:
    counts = {state: sum(row.state == state for row in rows) for state in dict.fromkeys(row.state for row in rows)}
    said = ", ".join(f"{count} {state}" for state, count in counts.items())
    updates = f"{sum(row.updates for row in rows):,} updates"
    if not rows or math.isnan(rows[0].valid_metric):
        return f"{len(rows)} trials ({said}), {updates}."
    best = f"The best {record.metric_name} on the validation part is {number(rows[0].valid_metric)}"
    return f"{len(rows)} trials ({said}), {updates}. {best}, of trial {rows[0].number}."


def _text(value: object) -> str:
    if isinstance(value, float):
        return number(value) if math.isfinite(value) else ""
    return str(value)
