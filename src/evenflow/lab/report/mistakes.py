"""The sequences of the mistakes that a model was most sure of, drawn."""

from __future__ import annotations

import numpy as np
from matplotlib import colormaps

from evenflow.lab.report.confusion import share
from evenflow.lab.report.plotting import DASHED, Panel, Plot, count_axis, plot
from evenflow.lab.report.run_answers import RunAnswers, ShownMistake
from evenflow.lab.report.svg import INK, drawing, inline, series_colour, series_variable
from evenflow.lab.tasks import DataSet, Task

LINES = 6  # columns that are drawn as lines; more are drawn as rows of colours
NAMED = 16  # columns whose names fit beside such rows
WIDTH, HEIGHT, STRIP = 330.0, 170.0, 78.0  # in SVG units; the height of one of several lines
LONG = 18  # letters of a name on an axis
COLOURS = "viridis"


def mistake_panels(key: str, answers: RunAnswers, task: Task | None) -> list[Panel]:
    """A panel for each sequence: a picture for tasks on pictures, lines for a few columns, rows of colours for many."""
    everything = np.concatenate([each.inputs for each in answers.mistakes]) if answers.mistakes else np.zeros((0, 0))
    return [_panel(f"{key}-{i}", each, answers, everything, task) for i, each in enumerate(answers.mistakes)]


def _panel(key: str, mistake: ShownMistake, answers: RunAnswers, everything: np.ndarray, task: Task | None) -> Panel:
    panel = Panel(key, f"{mistake.true}, taken for {mistake.predicted}")
    steps = f" at step {mistake.step + 1:,}" if mistake.step >= 0 else ""
    number = f"Sequence {mistake.sequence + 1:,}"
    panel.alt = (
        f"{mistake.name or f'{number} of the {answers.part} part'}, {mistake.length:,} steps. The answer{steps} is "
        f"{mistake.predicted}, the truth {mistake.true}."
    )
    panel.notes.append(
        f"{mistake.name or number}{steps}: probability {share(mistake.chance)} for {mistake.predicted}, "
        f"{share(mistake.true_chance)} for {mistake.true}."
    )
    width, total = mistake.inputs.shape[1], len(answers.inputs)
    if mistake.stride > 1:
        panel.notes.append(f"Every {mistake.stride}th of {mistake.length:,} steps is drawn.")
    if not np.isfinite(mistake.inputs).all():
        panel.notes.append("Inputs that are not finite are left out.")
    picture = task.picture(mistake.inputs) if isinstance(task, DataSet) and mistake.stride == 1 else None
    if picture is not None:
        _picture(panel, picture)
    elif width == 1:
        _line(panel, mistake, answers.inputs[0])
    elif total <= LINES:
        _strips(panel, mistake, answers.inputs)
    else:
        if width < total:
            panel.notes.append(f"The first {width} of {total} columns are drawn.")
        _rows(panel, mistake, answers.inputs[:width], everything)
    return panel


def _picture(panel: Panel, picture: np.ndarray) -> None:
    with plot(panel, None, width=WIDTH, height=HEIGHT) as current:
        current.axes.set_axis_off()
        current.axes.imshow(picture, cmap="gray", interpolation="none")


def _line(panel: Panel, mistake: ShownMistake, name: str) -> None:
    time = _time(mistake)
    with plot(panel, "time step", across="step", width=WIDTH, height=HEIGHT) as current:
        current.line(0, time, mistake.inputs[:, 0], markers=False, linewidth=1.6)
        known = np.isfinite(mistake.inputs[:, 0])
        current.read_out(name, series_variable(0), time[known], mistake.inputs[known, 0])
        current.axes.set_ylabel(_short(name))
        _mark(current, mistake)


def _strips(panel: Panel, mistake: ShownMistake, names: list[str]) -> None:
    """One line below the other, each on an axis of its own, because columns have different units."""
    time = _time(mistake)
    with drawing(WIDTH, STRIP * len(names) + 40) as figure:
        strips = figure.subplots(len(names), 1, sharex=True, squeeze=False)[:, 0]
        for place, (axes, name) in enumerate(zip(strips, names, strict=True)):
            axes.plot(time, mistake.inputs[:, place], color=series_colour(place), linewidth=1.6)
            axes.locator_params(axis="y", nbins=4)
            axes.set_ylabel(_short(name))
            _mark(Plot(figure, axes), mistake)
        count_axis(strips[-1], "time step")
        panel.svg = inline(figure, panel.key, panel.alt)


def _rows(panel: Panel, mistake: ShownMistake, names: list[str], everything: np.ndarray) -> None:
    """A row of colours for each column, from the smallest to the largest value of the column in these sequences."""
    finite = np.where(np.isfinite(everything), everything, np.nan)
    low, high = np.nanmin(finite, 0), np.nanmax(finite, 0)
    scaled = (mistake.inputs - low) / np.where(high > low, high - low, 1.0)
    with plot(panel, "time step", width=WIDTH, height=HEIGHT + 6 * min(len(names), NAMED)) as current:
        axes = current.axes
        axes.grid(False)
        axes.imshow(
            np.ma.masked_invalid(scaled.T), cmap=colormaps[COLOURS].with_extremes(bad="#9a9a9a"), vmin=0, vmax=1,
            extent=(0.5, mistake.length + 0.5, len(names) - 0.5, -0.5), aspect="auto", interpolation="none",
        )  # fmt: skip
        if len(names) <= NAMED:
            axes.set_yticks(range(len(names)), [_short(name) for name in names], fontsize=9)
        else:
            axes.set_ylabel(f"{len(names)} columns")
            axes.set_yticks([])
        _mark(current, mistake)
    panel.notes.append("Each row is coloured from the smallest to the largest of its values in these sequences.")


def _mark(current: Plot, mistake: ShownMistake) -> None:
    """All steps on the axis, and a dashed line at that of the answer, if there is an answer at every step."""
    current.axes.set_xlim(0.5, mistake.length + 0.5)
    if mistake.step >= 0:
        current.axes.axvline(mistake.step + 1, color=INK, linestyle=DASHED, linewidth=1.2)


def _time(mistake: ShownMistake) -> np.ndarray:
    return 1 + mistake.stride * np.arange(len(mistake.inputs))


def _short(name: str) -> str:
    """A name that fits beside an axis, without its middle, as text: matplotlib reads dollar signs as mathematics."""
    half = LONG // 2
    return (name if len(name) <= LONG else f"{name[: half - 1]}…{name[-half:]}").replace("$", r"\$")
