"""The figures of a recipe, redrawn from its runs, with the published numbers marked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from .attempts import make_task
from .curves import CURVES, Curve
from .schema import Column, Recipe, Row
from .verdict import as_number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from evenflow.lab.report.svg import Panel

    from .evidence import Evidence
    from .run import Reproduction

LARGEST = 1e30
POINTS = 400  # per line
NEAR = 1000.0  # how far outside the curves a level may lie and still be drawn
FLAT = 1e-3  # of the value: less than this is no slope but rounding
WIDE = 20.0  # largest over smallest value from which a log axis reads better


def groups(done: Reproduction) -> dict[str, list[Row]]:
    """The rows that ran, by group, in order."""
    found: dict[str, list[Row]] = {}
    for label in done.labels:
        row = done.recipe.row(label)
        found.setdefault(row.group, []).append(row)
    return found


def place(done: Reproduction, row: Row) -> int:
    """Which colour and marker a row has: that of its line, or of its place in its group."""
    if row.line:
        return list(dict.fromkeys(r.line for r in done.recipe.rows)).index(row.line)
    return [r.label for r in done.recipe.rows if r.group == row.group].index(row.label)


def caption(recipe: Recipe) -> str:
    """What dashed lines and stars mean, as far as the recipe's figures have them; empty where they have neither."""
    curves = [CURVES[kind] for kind in recipe.figures if kind in CURVES]
    found = [f"Dashed: {dashed}." for dashed in dict.fromkeys(curve.dashed for curve in curves) if dashed]
    first = recipe.columns[0]
    published = any(first.name in row.published for row in recipe.rows)
    if published and ("dots" in recipe.figures or (any(curve.marks for curve in curves) and _marked(first))):
        found.append("Stars: published numbers.")
    return " ".join(found)


def _drawn(done: Reproduction, row: Row, curve: Curve) -> list[Evidence]:
    found = [o.evidence for o in done.of(row.label) if o.evidence is not None]
    return [e for e in found if e.trained or not curve.trained]


def _levels(done: Reproduction, kind: str, rows: list[Row]) -> list[tuple[float, int | None]]:
    """Numbers to draw across, with the row's colour where each row has its own."""
    curve = CURVES[kind]
    if curve.own:
        firsts = [(row, e) for row in rows for e in _drawn(done, row, curve)[:1]]
        return [(level, place(done, row)) for row, e in firsts for level in e.levels(kind)]
    found = {level for row in rows for e in _drawn(done, row, curve) for level in e.levels(kind)}
    return [(level, None) for level in sorted(found)]


