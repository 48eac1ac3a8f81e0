"""Draw docs/gradient-over-time.svg from the runs of `evenflow demo`.

evenflow demo && python docs/gradient_over_time.py runs/demo
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from evenflow.lab import demo
from evenflow.lab.sweep.compare import compare
from evenflow.lab.training import Run

# Distinct for colour-blind readers too.
COLOURS = {"tanh": "#c45508", "abs": "#0b66a8", "modrelu": "#0a7f5a", "lstm": "#a3378a"}
PANELS = {"rnn": "rnn, a free matrix, and lstm", "exprnn": "exprnn, an orthogonal matrix"}


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/demo")
    attempts = compare(demo.TASK, demo.SYSTEMS, demo.TRAINING, demo.LRS, folder)  # reads the runs of the demo
    figure = Figure(figsize=(7.5, 3.2), layout="constrained")
    panels = dict(zip(PANELS, figure.subplots(1, 2, sharey=True), strict=True))
    for attempt in attempts:
        run = Run(attempt.folder)
        assert run.probes is not None
        norms, system = run.probes["gradient_norm"][-1], run.config["system"]
        name = system.get("activation", "lstm")
        axes = panels.get(system["name"], panels["rnn"])
        steps = np.arange(1, len(norms) + 1)
        label = f"{name}, {100 * attempt.valid_metric:.1f} %"
        axes.semilogy(steps, norms / norms[-1], color=COLOURS[name], label=label, linewidth=1.8)
    for name, axes in panels.items():
        axes.set_title(PANELS[name], fontsize=10)
        axes.set(xlabel="time step t", xlim=(1, len(norms)))
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
        axes.legend(frameon=False, fontsize=8, loc="best")
    panels["rnn"].set_ylabel("‖∂L/∂h$_t$‖ / ‖∂L/∂h$_T$‖ after training")
    with matplotlib.rc_context({"svg.hashsalt": "evenflow", "svg.fonttype": "path"}):
        figure.savefig(Path(__file__).parent / "gradient-over-time.svg", metadata={"Date": None}, facecolor="white")


if __name__ == "__main__":
    main()
