"""Temporal components of the gradient by the spectral radius of the recurrent matrix: the data and the figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from evenflow.checks import whole_number
from evenflow.lab.report import hover
from evenflow.lab.report.numbers import number
from evenflow.lab.report.svg import (
    Panel,
    count_axis,
    drawing,
    inline,
    log_axis,
    series_colour,
    series_marker,
    series_name,
    standalone,
)
from evenflow.lab.training import atomic

if TYPE_CHECKING:
    from evenflow.lab.tasks import Task
    from evenflow.models.sequence_model import SequenceModel

RADII = (0.8, 0.9, 1.0, 1.1, 1.2)


@dataclass(frozen=True)
class ComponentNorms:
    """Norms of the temporal components ``(R, T)``, one row for each spectral radius ``(R)``."""

    task: str
    radii: tuple[float, ...]
    norms: np.ndarray


def component_norms(
    task: Task | None = None,
    radii: Sequence[float] = RADII,
    *,
    hidden_size: int = 50,
    sequences: int = 100,
    seed: int = 0,
) -> ComponentNorms:
    """‖∇L|_t‖ of a fresh tanh network, for each spectral radius its recurrent matrix is scaled to.

    Args:
        task: temporal order at length 100 by default, as in the document.
        radii: the spectral radii. Every one starts from the same draw of the weights.
        sequences: in the batch the loss is taken of.

    Starting value: all weights from N(0, 0.1²), then the recurrent matrix is scaled.

    >>> found = component_norms(radii=(0.8, 1.2))
    >>> found.norms[:, 0] / found.norms[:, -1]  # small: the gradient vanishes

    Reference: Galvan, 3.2 and figure 3.1.
    """
    from evenflow.lab.tasks import TemporalOrder
    from evenflow.probes import temporal_components

    whole_number("sequences", sequences, 1)
    if not radii or not all(radius > 0 for radius in radii):
        raise ValueError(f"radii must be numbers above 0, at least one, got {tuple(radii)}")
    task = TemporalOrder(length=100) if task is None else task
    batch = task.batch(sequences, torch.Generator().manual_seed(seed))
    rows = []
    for radius in radii:
        model = scaled_model(task, radius, hidden_size, seed)
        rows.append(temporal_components(model, batch.inputs, batch.targets, task.loss, batch.lengths).norms)
    return ComponentNorms(task.name, tuple(radii), torch.stack(rows).detach().double().numpy())


def scaled_model(task: Task, radius: float, hidden_size: int = 50, seed: int = 0) -> SequenceModel:
    """A tanh network with all weights from N(0, 0.1²) and its recurrent matrix scaled to a spectral radius."""
    from evenflow import RNN, SequenceModel
    from evenflow.init import spectral_radius

    generator = torch.Generator().manual_seed(seed)
    layer = RNN(task.input_size, hidden_size, activation="tanh", generator=generator)
    model = SequenceModel(
        layer, task.output_size, readout=task.readout, vocabulary=task.vocabulary, generator=generator
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.1, generator=generator)
        scaled = spectral_radius(hidden_size, radius=radius, generator=generator)
        layer.get_parameter("weight_hh_l0").copy_(scaled)
    return model


def component_panel(found: ComponentNorms, key: str = "components") -> Panel:
    """The norms against time, one line for each radius, on a log axis, as a figure for a page."""
    norms = np.where(np.isfinite(found.norms) & (found.norms > 0), found.norms, np.nan)
    panel = Panel(key, f"Temporal components by spectral radius, {found.task}")
    if np.isnan(norms).all():
        panel.notes.append("No component is a finite number above zero.")
        return panel
    time = np.arange(1, norms.shape[1] + 1)
    rows = zip(found.radii, found.norms, strict=True)
    parts = [f"{number(r)}: {number(row[0])} at step 1, {number(row[-1])} at the last" for r, row in rows]
    panel.alt = f"Line plot of the norms of the temporal components on {found.task}. Radius {'; '.join(parts)}."
    with drawing(480, 300) as figure:
        axes = figure.add_subplot()
        series = []
        for index, (radius, row) in enumerate(zip(found.radii, norms, strict=True)):
            axes.plot(
                time, row, color=series_colour(index), marker=series_marker(index), markersize=5,
                markevery=max(1, len(time) // 8), label=f"radius {number(radius)}",
            )  # fmt: skip
            series.append(hover.Series(f"radius {number(radius)}", series_name(index), time, row))
        low, high = float(np.nanmin(norms)), float(np.nanmax(norms))
        log_axis(axes, low / 1.6, high * 1.6, powers=high / low >= 1000)
        count_axis(axes, "time step t")
        axes.set_ylabel("norm of the component of step t")
        axes.set_xlim(1, max(2, len(time)))
        figure.legend(loc="outside right center", frameon=False, handlelength=1.6)
        panel.svg = inline(figure, key, panel.alt)
        panel.hover = hover.lines(axes, "step", series)
    return panel


def write_components(found: ComponentNorms, out: Path) -> Path:
    """The figure as an SVG file, which follows the reader's light or dark scheme.

    >>> write_components(component_norms(), Path("components.svg"))
    PosixPath('components.svg')
    """
    panel = component_panel(found)
    if panel.svg is None:
        raise ValueError("found must hold a norm that is a finite number above zero, got none")
    if Path(out).suffix != ".svg":
        raise ValueError(f"out must end in .svg, got {str(out)!r}")
    try:
        atomic.write(Path(out), standalone(panel.svg).encode())
    except OSError as error:
        raise ValueError(f"out must be a file that can be written, got {str(out)!r} ({error.strerror})") from None
    return Path(out)
