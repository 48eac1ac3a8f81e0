"""What a layer on a GPU saves of every step for its backward pass, and what it costs to keep the states alone, or less.

    python benchmarks/kept_cuda.py [--out benchmarks/results]

H = 128, B = 50, T = 784, float32. "states" is the memory that a forward pass leaves taken, its output included, in
T·B·H numbers; the input is the caller's. Each layer runs as it is, with `checkpoint_every` = 1, which keeps all states,
and with half of the sequence. Times as in goals_cuda.py, medians in milliseconds, to kept-cuda.json.
"""

from __future__ import annotations

import argparse
import gc
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from goals_cuda import INPUT, STEPS, both, training_pass
from torch import nn

from evenflow.layers.feedback_stack import GatedFeedbackRNN
from evenflow.layers.named import GRU, LSTM, RNN, ScalarGatedRNN

HIDDEN, BATCH = 128, 50
LAYERS: dict[str, Callable[..., nn.Module]] = {
    "Elman tanh": partial(RNN, INPUT, HIDDEN, activation="tanh"),
    "Elman abs": partial(RNN, INPUT, HIDDEN, activation="abs"),
    "Elman prelu": partial(RNN, INPUT, HIDDEN, activation="prelu"),
    "gated relu": partial(ScalarGatedRNN, INPUT, HIDDEN, activation="relu"),
    "GRU": partial(GRU, INPUT, HIDDEN),
    "LSTM": partial(LSTM, INPUT, HIDDEN),
    "gated feedback": partial(GatedFeedbackRNN, INPUT, HIDDEN, 3),
}


def measured(layer: nn.Module) -> dict[str, float]:
    x = torch.randn(STEPS, BATCH, INPUT, device="cuda")
    layer(x)  # kernels are compiled, libraries take their workspaces
    gc.collect()
    before = torch.cuda.memory_allocated()
    results = layer(x)
    left = torch.cuda.memory_allocated() - before
    del results
    return {"states": left / (4 * STEPS * BATCH * HIDDEN)} | both(training_pass(layer, x, HIDDEN))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    out: Path = parser.parse_args().out
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    found: dict[str, Any] = {"hardware": torch.cuda.get_device_name(), "torch": torch.__version__}
    for name, make in LAYERS.items():
        for every, label in ((None, name), (1, f"{name}, states alone"), (STEPS // 2, f"{name}, checkpointed")):
            found[label] = measured(make(checkpoint_every=every).cuda())
            print(f"{label}: {found[label]}", flush=True)
    out.mkdir(parents=True, exist_ok=True)
    (out / "kept-cuda.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
