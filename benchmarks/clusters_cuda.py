"""How many clusters a GPU runs at once, and what one more than that costs.

    python benchmarks/clusters_cuda.py [--out benchmarks/results]

The driver is asked for every size of cluster; then an Elman cell's forward pass (tanh, H = 512, T = 784) is timed on
batches that need more and more clusters. Medians in milliseconds, to clusters-cuda.json.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import layers_by_name
import torch
from cuda_inputs import inputs
from cuda_run import milliseconds, on

from evenflow.scan.compiled_step import CompiledStep
from evenflow.scan.cuda import cuda_recurrence as recurrence
from evenflow.scan.cuda import tile_tables
from evenflow.scan.cuda.gpu_capacity import max_active_clusters
from evenflow.scan.cuda.launch_plan import StepTile
from evenflow.scan.cuda.tile import Tile
from evenflow.scan.engine import ScanInputs

STEPS, HIDDEN = 784, 512
TILES = {
    "clusters of 4 blocks for 8 rows": (tile_tables.ELMAN[5][1][1], (8, 128, 232, 240, 248, 256)),
    "clusters of 6 blocks for 16 rows": (
        Tile(6, 64, 16, 16, held=24, async_store=True, tensor_cores=True),
        (16, 128, 240, 256, 320, 336),
    ),
}
WHAT = (
    "Clusters that run at once by size, as the driver says of a kernel that has its multiprocessors to itself; and the "
    "forward pass of an Elman cell (tanh, H=512, T=784), ms by rows of the batch: more clusters than run at once take "
    "two turns."
)


def forward(step: CompiledStep, batch: int, tile: Tile) -> float:
    given = inputs(step, "elman tanh", 1, STEPS, batch)
    with on(StepTile(tile, (tile.held,))):
        return round(milliseconds(lambda: recurrence.forward(ScanInputs(step, *given))), 3)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    folder = options.parse_args().out
    text = layers_by_name.step_of(layers_by_name.made("elman tanh", HIDDEN)).text
    found = {
        "hardware": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "what": WHAT,
        "clusters_at_once": {size: max_active_clusters(size, 0) for size in range(2, 17)},
        "forward_ms": {
            name: {b: forward(CompiledStep(text), b, tile) for b in batches} for name, (tile, batches) in TILES.items()
        },
    }
    print(json.dumps(found, indent=1))
    (folder / "clusters-cuda.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
