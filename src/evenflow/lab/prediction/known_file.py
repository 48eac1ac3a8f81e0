"""A file of the steps to forecast, with the inputs that are known ahead."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evenflow.lab.data.file_blocks import file_blocks
from evenflow.lab.data.guarded import FilePath, cannot_read
from evenflow.models.data_schema import DataSchema
from evenflow.models.known_ahead import known_schema


class KnownFile:
    """The inputs of a forecaster at the steps to come, by the name of the sequence.

    Args:
        path: a CSV, Parquet or npz file that has the columns ``schema.known``, and a row for each step to forecast.
        schema: of the forecaster.
    """

    def __init__(self, path: FilePath, schema: DataSchema) -> None:
        if not schema.known:
            raise ValueError("known must be left out: this model reads no input that is known ahead")
        self.path = path
        self._steps: dict[str, np.ndarray] = {}
        for block in file_blocks(path, known_schema(schema), learned=False):
            self._steps.update(zip(block.names, block.inputs, strict=True))

    def of(self, names: Sequence[str], horizon: int) -> list[np.ndarray]:
        """The first `horizon` steps ``(horizon, K)`` of each of these sequences."""
        steps_ahead = []
        for name in names:
            steps = self._steps.get(name, np.zeros((0, 0)))
            if len(steps) < horizon:
                of = f" of sequence {name[:20]!r}" if name else ""
                raise cannot_read(self.path, f"it has {len(steps)} rows{of}, and the forecast needs {horizon}")
            steps_ahead.append(steps[:horizon])
        return steps_ahead
