"""Print the tables of docs/bounds.md: measured values and the bounds of the theorems.

python docs/bounds_table.py
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from evenflow import RNN, SequenceModel, create
from evenflow.bounds import (
    gradient_band,
    hochreiter_bound,
    scalar_gate_gap,
    scalar_gate_gradients,
    singular_value_bound,
    spectral_gap,
)
from evenflow.probes import jacobian
from evenflow.probes.unrolled import unroll

LAG, SAMPLES = 30, 10_000


def row(*cells: object) -> None:
    print("| " + " | ".join(f"{c:.3g}" if isinstance(c, float) else str(c) for c in cells) + " |")


def head(*cells: str) -> None:
    print()
    row(*cells)
    row(*["---"] * len(cells))


def inputs(steps: int, width: int = 2, sequences: int = 8) -> Tensor:
    return torch.randn(steps, sequences, width, generator=torch.Generator().manual_seed(1))


def bands() -> None:
    head("layer", "units", "lower", "measured, least", "measured, most", "upper", "as the lag grows")
    layers = [
        *(
            (f"orthogonal, {f}", RNN(2, h, map="exponential", activation=f, dtype=torch.float64))
            for f, h in (("abs", 100), ("relu", 200), ("leaky(0.5)", 200), ("leaky(0.95)", 200), ("tanh", 200))
        ),
        ("singular values within 0.1 of 1, abs", RNN(2, 100, map="svd", margin=0.1, activation="abs")),
        ("sgornn", create("sgornn", 2, 100)),
        ("torch.nn.RNN, tanh", nn.RNN(2, 100)),
    ]
    for name, layer in layers:
        if "within" in name:
            with torch.no_grad():  # at its start all singular values are 1
                for parameter in layer.parameters():
                    parameter.add_(torch.randn_like(parameter))
        x = inputs(LAG + 1).to(layer.weight_ih_l0.dtype)
        measured = jacobian(layer, x, t=LAG, k=0, method="exact").frobenius
        band = gradient_band(layer, LAG)
        row(name, layer.hidden_size, band.lower, float(measured.min()), float(measured.max()), band.upper, band.regime)


def largest_entry(layer: nn.Module, x: Tensor, lag: int) -> float:
    """max |∂h_t/∂h_k| of the first sequence."""
    (path,) = unroll(layer, x[:, :1])

    def later(h: Tensor) -> Tensor:
        state = (h.unsqueeze(0),)
        for step in range(len(x) - lag, len(x)):
            state = path.step(step, state)
        return state[0][0]

    return float(torch.autograd.functional.jacobian(later, path.states[-lag - 1][0][0]).abs().max())


def galvan() -> None:
    head("layer", "lag", "largest entry", "Hochreiter's bound", "spectral norm", "singular value bound")
    equal = RNN(2, 10, activation="relu", dtype=torch.float64)
    with torch.no_grad():
        equal.weight_hh_l0.fill_(0.09)
        equal.weight_ih_l0.fill_(1)
    for name, layer in (("equal weights 0.09, relu, all units on", equal), ("torch.nn.RNN, tanh", nn.RNN(2, 10))):
        for lag in (1, 10):
            x = inputs(LAG).abs().to(layer.weight_ih_l0.dtype)
            spectral = float(jacobian(layer, x, t=LAG - 1, k=LAG - 1 - lag).spectral[0, 0])
            row(
                name,
                lag,
                largest_entry(layer, x, lag),
                hochreiter_bound(layer, lag).value,
                spectral,
                singular_value_bound(layer, lag).value,
            )


def sgornn() -> None:
    head("T", "max of dL/dW", "(8)", "max of dL/dΘ", "√2 C (αT)²", "(9)", f"gap, m = {SAMPLES:,}")
    for steps in (100, 500):
        model = SequenceModel(create("sgornn", 2, 128), 1)
        x = inputs(steps)
        loss = (model(x)[0] - 1).abs().mean()
        loss.backward()
        limits = scalar_gate_gradients(model, x)
        angles = model.layer.parametrizations.weight_hh_l0.original.grad
        row(
            steps,
            float(model.layer.weight_ih_l0.grad.abs().max()),
            limits.weight_ih,
            float(angles.abs().max()),
            limits.raw_sharp,
            limits.raw,
            scalar_gate_gap(model, x, SAMPLES),
        )


def spectral() -> None:
    head("recurrent matrix", "T", "Theorem 5", "Corollary 1")
    for name, margin in (("singular values within 0.01 of 1", 0.01), ("singular values within 0.5 of 1", 0.5)):
        for steps in (10, 100):
            model = SequenceModel(create("spectral", 2, 32, margin=margin), 4)
            with torch.no_grad():
                for parameter in model.layer.parameters():
                    parameter.add_(torch.randn_like(parameter))
            gap = spectral_gap(model, inputs(steps), SAMPLES)
            row(name, steps, gap.gap, gap.corollary)


if __name__ == "__main__":
    torch.manual_seed(0)
    bands()
    galvan()
    sgornn()
    spectral()
