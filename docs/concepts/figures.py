"""Draw the figures of the pages on concepts, with the maps, layers and probes of the library.

python docs/concepts/figures.py
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from torch import nn

import evenflow
from evenflow import RNN, maps, tasks
from evenflow.bounds import gradient_band
from evenflow.figures import COLOURS, DASHED, MUTED, draw_line, print_figure
from evenflow.probes import jacobian_norms, temporal_components

HERE = Path(__file__).parent
UNITS = 64
# By figure: label, map, its options, and the size of its random parameters.
MATRICES = {
    "eigenvalues": (("free", "free", {}, UNITS**-0.5), ("exponential", "exponential", {}, 1.0)),
    "eigenvalues-near": (
        ("svd, margin 0.3", "svd", {"margin": 0.3}, 1.0),
        ("antisymmetric, γ = 0.5", "antisymmetric", {"gamma": 0.5}, 0.1),
    ),
}
ACTIVATIONS = ("abs", "modrelu", "relu", "tanh")
MARGINS = (0.0, 0.01, 0.05, 0.2)
STEPPED = ("rnn", "urnn", "sgornn", "lstm", "lru")


def shaken(layer: nn.Module) -> nn.Module:
    """The layer with its map's parameters moved away from their start, as training moves them."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if "parametrizations" in name:
                parameter.add_(torch.randn(parameter.shape, generator=generator))
    return layer


def eigenvalues() -> None:
    """Eigenvalues of random matrices of four maps, beside the unit circle."""
    angles = np.linspace(0, 2 * np.pi, 200)
    for name, matrices in MATRICES.items():
        generator = torch.Generator().manual_seed(3)
        with print_figure(panels=2, width=240, height=250) as (figure, panels):
            for axes, (label, kind, options, size) in zip(panels, matrices, strict=True):
                map = maps.make(kind, UNITS, **options)
                matrix = map.matrix(*(size * torch.randn(shape, generator=generator) for shape in map.raw_shapes))
                values = torch.linalg.eigvals(matrix).numpy()
                axes.plot(np.cos(angles), np.sin(angles), color=MUTED, linewidth=1)
                axes.plot(values.real, values.imag, "o", color=COLOURS[0], markersize=3.5)
                axes.set(aspect="equal", xlim=(-1.6, 1.6), ylim=(-1.6, 1.6), xticks=(-1, 0, 1), yticks=(-1, 0, 1))
                axes.set_title(label, fontsize=12)
        figure.savefig(HERE / f"{name}.svg")


