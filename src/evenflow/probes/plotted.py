"""Results of probes that draw themselves: `plot` makes a figure, and a notebook shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from evenflow.figures import PrintFigure

WIDE = 20.0  # largest over smallest value from which a logarithmic axis is easier to read


class Plotted:
    """Base of results that draw themselves. A subclass says in `draw` what is drawn on the axes."""

    def draw(self, axes: Axes) -> None:
        """Draw on these axes, which may hold other results too."""
        raise NotImplementedError

    def plot(self) -> PrintFigure:
        """A matplotlib figure, which a notebook shows and ``savefig("name.pdf")`` writes; needs matplotlib."""
        try:
            from evenflow.figures import print_figure
        except ImportError as error:
            raise ValueError("plot needs matplotlib: pip install 'evenflow[lab]'") from error
        with print_figure() as (figure, (axes,)):
            self.draw(axes)
            if len(axes.get_legend_handles_labels()[1]) > 1:
                axes.legend()
        return figure

    def _repr_svg_(self) -> str | None:
        try:
            return self.plot()._repr_svg_()
        except ValueError:  # no matplotlib: the text is shown
            return None


def draw_profile(axes: Axes, x: Any, y: Any, label: str, across: str, quantity: str) -> None:
    """A line of numbers above zero, on a logarithmic axis if they differ by much; zeros and nan leave gaps."""
    from evenflow.figures import draw_line, span

    y = np.asarray(y, dtype=float)
    draw_line(axes, len(axes.lines), x, np.where(np.isfinite(y) & (y > 0), y, np.nan), label)
    if span([y]) > WIDE:
        axes.set_yscale("log")
    axes.set(xlabel=across, ylabel=quantity)


class GradientFlow(np.ndarray, Plotted):
    """The array of `gradient_flow`, ``(T,)`` or ``(layers, T)``, with `plot`."""

    def draw(self, axes: Axes) -> None:
        """The norms against the time step, one line for each layer."""
        rows = np.atleast_2d(np.asarray(self))
        for i, row in enumerate(rows):
            label = f"layer {i + 1}" if len(rows) > 1 else ""
            draw_profile(axes, np.arange(1, len(row) + 1), row, label, "time step t", "norm of ∂L/∂h")