def _panels(done: Reproduction, kind: str) -> Iterator[Panel]:
    """One panel for each group: the mean of the seeds, and their range."""
    from evenflow.lab.report.svg import MUTED, Panel, count_axis, drawing, inline, log_axis, series_marker
    from evenflow.lab.report.thinning import means

    curve = CURVES[kind]
    for index, (group, rows) in enumerate(groups(done).items()):
        learned = [make_task(outcome.job) for row in rows for outcome in done.of(row.label)[:1]]
        title = curve.title.replace("metric", " / ".join(sorted({task.metric_name for task in learned})))
        panel = Panel(f"{kind}-{index}", f"{title}{f': {group}' if group else ''}")
        lines: list[tuple[Row, np.ndarray, np.ndarray]] = []
        for row in rows:
            evidence = _drawn(done, row, curve)
            found = [(x, y) for x, y in (e.line(kind) for e in evidence) if len(y)]
            if not found:
                diverged = any(e.diverged for e in evidence)
                panel.notes.append(f"{row.label}: {'it diverged' if diverged else 'nothing to draw'}.")
                continue
            # Seeds that stopped early end their curve; the mean is over the seeds that are left.
            x = max((x for x, _ in found), key=len)
            y = np.full((len(found), len(x)), np.nan)
            for i, (_, values) in enumerate(found):
                y[i, : len(values)] = np.where(np.abs(values) < LARGEST, values, np.nan)
            if np.isfinite(y).any():
                lines.append((row, x, y))
        # What counts in a share of right answers is at its top, which a log axis would press together.
        share = kind == "metric" and any(task.higher_is_better for task in learned)
        if lines:
            values = np.concatenate([y[np.isfinite(y)] for _, _, y in lines])
            low, high = float(values.min()), float(values.max())
            with drawing() as figure:
                axes = figure.add_subplot()
                for row, x, y in lines:
                    at = place(done, row)
                    with np.errstate(all="ignore"):
                        mean = np.nanmean(y, 0)
                    kept = np.isfinite(mean)
                    shown = means(x[kept], mean[kept], POINTS)
                    every = max(1, len(shown[0]) // 8)
                    axes.plot(*shown, color=_colour(at), marker=series_marker(at), markevery=every, markersize=5)
                    if len(y) > 1:
                        axes.fill_between(
                            x[kept], np.nanmin(y, 0)[kept], np.nanmax(y, 0)[kept], color=_colour(at), alpha=0.15, lw=0
                        )
                    if curve.marks:
                        _mark(done, row, axes, float(x[-1]))
                drawn = [(level, of) for level, of in _levels(done, kind, rows) if low / NEAR < level < high * NEAR]
                for level, of in drawn:
                    axes.axhline(
                        level, color=MUTED if of is None else _colour(of), linestyle=(0, (5, 4)), linewidth=1.3
                    )
                shown_values = np.concatenate([values, [level for level, _ in drawn]])
                if curve.log or (curve.log is None and low > 0 and high / low > WIDE and not share):
                    positive = shown_values[shown_values > 0]
                    if len(positive):
                        least, most = float(positive.min()), float(positive.max())
                        log_axis(axes, max(least, most * 1e-12) / 1.5, most * 1.5, powers=most / least > 1000)
                elif shown_values.max() - shown_values.min() < FLAT * abs(high):
                    axes.set_ylim(high - 0.1 * abs(high), high + 0.1 * abs(high))
                count_axis(axes, curve.along)
                ends = "; ".join(f"{row.label} ends at {_end(y):.4g}" for row, _, y in lines)
                panel.alt = f"Line plot of {panel.title} against {curve.along}. {ends}."
                panel.svg = inline(figure, panel.key, panel.alt)
        yield panel


def _end(y: np.ndarray) -> float:
    """The mean over seeds at the last place where one of them has a value."""
    last = y[:, np.flatnonzero(np.isfinite(y).any(0))[-1]]
    return float(last[np.isfinite(last)].mean())


def _marked(column: Column) -> bool:
    """Whether a column is what the curve of the metric shows."""
    return column.measure in ("best_metric", "test_metric", "final_metric")


def _mark(done: Reproduction, row: Row, axes: Axes, at: float) -> None:
    """The published number of the first column as a star at the end of the curve, in the curve's unit."""
    column = done.recipe.columns[0]
    published = row.published.get(column.name)
    value = None if published is None else as_number(column, published)
    if value is not None and _marked(column):
        axes.plot([at], [value / column.factor], marker="*", markersize=13, color=_colour(place(done, row)), zorder=3)


def _colour(index: int) -> str:
    from evenflow.lab.report.svg import series_colour

    return series_colour(index)


def _figures() -> dict[str, Callable[[Reproduction], list[Panel]]]:
    from . import drawings

    def of(kind: str) -> Callable[[Reproduction], list[Panel]]:
        return lambda done: list(_panels(done, kind))

    return {
        **{kind: of(kind) for kind in CURVES},
        "heat": drawings.heat,
        "spectrum": drawings.spectrum,
        "lines": drawings.lines,
        "dots": drawings.dots,
    }


FIGURES: dict[str, Callable[[Reproduction], list[Any]]] = _figures()
