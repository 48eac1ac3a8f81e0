"""A model that reads the last state of a layer without activation: by one product, and by all steps.

    python benchmarks/last_state.py [--out benchmarks/results] [--rounds 7]

Forward and backward with the readout, and forward alone, float32, rotations, one input a step and as many threads as
torch takes; the two ways and `torch.nn.RNN` (tanh: it has no other without activation) interleaved, medians in
milliseconds. Both ways' errors are ‖difference‖ / ‖reference‖ of the last state, beside double precision. To
last-state-cpu.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from evenflow import RNN, SequenceModel
from evenflow.lab.bench import hardware
from evenflow.layers.last_state import last_state
from evenflow.scan.linear_final_state import pays

SIZES = ((256, 100, 784), (128, 50, 784), (128, 20, 1000), (64, 50, 5000), (512, 100, 784), (128, 12, 784))  # H, B, T


def timed(model: SequenceModel, answer: Callable[[], torch.Tensor]) -> tuple[float, float]:
    """There and back, and without gradients."""
    model.zero_grad()
    begin = time.perf_counter()
    answer().square().mean().backward()
    trained = time.perf_counter()
    with torch.no_grad():
        answer()
    return (trained - begin) * 1e3, (time.perf_counter() - trained) * 1e3


def measure(units: int, rows: int, steps: int, rounds: int) -> dict[str, object]:
    layer = RNN(1, units, map="rotations", activation="identity")
    ours = SequenceModel(layer, 10)
    torchs = SequenceModel(torch.nn.RNN(1, units), 10)
    x = torch.rand(steps, rows, 1)
    ways = {
        "one product": (ours, lambda: ours.read(last_state(layer, x)[0])),
        "all steps": (ours, lambda: ours.read(layer(x)[1][0])),
        "torch.nn.RNN": (torchs, lambda: torchs(x)[0]),
    }
    if not pays(steps, rows, 1, units):
        del ways["one product"]
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(rounds + 1):
        for name, (model, answer) in ways.items():
            taken[name].append(timed(model, answer))
    exact = RNN(1, units, map="rotations", activation="identity").double()
    exact.load_state_dict(layer.state_dict())
    with torch.no_grad():
        reference = exact(x.double())[1]
        ends = {"all steps": layer(x)[1], "one product": last_state(layer, x)}
    return {
        "H, B, T": [units, rows, steps],
        "ms": {name: statistics.median(there for there, _ in times[1:]) for name, times in taken.items()},
        "ms without gradients": {name: statistics.median(t for _, t in times[1:]) for name, times in taken.items()},
        "error": {name: float((h - reference).norm() / reference.norm()) for name, h in ends.items() if h is not None},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    torch.set_flush_denormal(True)
    found: dict[str, object] = {"hardware": hardware(torch.device("cpu")), "torch": torch.__version__}
    found["threads"] = torch.get_num_threads()
    found["sizes"] = []
    for size in SIZES:
        torch.manual_seed(0)
        found["sizes"].append(measure(*size, options.rounds))  # type: ignore[attr-defined]
        print(found["sizes"][-1], flush=True)  # type: ignore[index]
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "last-state-cpu.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
