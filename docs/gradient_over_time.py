"""Draw docs/gradient-over-time.svg from the runs of `evenflow demo`.

evenflow demo && python docs/gradient_over_time.py runs/demo
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from evenflow.lab.demo import LRS, SYSTEMS
from evenflow.lab.training import Run

COLOURS = ("#0b66a8", "#c45508", "#0a7f5a", "#a3378a")  # distinct for colour-blind readers too


def best(folder: Path, name: str) -> Run:
    """The run of a system with the lowest final validation loss, as on the page of the demonstration."""
    runs = [Run(folder / f"{name}-{lr:g}") for lr in LRS]
    return min(runs, key=lambda run: np.nan_to_num(run.metrics["valid_loss"][-1], nan=np.inf))


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/demo")
    figure = Figure(figsize=(7.5, 3.2), layout="constrained")
    axes = figure.subplots()
    for system, colour in zip(SYSTEMS, COLOURS, strict=True):
        probes = best(folder, system["name"]).probes
        assert probes is not None
        norms = probes["gradient_norm"][-1]
        axes.semilogy(np.arange(1, len(norms) + 1), norms, color=colour, label=system["name"], linewidth=1.8)
    axes.set(xlabel="time step t", ylabel="‖∂L/∂h$_t$‖ after training", xlim=(1, len(norms)))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    with matplotlib.rc_context({"svg.hashsalt": "evenflow", "svg.fonttype": "path"}):
        figure.savefig(Path(__file__).parent / "gradient-over-time.svg", metadata={"Date": None}, facecolor="white")


if __name__ == "__main__":
    main()
