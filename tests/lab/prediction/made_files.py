"""Small files of sequences, and predictors for them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from evenflow import SequenceModel, create
from evenflow.models import DataColumn, DataSchema, Predictor

COLUMNS = (DataColumn("ax", mean=100.0, deviation=20.0), DataColumn("ay", mean=-3.0, deviation=0.5))
TARGETS = {
    "classification": (DataColumn("activity", "category", categories=("rest", "run", "walk")),),
    "regression": (DataColumn("speed", mean=1000.0, deviation=316.0),),
    "next": (),
}


def predictor_of(kind: str, readout: str, **options) -> Predictor:
    schema = DataSchema(kind, readout, COLUMNS, TARGETS[kind], **options)
    torch.manual_seed(0)
    return Predictor(SequenceModel(create("gru", 2, 8), schema.outputs, readout=readout), schema)


def sequences(count: int = 9, seed: int = 0) -> list[np.ndarray]:
    """Sequences of 1 to 7 steps."""
    draw = np.random.RandomState(seed)
    return [
        np.stack([100 + 20 * draw.randn(1 + n % 7), -3 + 0.5 * draw.randn(1 + n % 7)], -1).round(4)
        for n in range(count)
    ]


def write_csv(path: Path, inputs, targets=None, target="activity", named=True, order=None) -> Path:
    """A row for each step; a target for each sequence, or for each step."""
    rows = []
    for n, sequence in enumerate(inputs):
        learned = [] if targets is None else np.broadcast_to(targets[n], len(sequence)).tolist()
        for step, (ax, ay) in enumerate(sequence.tolist()):
            cells = [*([f"s{n}"] if named else []), step, ay, ax, *(learned[step : step + 1])]
            rows.append(",".join(map(str, cells)))
    header = ",".join([*(["sequence"] if named else []), "time", "ay", "ax", *([] if targets is None else [target])])
    rows = rows if order is None else [rows[row] for row in order]
    path.write_text("\n".join([header, *rows]) + "\n")
    return path
