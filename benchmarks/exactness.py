"""How far single precision strays in 784 steps: the fused layers and the plain loop, each beside the loop in double.

    python benchmarks/exactness.py [--device cuda] [--out benchmarks/results]

Of H = 128, B = 20: ‖difference‖ / ‖reference‖ of the outputs, all steps together, and the largest over the gradients by
the weights. "free" layers give all three the same orthogonal matrix; the others make theirs by a map, in their own
precision. To exactness-DEVICE.json.
"""

from __future__ import annotations

import argparse
import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from goals_cuda import INPUT, STEPS, WITH
from torch import Tensor, nn

from evenflow import create
from evenflow.activations import ACTIVATIONS
from evenflow.lab.bench import hardware
from evenflow.layers.named import GRU, LSTM, RNN, ScalarGatedRNN

BATCH, HIDDEN = 20, 128
CELLS = {"Elman": RNN, "gated": ScalarGatedRNN}


def layers() -> Iterator[tuple[str, nn.Module]]:
    for cell, kind in CELLS.items():
        for activation in ACTIVATIONS:
            yield f"{cell} {activation}, free", kind(INPUT, HIDDEN, activation=activation, init="orthogonal")
        for name, options in WITH.items():
            yield f"{cell} tanh, {name}", kind(INPUT, HIDDEN, map=name, activation="tanh", **options)
    yield from (("GRU", GRU(INPUT, HIDDEN)), ("ugru", create("ugru", INPUT, HIDDEN)))
    yield "LSTM, peephole", LSTM(INPUT, HIDDEN, form="peephole")


def moved(layer: nn.Module) -> nn.Module:
    """Off the zeros that many weights start at; modrelu's are below zero, where it has no jump."""
    with torch.no_grad():
        for name, weight in layer.named_parameters():
            if not weight.any():
                weight.normal_(0, 0.1)
            if name.startswith("activation") and weight.numel() > 1:
                weight.abs_().neg_()
    return layer


def results(layer: nn.Module, x: Tensor, grad: Tensor) -> list[Tensor]:
    layer.zero_grad()
    output = layer(x)[0]
    output.backward(grad)
    return [output.detach(), *(weight.grad for weight in layer.parameters())]


def errors(layer: nn.Module, device: str) -> dict[str, dict[str, float]]:
    loop, exact = (copy.deepcopy(layer) for _ in range(2))
    loop.engine = exact.engine = "reference"
    x, grad = (torch.randn(STEPS, BATCH, width, device=device) for width in (INPUT, HIDDEN))
    expected = results(exact.double(), x.double(), grad.double())
    found = {}
    for name, each in (("fused", layer), ("loop", loop)):
        got = results(each, x, grad)
        off = [((one - other).norm() / other.norm()).item() for one, other in zip(got, expected, strict=True)]
        found[name] = {"outputs": off[0], "gradients": max(off[1:])}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    found: dict[str, Any] = {
        "hardware": hardware(torch.device(options.device))["name"],
        "torch": torch.__version__,
    }
    torch.manual_seed(0)
    for name, layer in layers():
        found[name] = errors(moved(layer).to(options.device), options.device)
        print(name, found[name], flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / f"exactness-{options.device}.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
