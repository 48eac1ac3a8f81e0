"""What each of four processes on two nodes does: a small fit on arrays. Run by test_processes.py.

torchrun --nnodes 2 --nproc-per-node 2 sharded_fit.py FOLDER
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

import evenflow
from evenflow.lab.tasks import DataSet
from evenflow.lab.training.launch import leave

# 41 to train on: an epoch has five updates of four batches, which leave out one sequence, or two of eight
SEQUENCES, BATCH = 46, 2


def fit(accumulate: int) -> tuple[Any, list[list[int]]]:
    """The result, and the numbers of the sequences in every batch of this process, in their order."""
    seen: list[list[int]] = []
    rows = DataSet.rows

    def recorded(data: DataSet, size: int, position: Any, device: torch.device) -> torch.Tensor:
        found = rows(data, size, position, device)
        seen.append(found.tolist())
        return found

    draws = np.random.RandomState(0)
    x = draws.randn(SEQUENCES, 5, 2).astype(np.float32)
    y = (x.sum((1, 2)) > 0).astype(np.int64)
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        layer = evenflow.create("rnn", 2, 4, map="exponential", num_layers=2, dropout=0.3)
        model = evenflow.SequenceModel(layer, 2)
    DataSet.rows = recorded  # type: ignore[method-assign]
    try:
        result = evenflow.fit(
            model, (x, y), validation=5 / SEQUENCES, epochs=3, batch_size=BATCH,
            accumulate=accumulate, optimizer="sgd", lr=0.1, clip_norm=1.0, log_every=1, device="cpu", progress=False,
        )  # fmt: skip
    finally:
        DataSet.rows = rows  # type: ignore[method-assign]
    return result, seen


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    rank = os.environ["RANK"]
    for accumulate in (1, 2):
        result, seen = fit(accumulate)
        torch.save(result.model.state_dict(), folder / f"weights-{accumulate}-{rank}.pt")
        said = {"rows": seen, "loss": result.history["loss"].tolist(), "valid": result.valid_loss}
        said |= {"node": os.environ["GROUP_RANK"], "nodes": os.environ["GROUP_WORLD_SIZE"]}
        (folder / f"said-{accumulate}-{rank}.json").write_text(json.dumps(said))
    leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
