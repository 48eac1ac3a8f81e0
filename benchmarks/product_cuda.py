"""Every map with every cell and activation on a GPU, beside cuDNN's RNN of the same size in the same run.

    python benchmarks/product_cuda.py [--out benchmarks/results] [--seconds 600]

A recorded training pass as in goals_cuda.py, whose goals these are; medians in milliseconds, to product-cuda.json after
every size. Without the time for all sizes the last ones are left out.
"""

from __future__ import annotations

import argparse
import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from goals_cuda import GOALS, INPUT, STEPS, WITH, cudnn, recorded, training_pass, warm

from evenflow.activations import ACTIVATIONS
from evenflow.layers import RNN, ScalarGatedRNN
from evenflow.scan.cuda import build, elman

CELLS = {"Elman": RNN, "gated": ScalarGatedRNN}
SIZES = [(hidden, batch) for kind, hidden, batch in GOALS if kind == "rnn"]


def compiled(hidden: int, batch: int) -> None:
    """Compiles the kernels of a size side by side, each of which takes a part of a second of a core."""
    a = torch.empty(1, STEPS, batch, hidden, device="cuda")
    wanted = {
        kernel
        for way in ("forward", "backward")
        for gated in (False, True)
        for activation in ACTIVATIONS
        for _, kernel in elman.kernels(way, a, gated, activation)
    }
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda kernel: build.code(kernel, 0), wanted))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--seconds", type=float, default=600.0)
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    options.out.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {"hardware": torch.cuda.get_device_name(), "torch": torch.__version__}
    end = time.monotonic() + options.seconds
    for hidden, batch in SIZES:
        if time.monotonic() > end:
            break
        compiled(hidden, batch)
        table: dict[str, float] = {"cuDNN": recorded(warm(cudnn("rnn", hidden, batch)))}
        x = torch.randn(STEPS, batch, INPUT, device="cuda")
        for cell, kind in CELLS.items():
            for name, given in WITH.items():
                for activation in ACTIVATIONS:
                    layer = kind(INPUT, hidden, map=name, activation=activation, **given).cuda()
                    table[f"{cell} {activation}, {name}"] = recorded(warm(training_pass(layer, x, hidden)))
        found[f"H={hidden} B={batch}"] = table
        (options.out / "product-cuda.json").write_text(json.dumps(found, indent=1) + "\n")
        ratios = {label: took / table["cuDNN"] for label, took in table.items() if label != "cuDNN"}
        goal, worst = GOALS["rnn", hidden, batch][0], max(ratios, key=ratios.__getitem__)
        reached = sum(ratio <= goal for ratio in ratios.values())
        print(f"H={hidden} B={batch}: {reached} of {len(ratios)} within {goal:.2f}, worst {worst} {ratios[worst]:.2f}, "
              f"{end - time.monotonic():.0f} s left", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
