"""The norms of the temporal components of the gradient for several spectral radii, and their figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from evenflow import RNN, SequenceModel
from evenflow.checks import whole_number
from evenflow.init import spectral_radius
from evenflow.lab.report.numbers import number
from evenflow.lab.report.plotting import Panel, log_axis, plot
from evenflow.lab.report.svg import series_variable, standalone
from evenflow.lab.tasks import Task, TemporalOrder
from evenflow.lab.training import atomic
from evenflow.probes import temporal_components

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
    """‖∇L|_t‖ of an untrained tanh network, for each spectral radius that its recurrent matrix is scaled to.

    Args:
        task: the task. Default: temporal order with length 100, as in the document.
        radii: the spectral radii. All of them scale the same initial weights.
        hidden_size: number of units.
        sequences: batch size.
        seed: seed of the weights and of the batch.

    All weights are drawn from N(0, 0.1²), then the recurrent matrix is scaled.

    >>> result = component_norms(radii=(0.8, 1.2))
    >>> result.norms[:, 0] / result.norms[:, -1]  # small if the gradient vanishes

    Reference: Galvan, 3.2 and figure 3.1.
    """
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


def component_panel(components: ComponentNorms, key: str = "components") -> Panel:
    """The norms against time, one line for each radius, on a log axis."""
    norms = np.where(np.isfinite(components.norms) & (components.norms > 0), components.norms, np.nan)
    panel = Panel(key, f"Temporal components by spectral radius, {components.task}")
    if np.isnan(norms).all():
        panel.notes.append("No component is a finite number above zero.")
        return panel
    time = np.arange(1, norms.shape[1] + 1)
    rows = zip(components.radii, components.norms, strict=True)
    parts = [f"{number(r)}: {number(row[0])} at step 1, {number(row[-1])} at the last" for r, row in rows]
    panel.alt = f"Line plot of the norms of the temporal components on {components.task}. Radius {'; '.join(parts)}."
    with plot(panel, "time step t", across="step") as current:
        for index, (radius, row) in enumerate(zip(components.radii, norms, strict=True)):
            current.line(index, time, row, label=f"radius {number(radius)}")
            current.read_out(f"radius {number(radius)}", series_variable(index), time, row)
        low, high = float(np.nanmin(norms)), float(np.nanmax(norms))
        log_axis(current.axes, low / 1.6, high * 1.6, powers=high / low >= 1000)
        current.axes.set_ylabel("norm of the component of step t")
        current.axes.set_xlim(1, max(2, len(time)))
        current.figure.legend(loc="outside right center", frameon=False, handlelength=1.6)
    return panel


def write_components(components: ComponentNorms, out: Path) -> Path:
    """Write the figure as an SVG file, which follows the reader's light or dark scheme.

    >>> write_components(component_norms(), Path("components.svg"))
    PosixPath('components.svg')
    """
    panel = component_panel(components)
    if panel.svg is None:
        raise ValueError("components must hold a norm that is a finite number above zero, got none")
    if Path(out).suffix != ".svg":
        raise ValueError(f"out must end in .svg, got {str(out)!r}")
    return atomic.write_output(Path(out), standalone(panel.svg))
