"""Writes the report of one or several runs: one HTML page that loads nothing."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

import evenflow
from evenflow.lab.report import bands, curves, heatmap, prediction_views, run_views, settings_table, singular
from evenflow.lab.report.plotting import Panel
from evenflow.lab.report.profiles import component_profile, profiles
from evenflow.lab.report.result_table import result_columns, table_notes
from evenflow.lab.report.run_record import RunRecord, read_groups
from evenflow.lab.training import atomic

TEMPLATES = Path(__file__).parent


def write_report(
    folders: Sequence[Path],
    out: Path | None = None,
    title: str | None = None,
    intro: str | None = None,
    *,
    notes: Sequence[str] | None = None,
    labels: Sequence[str] | None = None,
) -> Path:
    """Write the page of one run, or of several side by side, and return its path.

    Runs that differ in their seed alone are one entry: means, standard errors, and bands around curves.

    Styles, plots, their numbers and a small script are part of the page; it loads nothing.

    Args:
        folders: run folders, as training writes them.
        out: path of the page. Default for a single run: `report.html` in its folder. Written in one move.
        title: the heading. Default: systems and task.
        intro: text below the heading; an empty line starts a paragraph, a line that starts with "- " a list item.
        notes: one sentence per run for its card.
        labels: one name per run, the same for all seeds of an entry. Default: what differs between the runs.

        >>> write_report([Path("runs/rnn"), Path("runs/sgornn")], Path("compare.html"))
        PosixPath('compare.html')
    """
    if isinstance(folders, (str, os.PathLike)):
        raise ValueError(f"folders must be a sequence of run folders, got the single path {str(folders)!r}")
    if out is None and len(folders) > 1:
        raise ValueError(f"out must say where to write the page of {len(folders)} runs, got None")
    if out is not None and Path(out).is_dir():
        raise ValueError(f"out must be a file, got the folder {str(out)!r}")
    page = render(read_groups(folders, notes, labels), title, intro)
    return atomic.write_output(Path(folders[0]) / "report.html" if out is None else Path(out), page)


@functools.cache  # parsing the template takes longer than filling it
def template(name: str, *folders: Path) -> Template:
    """A page template; the parts of pages in this folder are available to it."""
    environment = Environment(
        loader=FileSystemLoader([*folders, TEMPLATES]), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    return environment.get_template(name)


def render(runs: Sequence[RunRecord], title: str | None = None, intro: str | None = None) -> str:
    """The page as text."""
    columns = result_columns(runs)
    cells = [column.cells(runs) for column in columns]
    views = [run_views.card(i, run, [str(column[i]) for column in cells]) for i, run in enumerate(runs)]
    learning = curves.learning_panels(runs)
    maps, layers, lines = heatmap.heat_maps(runs), heatmap.layer_maps(runs), profiles(runs)
    components = component_profile(runs)
    matrices = singular.singular_values(runs) if any(run.singular is not None for run in runs) else []
    jacobians = bands.band_panels(runs) if any(run.jacobian is not None for run in runs) else []
    predictions = prediction_views.prediction_views(runs)
    answered = [panel for view in predictions for panel in (*view["panels"], *view["fan"], *view["mistakes"])]
    panels = [
        *answered,
        *learning,
        *maps,
        *lines,
        *components,
        *(panel for _, panel in [*layers, *matrices, *jacobians]),
    ]
    script = (TEMPLATES / "page.js").read_text(encoding="utf-8")
    groups = settings_table.settings_groups(runs)
    tabs = {
        "learning": "Learning",
        "gradients": "Gradients",
        **({"matrices": "Singular values"} if matrices else {}),
        **({"bounds": "Bounds"} if jacobians else {}),
        **({"predictions": "Predictions"} if predictions else {}),
        "results": "Results",
        "settings": "Settings",
    }
    return template("page.html").render(
        title=title or run_views.title(runs),
        lede=run_views.lede(runs),
        intro=_blocks(intro or ""),
        runs=views,
        tabs=tabs,
        seeds=any(len(run.seeds) > 1 for run in runs),
        curves=learning,
        has_baseline=any(run.baseline is not None for run in runs),
        heat_maps=maps,
        layer_maps=layers,
        profiles=lines,
        components=components,
        singular=matrices,
        bands=jacobians,
        predictions=predictions,
        any_probes=any(run.probe_norm is not None for run in runs),
        reach_rows=[row for view, run in zip(views, runs, strict=True) for row in run_views.reach_rows(view, run)],
        result_columns=[column.name for column in columns],
        result_notes=table_notes(runs, cells),
        settings=groups,
        settings_caption=settings_table.caption(groups, len(runs)),
        version=evenflow.__version__,
        sources=", ".join(seed.name for run in runs for seed in run.seeds),
        plots=hover_data(panels),
        script=Markup(script),
        # The only script that may run: text from run folders is never executed.
        script_hash="sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def hover_data(panels: Sequence[Panel]) -> Markup:
    """The numbers for the page's script as JSON, escaped so that no name can end the script element."""
    table = {panel.key: panel.hover for panel in panels if panel.svg is not None and panel.hover is not None}
    return Markup(json.dumps(table, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"))


def _blocks(text: str) -> list[str | list[str]]:
    """Paragraphs as strings, lists as lists of strings."""
    blocks: list[str | list[str]] = []
    for part in text.replace("\r\n", "\n").split("\n\n"):
        lines: list[str] = []
        items: list[str] = []
        for line in part.strip().splitlines():
            if line.lstrip().startswith("- "):
                items.append(line.strip()[2:])
            elif items:
                items[-1] += " " + line.strip()
            else:
                lines.append(line.strip())
        blocks += [" ".join(lines)] if lines else []
        blocks += [items] if items else []
    return blocks
