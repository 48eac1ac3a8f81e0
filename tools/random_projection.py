"""Measures a control: images through a fixed random projection, without recurrence, and a trained readout.

    python tools/random_projection.py --data ~/sets            # docs/results/controls/random-projection.json

The readouts are those of the records of permuted pixels: one linear map, or one hidden layer of rectified units. What a
control reaches is no evidence of memory. The order of the pixels does not matter to it, so permuted and ordered images
give the same. A model is chosen by its validation accuracy, and the test part is used once.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import time

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import evenflow
from evenflow.lab import tasks
from evenflow.lab.training.launch import hardware
from measurements import ROOT

PATH = ROOT / "docs/results/controls/random-projection.json"
BATCH, RATE, PASSES = 100, 1e-3, 25
# Units of the projection, its activation, hidden units of the readout; sizes as in the sweeps of permuted pixels.
CONTROLS = (
    ("identity", 256, 480),
    ("relu", 1024, None),
)


def readout(units: int, hidden: int | None, generator: torch.Generator) -> nn.Sequential:
    sizes = [units, *([] if hidden is None else [hidden]), 10]
    layers: list[nn.Module] = []
    for size, following in itertools.pairwise(sizes):
        layer = nn.Linear(size, following)
        with torch.no_grad():
            layer.weight.uniform_(-1, 1, generator=generator).mul_((6 / (size + following)) ** 0.5)
            layer.bias.zero_()
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def features(images: Tensor, projection: Tensor, activation: str) -> Tensor:
    states = images.flatten(1).float() @ projection
    return states.relu() if activation == "relu" else states


def accuracy(model: nn.Module, states: Tensor, labels: Tensor) -> float:
    with torch.no_grad():
        return float((model(states).argmax(-1) == labels).float().mean())


def measure(data: str | None, activation: str, units: int, hidden: int | None, seed: int) -> dict[str, float | int]:
    """The test accuracy of the best validation, over all passes."""
    task = tasks.make("mnist", width=28, data=data)
    parts = [part.tensors() for part in (task, task.held_out(), task.test())]
    generator = torch.Generator().manual_seed(seed)
    projection = torch.randn(784, units, generator=generator) / 784**0.5 * (task.scale * 3)
    (train, y), (valid, y_valid), (test, y_test) = ((features(x, projection, activation), y) for x, y in parts)
    model = readout(units, hidden, generator)
    optimizer = torch.optim.Adam(model.parameters(), RATE)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, PASSES * (len(y) // BATCH))
    best, kept = -1.0, model.state_dict()
    for _ in range(PASSES):
        for rows in torch.randperm(len(y), generator=generator).split(BATCH)[: len(y) // BATCH]:
            optimizer.zero_grad()
            F.cross_entropy(model(train[rows]), y[rows]).backward()
            optimizer.step()
            schedule.step()
        score = accuracy(model, valid, y_valid)
        if score >= best:
            best, kept = score, {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict(kept)
    return {"seed": seed, "validation": best, "test": accuracy(model, test, y_test)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="the data folder")
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    rows = []
    for activation, units, hidden in CONTROLS:
        began = time.monotonic()
        runs = [measure(options.data, activation, units, hidden, seed) for seed in range(1, options.seeds + 1)]
        parameters = sum(p.numel() for p in readout(units, hidden, torch.Generator()).parameters())
        row = {"activation": activation, "units": units, "readout_units": hidden, "parameters": parameters}
        rows.append({**row, "seconds": round(time.monotonic() - began, 1), "runs": runs})
        print(row, [run["test"] for run in runs], flush=True)
    versions = {"evenflow": evenflow.__version__, "torch": str(torch.__version__), "hardware": hardware("cpu")}
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    settings = {"task": "mnist", "batch_size": BATCH, "lr": RATE, "passes": PASSES, "optimizer": "adam, linear decay"}
    PATH.parent.mkdir(parents=True, exist_ok=True)
    table = {"format": 1, **versions, "date": today, "settings": settings}
    lines = ",\n".join("  " + json.dumps(row) for row in rows)
    PATH.write_text(f'{json.dumps(table)[:-1]}, "controls": [\n{lines}\n]}}\n', "utf-8")


if __name__ == "__main__":
    main()
