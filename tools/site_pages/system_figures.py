"""The figures of the pages of systems: the gradient of each system over time, before training."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

import evenflow
from evenflow.figures import DASHED, MUTED, draw_line, print_figure
from evenflow.probes import gradient_flow

INPUTS, UNITS, STEPS, ROWS = 8, 64, 200, 8
FLOOR = 1e-12  # smaller shares of the gradient are drawn there


def gradient_figures() -> dict[str, str]:
    """An SVG drawing for each system, by name."""
    beside = gradient_over_time(nn.RNN(INPUTS, UNITS))
    return {name: drawn(name, gradient_over_time(make_layer(name)), beside) for name in evenflow.systems()}


def gradient_over_time(layer: nn.Module) -> np.ndarray:
    """``‖∂L/∂h_t‖ / ‖∂L/∂h_T‖`` for a loss of the last output and random inputs, by step."""
    x = torch.randn(STEPS, ROWS, INPUTS, generator=torch.Generator().manual_seed(1))

    def last(output: Tensor, _: Tensor) -> Tensor:
        return output[-1].sum(-1).mean()

    flow = gradient_flow(layer, x, x, last)
    return np.asarray(flow / flow[-1])


def make_layer(name: str) -> nn.Module:
    """The layer of a system whose gradient is drawn."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return evenflow.create(name, INPUTS, UNITS, engine="reference" if name != "esn" else "auto")


def drawn(name: str, norms: np.ndarray, beside: np.ndarray) -> str:
    """A drawing of the gradient of a system, and of that of `torch.nn.RNN` beside it."""
    with print_figure(width=520, height=240) as (figure, (axes,)):
        steps = np.arange(1, STEPS + 1)
        axes.semilogy(steps, beside.clip(FLOOR), color=MUTED, linestyle=DASHED, linewidth=1.5, label="torch.nn.RNN")
        draw_line(axes, 0, steps, norms.clip(FLOOR), name)
        axes.set(xlabel="step t", ylabel="‖∂L/∂h$_t$‖ / ‖∂L/∂h$_T$‖", xlim=(1, STEPS), ylim=(FLOOR / 2, 1e3))
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2)
    return figure.to_bytes("svg").decode()