def norms(layer: nn.Module, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Lags, and the spectral norm of ∂h_T/∂h_{T-lag} at each, in the mean over four random sequences."""
    x = torch.randn(steps, 4, 2, generator=torch.Generator().manual_seed(1))
    found = jacobian_norms(layer, x)
    return found.t - found.k, found.spectral.mean(1)


def margins() -> None:
    """How far a gradient is scaled over time by matrices of the map svd with four margins."""
    with print_figure(width=520, height=290) as (figure, (axes,)):
        for index, margin in enumerate(MARGINS):
            layer = RNN(2, UNITS, map="svd", margin=margin, activation="abs", bias=False)
            lags, values = norms(shaken(layer), 100)
            draw_line(axes, index, lags, values, f"margin {margin:g}")
            if margin:
                for way in (1 + margin, 1 - margin):
                    axes.plot(lags, way ** lags.astype(float), color=COLOURS[index], linestyle=DASHED, linewidth=1)
        axes.set(xlabel="lag", ylabel="‖∂h$_T$/∂h$_{T-lag}$‖", yscale="log", ylim=(1e-7, 1e4), xlim=(0, 99))
        axes.legend(loc="lower right")
    figure.savefig(HERE / "margins.svg")


def activations() -> None:
    """The same with an orthogonal matrix and four activations; dashed the lower bound, where it is above zero."""
    with print_figure(width=520, height=290) as (figure, (axes,)):
        for index, name in enumerate(ACTIVATIONS):
            layer = RNN(2, UNITS, map="exponential", activation=name)
            lags, values = norms(layer, 100)
            draw_line(axes, index, lags, values, name)
        layer = RNN(2, UNITS, map="exponential", activation="leaky(0.9)")
        lags, values = norms(layer, 100)
        draw_line(axes, len(ACTIVATIONS), lags, values, "leaky(0.9)")
        low = [gradient_band(layer, int(lag)).lower / UNITS**0.5 for lag in lags]
        axes.plot(lags, low, color=COLOURS[len(ACTIVATIONS)], linestyle=DASHED, linewidth=1)
        axes.set(xlabel="lag", ylabel="‖∂h$_T$/∂h$_{T-lag}$‖", yscale="log", ylim=(1e-4, 2), xlim=(0, 99))
        axes.legend(loc="lower left")
    figure.savefig(HERE / "activations.svg")


def radii() -> None:
    """Powers in time: a linear recurrence with a Gaussian matrix of three spectral radii."""
    with print_figure(width=520, height=290) as (figure, (axes,)):
        for index, radius in enumerate((0.9, 1.0, 1.1)):
            layer = RNN(2, UNITS, activation="identity")
            with torch.no_grad():
                matrix = torch.randn(UNITS, UNITS, generator=torch.Generator().manual_seed(2))
                layer.weight_hh_l0.copy_(matrix * radius / torch.linalg.eigvals(matrix).abs().max())
            lags, values = norms(layer, 200)
            draw_line(axes, index, lags, values, f"spectral radius {radius:g}")
        axes.set(xlabel="lag", ylabel="‖∂h$_T$/∂h$_{T-lag}$‖", yscale="log", xlim=(0, 199))
        axes.legend(loc="upper left")
    figure.savefig(HERE / "radii.svg")


def components() -> None:
    """The temporal components of the gradient of an untrained network, for four spectral radii."""
    task = tasks.make("adding", length=100)
    batch = task.batch(50, torch.Generator().manual_seed(0))
    with print_figure(width=520, height=290) as (figure, (axes,)):
        for index, radius in enumerate((0.8, 0.9, 1.0, 1.1)):
            torch.manual_seed(0)
            model = evenflow.SequenceModel(RNN(2, UNITS, init="spectral_radius", radius=radius), 1)
            found = temporal_components(model, batch.inputs, batch.targets, task.loss).norms
            draw_line(axes, index, range(1, len(found) + 1), found / found.sum(), f"spectral radius {radius:g}")
        axes.set(xlabel="time step t", ylabel="share of the gradient", yscale="log", xlim=(1, 100), ylim=(1e-12, 1))
        axes.legend(loc="lower right")
    figure.savefig(HERE / "components.svg")


def cells() -> None:
    """The Jacobian of the whole state over time for five systems, before training."""
    with print_figure(width=520, height=300) as (figure, (axes,)):
        x = torch.randn(200, 4, 8, generator=torch.Generator().manual_seed(1))
        for index, name in enumerate(STEPPED):
            torch.manual_seed(0)
            found = jacobian_norms(evenflow.create(name, 8, UNITS), x, of="state")
            draw_line(axes, index, found.t - found.k, found.spectral.mean(1).clip(1e-12), name)
        axes.set(xlabel="lag", ylabel="‖∂s$_T$/∂s$_{T-lag}$‖", yscale="log", xlim=(0, 199), ylim=(1e-12, 1e2))
        axes.legend(loc="lower left")
    figure.savefig(HERE / "cells.svg")


def scans() -> None:
    """A training pass by torch's layer, by a loop in torch and by the compiled scan, from the committed times."""
    root = HERE.parents[1]
    times = json.loads((root / "benchmarks/results/recurrence-cpu.json").read_text("utf-8"))["median_ms"]
    groups = {
        "RNN": ("torch.nn.RNN relu", "loop rnn", "evenflow RNN relu"),
        "GRU": ("torch.nn.GRU", "loop gru", "evenflow GRU"),
        "LSTM": ("torch.nn.LSTM", "loop lstm", "evenflow LSTM"),
    }
    with print_figure(width=520, height=270) as (figure, (axes,)):
        for index, label in enumerate(("torch.nn", "loop over the step, in torch", "compiled scan")):
            places = np.arange(len(groups)) + 0.27 * (index - 1)
            bars = axes.bar(
                places, [times[of[index]] for of in groups.values()], 0.25, color=COLOURS[index], label=label
            )
            axes.bar_label(bars, fmt="%.0f", fontsize=10, color=MUTED)
        axes.set(ylabel="ms", xticks=range(len(groups)), xticklabels=groups)
        axes.legend(loc="upper left")
    figure.savefig(HERE / "scans.svg")


if __name__ == "__main__":
    torch.manual_seed(0)
    for draw in (eigenvalues, margins, activations, radii, components, cells, scans):
        draw()
