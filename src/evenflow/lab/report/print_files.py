"""Files for a paper, beside a page: its table as LaTeX, CSV or Markdown, its plots as PDF, PNG or SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.colors import to_hex, to_rgba_array
from matplotlib.lines import Line2D

from evenflow import figures
from evenflow.checks import one_of
from evenflow.figures import PrintFigure
from evenflow.lab.report import curves
from evenflow.lab.report.plotting import Panel
from evenflow.lab.report.profiles import component_profile, profiles
from evenflow.lab.report.result_table import TABLES, ResultTable, result_table
from evenflow.lab.report.run_record import RunRecord
from evenflow.lab.report.svg import PLACEHOLDERS, SERIES, series_colour
from evenflow.lab.training import atomic

COLOURED = ("color", "facecolor", "edgecolor", "markerfacecolor", "markeredgecolor")
LEGEND_ROW = 18  # points


def check_formats(table: str | None, figure: str | None) -> None:
    """Raise a ValueError for an unknown format, before anything is trained."""
    if table is not None:
        one_of("table", table, TABLES)
    if figure is not None:
        one_of("figures", figure, figures.FORMATS)


def write_table(page: Path, table: ResultTable, kind: str) -> Path:
    """Write the table beside a page: report.tex, report.csv or report.md beside report.html."""
    check_formats(kind, None)
    return atomic.write_output(page.with_suffix(f".{TABLES[kind]}"), table.to_text(kind))


def write_beside(
    page: Path,
    runs: Sequence[RunRecord],
    table: str | None = "latex",
    figures: str | None = "pdf",
    *,
    rates: bool = False,
) -> list[Path]:
    """Write the table and the plots of a page as files beside it, and return their paths.

    Args:
        page: path of the page, which need not exist.
        runs: as `read_groups` returns them.
        table: latex, csv, markdown or None.
        figures: pdf, png, svg or None.
        rates: show the learning rates in the table even if they are the same.

        >>> write_beside(Path("runs/study/report.html"), read_groups(folders))
        [PosixPath('runs/study/report.tex'), PosixPath('runs/study/report-train-loss.pdf'), ...]
    """
    paths = [] if table is None else [write_table(page, result_table(runs, rates), table)]
    if figures is not None:
        panels = [*curves.learning_panels(runs), *profiles(runs), *component_profile(runs)]
        paths += write_figures(page, panels, figures, {i: run.label for i, run in enumerate(runs)})
    return paths


def write_figures(page: Path, panels: Sequence[Panel], kind: str, labels: Mapping[int, str]) -> list[Path]:
    """Write the plots of a page that print, each as a file beside it: report-valid-loss.pdf.

    Args:
        page: path of the page.
        panels: plots; those without a kept drawing are left out.
        kind: pdf, png or svg.
        labels: names for the legend, by the number of the line.
    """
    check_formats(None, kind)
    paths = []
    for panel in panels:
        if panel.figure is not None:
            _finish(panel.figure, panel.quantity or panel.title, labels)
            path = page.with_name(f"{page.stem}-{panel.key}.{kind}")
            paths.append(atomic.write_output(path, panel.figure.to_bytes(kind)))
            panel.figure = None
    return paths


def _finish(figure: PrintFigure, quantity: str, labels: Mapping[int, str]) -> None:
    """Give a drawing of a page what the page around it had: colours, the name of the y axis, a legend."""
    axes = figure.axes[0]
    drawn = {str(line.get_color()) for line in axes.lines if line.get_linestyle() != "None"}
    if drawn and not axes.get_ylabel():
        axes.set_ylabel(quantity)
    handles = [
        Line2D([], [], color=series_colour(i), marker=figures.MARKERS[i % len(figures.MARKERS)], label=label)
        for i, label in labels.items()
        if series_colour(i) in drawn
    ]
    if any(line.get_linestyle() == "--" for line in axes.lines):
        dashed = next(line for line in axes.lines if line.get_linestyle() == "--")
        handles.append(Line2D([], [], color=dashed.get_color(), linestyle=figures.DASHED, label="without memory"))
    if handles and not figure.legends:
        figure.legend(
            handles=handles,
            loc="outside lower center",
            ncols=min(3, len(handles)),
            fontsize=10,
            frameon=False,
            labelcolor=figures.INK,
        )
        width, height = figure.get_size_inches()
        figure.set_size_inches(width, height + LEGEND_ROW / 72 * -(-len(handles) // 3))
    figure.patch.set_facecolor("white")
    palette = dict(zip(PLACEHOLDERS, (figures.INK, figures.MUTED, figures.GRID), strict=True))
    palette |= {series_colour(i): figures.COLOURS[i] for i in range(SERIES)}
    for artist in figure.findobj():
        _recolour(artist, palette)


def _recolour(artist: Any, palette: Mapping[str, str]) -> None:
    """Replace the colours that stand for those of a page by colours to print."""
    for name in COLOURED:
        get, change = getattr(artist, f"get_{name}", None), getattr(artist, f"set_{name}", None)
        if get is None or change is None or (value := get()) is None or (isinstance(value, str) and value == "none"):
            continue
        try:
            colours = to_rgba_array(value)
        except ValueError:  # of an image or a map of colours
            continue
        if len(colours) and any(to_hex(colour) in palette for colour in colours):
            new = [(*to_rgba_array(palette.get(to_hex(c), to_hex(c)))[0][:3], c[3]) for c in colours]
            change(new[0] if len(new) == 1 else new)
