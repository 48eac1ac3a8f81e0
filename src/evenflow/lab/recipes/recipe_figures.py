"""Draws the figures of a recipe from its runs, with the published values marked."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
from matplotlib.axes import Axes

from evenflow.lab.report.downsample import means
from evenflow.lab.report.heatmap import colour_scale, heat_map
from evenflow.lab.report.plotting import WIDE_RANGE, Panel, Plot, log_axis, plot
from evenflow.lab.report.singular import singular_panel
from evenflow.lab.report.svg import INK, MUTED, series_colour

from .measures import measure_of
from .recipe_curves import CURVES, Curve, read_line, shown_by_metric
from .recipe_legend import row_groups, style_index
from .reproduction import Reproduction
from .run_data import FigureLine, RunData
from .schema import Recipe, RecipeRow

LARGEST = 1e30
POINTS = 400  # most points of a line
NEAR = 1000.0  # how far outside the curves a level may lie and still be drawn
FLAT = 1e-3  # a relative range below it is rounding error

RowLine = tuple[RecipeRow, np.ndarray, np.ndarray]  # x, and y of every seed


def _curves(kind: str, result: Reproduction) -> list[Panel]:
    """One plot for each group of rows: the mean of the seeds, and their range."""
    return [
        _curve_panel(kind, result, index, group, rows) for index, (group, rows) in enumerate(row_groups(result).items())
    ]


def _curve_panel(kind: str, result: Reproduction, index: int, group: str, rows: list[RecipeRow]) -> Panel:
    curve = CURVES[kind]
    tasks = [outcome.job.make_task() for row in rows for outcome in result.of(row.label)[:1]]
    title = curve.title.replace("metric", " / ".join(sorted({task.metric_name for task in tasks})))
    panel = Panel(f"{kind}-{index}", f"{title}{f': {group}' if group else ''}", prints=True)
    lines: list[RowLine] = []
    levels: list[tuple[float, int | None]] = []  # and the style of the row, if each row has levels of its own
    for row in rows:
        runs = [o.data for o in result.of(row.label) if o.data is not None and (o.data.trained or not curve.trained)]
        seeds = [read_line(run, kind) for run in runs]
        for seed in seeds[:1] if curve.per_row else seeds:
            levels += [(level, style_index(result.recipe, row) if curve.per_row else None) for level in seed.levels]
        line = _seed_lines(row, seeds)
        if line is None:
            diverged = any(run.diverged for run in runs)
            panel.notes.append(f"{row.label}: {'it diverged' if diverged else 'nothing to draw'}.")
        elif np.isfinite(line[2]).any():
            lines.append(line)
    if lines:
        ends = "; ".join(f"{row.label} ends at {_end(y):.4g}" for row, _, y in lines)
        panel.alt = f"Line plot of {panel.title} against {curve.across}. {ends}."
        with plot(panel, curve.across) as current:
            for row, x, y in lines:
                _draw_line(current, result.recipe, row, x, y)
                if curve.marks:
                    _mark_published(result, row, current.axes, float(x[-1]))
            # A log axis would squeeze the top of a share of right answers.
            share = kind == "metric" and any(task.higher_is_better for task in tasks)
            _draw_levels(current, curve, lines, levels, share)
    return panel


def _seed_lines(row: RecipeRow, seeds: list[FigureLine]) -> RowLine | None:
    """x and y of every seed, nan after the end of a seed that stopped early; None if there is no line."""
    drawn = [line for line in seeds if len(line.y)]
    if not drawn:
        return None
    x = max((line.x for line in drawn), key=len)
    y = np.full((len(drawn), len(x)), np.nan)
    for i, line in enumerate(drawn):
        y[i, : len(line.y)] = np.where(np.abs(line.y) < LARGEST, line.y, np.nan)
    return row, x, y


def _draw_line(current: Plot, recipe: Recipe, row: RecipeRow, x: np.ndarray, y: np.ndarray) -> None:
    with np.errstate(all="ignore"):
        mean = np.nanmean(y, 0)
    finite, at = np.isfinite(mean), style_index(recipe, row)
    current.line(at, *means(x[finite], mean[finite], POINTS))
    if len(y) > 1:
        current.band(x[finite], np.nanmin(y, 0)[finite], np.nanmax(y, 0)[finite], series_colour(at), 0.15)


def _draw_levels(
    current: Plot, curve: Curve, lines: list[RowLine], levels: list[tuple[float, int | None]], share: bool
) -> None:
    """Draw the levels near the lines, and set up the y axis."""
    values = np.concatenate([y[np.isfinite(y)] for _, _, y in lines])
    low, high = float(values.min()), float(values.max())
    levels = levels if curve.per_row else sorted(set(levels))
    drawn = [(level, at) for level, at in levels if low / NEAR < level < high * NEAR]
    for level, at in drawn:
        current.level(level, MUTED if at is None else series_colour(at))
    shown = np.concatenate([values, [level for level, _ in drawn]])
    if curve.log or (curve.log is None and low > 0 and high / low > WIDE_RANGE and not share):
        positive = shown[shown > 0]
        if len(positive):
            least, most = float(positive.min()), float(positive.max())
            log_axis(current.axes, max(least, most * 1e-12) / 1.5, most * 1.5, powers=most / least > 1000)
    elif shown.max() - shown.min() < FLAT * abs(high):
        current.axes.set_ylim(high - 0.1 * abs(high), high + 0.1 * abs(high))


def _end(y: np.ndarray) -> float:
    """The mean over seeds at the last x where one of them has a value."""
    last = y[:, np.flatnonzero(np.isfinite(y).any(0))[-1]]
    return float(last[np.isfinite(last)].mean())


def _mark_published(result: Reproduction, row: RecipeRow, axes: Axes, at: float) -> None:
    """A star at the end of the curve for the published value of the first column."""
    column = result.recipe.columns[0]
    target = result.cells[row.label, column.name].target
    if target is not None and shown_by_metric(column):
        colour = series_colour(style_index(result.recipe, row))
        axes.plot([at], [target / column.factor], marker="*", markersize=13, color=colour, zorder=3)


def _first_probe(result: Reproduction, label: str, name: str) -> tuple[np.ndarray, np.ndarray] | None:
    """Updates and values of a probe, of the first seed that was trained."""
    runs: list[RunData] = [outcome.data for outcome in result.of(label) if outcome.data is not None]
    return runs[0].probe(name) if runs else None


def _heat(result: Reproduction) -> list[Panel]:
    """How the last state depends on every state before it, over training, one map for each row; each probe is divided
    by its largest norm, as in the document."""
    maps = {label: _first_probe(result, label, "jacobian_norm") for label in result.labels}
    norms: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for label, probe in maps.items():
        if probe is not None:
            norm = probe[1][:, ::-1].astype(np.float64)
            largest = norm.max(1, keepdims=True)
            norms[label] = probe[0].astype(float), norm / np.where(largest > 0, largest, 1)
    scale = colour_scale([norm for _, norm in norms.values()])
    drawn = [heat_map(f"heat-{i}", label, *norms[label], scale, len(norms)) for i, label in enumerate(norms)]
    missing = [label for label in maps if label not in norms]
    return drawn + [
        Panel(f"heat-gap-{i}", label, notes=[result.of(label)[0].gap or "nothing was recorded"])
        for i, label in enumerate(missing)
    ]


def _spectrum(result: Reproduction) -> list[Panel]:
    """Singular values over training, one panel for each row: mean, standard deviation, smallest and largest."""
    panels = []
    for index, label in enumerate(result.labels):
        key, title = f"spectrum-{index}", f"Singular values: {label}"
        probe = _first_probe(result, label, "singular_values")
        if probe is None:
            panels.append(Panel(key, title, notes=["Nothing was recorded."]))
        else:
            panels.append(singular_panel(key, label, 0, probe[0], probe[1][:, 0], title=title))
    return panels


def _lines(result: Reproduction) -> list[Panel]:
    """The first column against the rows' x, one line for each `line`, one plot for each group."""
    column, panels = result.recipe.columns[0], []
    for index, (group, rows) in enumerate(row_groups(result).items()):
        panel = Panel(f"lines-{index}", f"{column.name}{f': {group}' if group else ''}", prints=True)
        lines: dict[str, list[tuple[float, float]]] = {}
        for row in rows:
            y = result.cells[row.label, column.name].mean
            if row.x is not None and y is not None and math.isfinite(y):
                lines.setdefault(row.line, []).append((row.x, y))
        texts = [f"{line}: " + ", ".join(f"{y:.4g} at {x:g}" for x, y in points) for line, points in lines.items()]
        panel.alt = f"Line plot of {panel.title} by depth. {'; '.join(texts)}."
        if lines:
            styles = {row.line: style_index(result.recipe, row) for row in rows}
            with plot(panel, "depth") as current:
                for line, points in lines.items():
                    x, y = np.array(points).T
                    current.line(styles[line], x, y, every=1, markersize=6)
        else:
            panel.notes.append("There is nothing to draw.")
        panels.append(panel)
    return panels


