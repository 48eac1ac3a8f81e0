"""Figures that are not curves over updates: heat maps, bands, lines against a number, dots beside the published."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from .verdict import as_number, in_words

if TYPE_CHECKING:
    from evenflow.lab.report.svg import Panel

    from .run import Reproduction


def heat(done: Reproduction) -> list[Panel]:
    """How strongly the last state depends on every state before it, over training, one map for each row: each probe
    divided by its largest value, as in the document."""
    from evenflow.lab.report import heatmap
    from evenflow.lab.report.reading import read_one
    from evenflow.lab.report.svg import Panel

    records = []
    panels: list[Panel] = []
    for label in done.labels:
        for outcome in done.of(label)[:1]:
            e = outcome.evidence
            found = None if e is None else e.probed("jacobian_norm")
            if e is None or e.run is None or found is None:
                panels.append(Panel(f"heat-gap-{len(panels)}", label, notes=[outcome.gap or "nothing was recorded"]))
                continue
            record = read_one(e.run.folder)
            norm = found[1][:, ::-1].astype(np.float64)
            largest = norm.max(1, keepdims=True)
            record.label, record.probe_step = label, found[0].astype(float)
            record.probe_norm, record.probe_gap = norm / np.where(largest > 0, largest, 1), ""
            records.append(record)
    return [*heatmap.heat_maps(records), *panels] if records else panels


def spectrum(done: Reproduction) -> list[Panel]:
    """Singular values over training, one panel for each row: mean, deviation, smallest and largest."""
    from evenflow.lab.report.svg import MUTED, Panel, count_axis, drawing, inline, series_colour

    panels = []
    for index, label in enumerate(done.labels):
        panel = Panel(f"spectrum-{index}", f"Singular values: {label}")
        evidence = next((o.evidence for o in done.of(label) if o.evidence is not None), None)
        found = None if evidence is None else evidence.probed("singular_values")
        if found is None:
            panel.notes.append("Nothing was recorded.")
        else:
            step, (mean, std, least, most) = found[0], found[1][:, 0].T
            with drawing(480, 270) as figure:
                axes = figure.add_subplot()
                axes.fill_between(step, mean - std, mean + std, color=series_colour(2), alpha=0.25, lw=0)
                for value, colour in ((mean, 2), (least, 1), (most, 0)):
                    axes.plot(step, value, color=series_colour(colour))
                axes.axhline(1, color=MUTED, linestyle=(0, (5, 4)), linewidth=1)
                count_axis(axes, "update")
                panel.alt = (
                    f"Singular values of {label} over updates: at the end mean {mean[-1]:.3g}, "
                    f"from {least[-1]:.3g} to {most[-1]:.3g}."
                )
                panel.svg = inline(figure, panel.key, panel.alt)
        panels.append(panel)
    return panels


def lines(done: Reproduction) -> list[Panel]:
    """The first column against the rows' x, one line for each `line`, one panel for each group."""
    from evenflow.lab.report.svg import Panel, count_axis, drawing, inline, series_colour, series_marker

    from .figures import groups, place

    column, panels = done.recipe.columns[0], []
    for index, (group, rows) in enumerate(groups(done).items()):
        panel = Panel(f"lines-{index}", f"{column.name}{f': {group}' if group else ''}")
        told = []
        with drawing() as figure:
            axes = figure.add_subplot()
            for line in dict.fromkeys(row.line for row in rows):
                own = [row for row in rows if row.line == line and row.x is not None]
                points = [(row.x, done.cells[row.label, column.name].mean) for row in own]
                kept = [(x, y) for x, y in points if x is not None and y is not None and math.isfinite(y)]
                at = place(done, own[0]) if own else 0
                if kept:
                    axes.plot(*zip(*kept, strict=True), color=series_colour(at), marker=series_marker(at))
                    told.append(f"{line}: " + ", ".join(f"{y:.4g} at {x:g}" for x, y in kept))
            count_axis(axes, "depth")
            panel.alt = f"Line plot of {panel.title} by depth. {'; '.join(told)}."
            if told:
                panel.svg = inline(figure, panel.key, panel.alt)
            else:
                panel.notes.append("There is nothing to draw.")
        panels.append(panel)
    return panels


def dots(done: Reproduction) -> list[Panel]:
    """The first column of every row, its spread as a bar, and the published number as a star."""
    from evenflow.lab.report.svg import INK, MUTED, Panel, drawing, inline, series_colour

    column = done.recipe.columns[0]
    panel = Panel("dots", column.name)
    shown = [label for label in done.labels if not in_words(column)]
    cells = [done.cells[label, column.name] for label in shown]
    drawn = [c for c in cells if c.mean is not None and math.isfinite(c.mean)]
    if not drawn:
        panel.notes.append("There is no number to draw.")
        return [panel]
    with drawing(480, 60 + 22 * len(cells)) as figure:
        axes = figure.add_subplot()
        for at, cell in enumerate(cells):
            published = cell.published
            target = None if published is None else as_number(column, published)
            if target is not None:
                spread = cell.row.spread.get(column.name, 0.0)
                axes.errorbar(target, at, xerr=spread, color=MUTED, marker="*", markersize=12, linestyle="none")
            if cell.mean is not None and math.isfinite(cell.mean):
                axes.errorbar(
                    cell.mean, at, xerr=cell.spread or 0.0, color=series_colour(0), marker="o", linestyle="none"
                )
        axes.set_yticks(range(len(cells)), labels=[c.row.label for c in cells], color=INK)
        axes.invert_yaxis()
        values = [c.mean for c in drawn if c.mean is not None]
        if min(values) > 0 and max(values) / min(values) > 100:
            axes.set_xscale("log")
        axes.set_xlabel(column.name)
        panel.alt = "; ".join(f"{c.row.label}: {c.measured_text()}, published {c.published_text()}" for c in cells)
        panel.svg = inline(figure, "dots", panel.alt)
    panel.notes.append("Dots: measured, with the standard deviation over seeds. Stars: published.")
    return [panel]
