"""Forecasts of several steps: all at once, or step by step from the model's own predictions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import nn

from evenflow.checks import whole_number
from evenflow.models.data_schema import DataSchema
from evenflow.models.known_ahead import known_steps
from evenflow.models.sequence_model import SequenceModel
from evenflow.models.user_sequences import UserBatch, UserSequences


def forecast(
    model: nn.Module,
    schema: DataSchema,
    x: Any,
    horizon: int,
    known: Any,
    batches: Callable[[UserSequences], Iterator[UserBatch]],
) -> np.ndarray:
    """The steps after the end of each sequence, see `Predictor.forecast`.

    Args:
        batches: divides sequences into batches on the model's device.
    """
    whole_number("horizon", horizon, 1)
    if schema.kind != "next":
        raise ValueError(f"forecast needs a model that predicts the next step, this one is for {schema.kind}")
    if 1 < schema.horizon < horizon:
        raise ValueError(f"horizon must be at most {schema.horizon}, the steps that this model predicts, got {horizon}")
    if not isinstance(model, SequenceModel) or getattr(model.layer, "bidirectional", False):
        raise ValueError("forecast needs a model that reads forwards, this one is bidirectional")
    for column in schema.inputs:
        if column.kind == "category" and not column.known:
            raise ValueError(
                f"forecast needs inputs that the model predicts or that are known ahead, and column {column.name!r} "
                "has categories"
            )
    sequences = UserSequences(x, schema, newest=True)
    coming = known_steps(known, sequences, horizon)
    # Each sequence goes on with the steps to forecast, so that what is known ahead is read and scaled like the rest.
    sequences.append_steps(_steps_to_come(schema, len(sequences), horizon, coming))
    places = [place for place, column in zip(_places(schema), schema.inputs, strict=True) if column in schema.predicted]
    result = np.empty((len(sequences), horizon, len(places)))
    for batch in batches(sequences):
        sequences.check(batch)
        told = sequences.lengths[batch.rows] - horizon
        lengths = None if batch.lengths is None else batch.lengths - horizon
        outputs, state = model(batch.inputs[: int(told.max())], lengths=lengths)
        ends = torch.as_tensor(told - 1, device=outputs.device)
        rows, columns = (torch.arange(len(told), device=ends.device), torch.tensor(places, device=ends.device))
        y = outputs[ends, rows]
        steps = [y]
        for ahead in range(1, horizon if schema.horizon == 1 else 1):
            read = batch.inputs[ends + ahead, rows].index_copy(1, columns, y)
            outputs, state = model(read.unsqueeze(0), state)
            steps.append(y := outputs[0])
        answers = schema.in_units(y if schema.horizon > 1 else torch.stack(steps, 1)).cpu().numpy()
        result[batch.rows] = answers.reshape(len(told), -1, len(places))[:, :horizon]
    return result[..., 0] if sequences.flat else result


def _steps_to_come(schema: DataSchema, count: int, horizon: int, known: np.ndarray) -> np.ndarray:
    """What is known of the steps to forecast ``(N, horizon, C)``, zeros in the columns that are predicted.

    Steps are as far apart as in training.
    """
    steps = np.zeros((count, horizon, len(schema.inputs)))
    for place, column in enumerate(schema.inputs):
        if column.known:
            steps[..., place] = known[..., schema.known.index(column)]
        elif column.kind == "gap":
            steps[..., place] = schema.time_step or 0.0
    return steps


def _places(schema: DataSchema) -> list[int]:
    """The first of the numbers that the model reads for each input."""
    return [0, *accumulate(schema.widths)][:-1]