def _dots(result: Reproduction) -> list[Panel]:
    """The first column of every row, its standard deviation as a bar, and the published value as a star."""
    column = result.recipe.columns[0]
    panel = Panel("dots", column.name, prints=True)
    cells = [] if measure_of(column).words else [result.cells[label, column.name] for label in result.labels]
    averages = [cell.mean for cell in cells if cell.mean is not None and math.isfinite(cell.mean)]
    if not averages:
        panel.notes.append("There is no number to draw.")
        return [panel]
    panel.alt = "; ".join(f"{c.row.label}: {c.measured_text()}, published {c.published_text()}" for c in cells)
    with plot(panel, None, height=60 + 22 * len(cells)) as current:
        axes = current.axes
        for at, cell in enumerate(cells):
            if cell.target is not None:
                spread = cell.published_spread or 0.0
                axes.errorbar(cell.target, at, xerr=spread, color=MUTED, marker="*", markersize=12, linestyle="none")
            if cell.mean is not None and math.isfinite(cell.mean):
                spread = cell.spread or 0.0
                axes.errorbar(cell.mean, at, xerr=spread, color=series_colour(0), marker="o", linestyle="none")
        axes.set_yticks(range(len(cells)), labels=[cell.row.label for cell in cells], color=INK)
        axes.invert_yaxis()
        if min(averages) > 0 and max(averages) / min(averages) > 100:
            axes.set_xscale("log")
        axes.set_xlabel(column.name)
    panel.notes.append("Dots: measured, with the standard deviation over seeds. Stars: published.")
    return [panel]


FIGURES: dict[str, Callable[[Reproduction], list[Panel]]] = {
    **{kind: partial(_curves, kind) for kind in CURVES},
    "heat": _heat,
    "spectrum": _spectrum,
    "lines": _lines,
    "dots": _dots,
}


def recipe_panels(result: Reproduction) -> list[Panel]:
    """All figures of a recipe."""
    return [panel for name in result.recipe.figures for panel in FIGURES[name](result)]
