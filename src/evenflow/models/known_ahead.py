"""What a forecaster is told of the steps that it forecasts: its inputs that are known ahead."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from evenflow.models.data_column import DataColumn
from evenflow.models.data_schema import DataSchema
from evenflow.models.user_sequences import UserSequences


def known_schema(schema: DataSchema) -> DataSchema:
    """The description of a table of the steps to forecast: the inputs that are known ahead, at every step."""
    inputs = tuple(dataclasses.replace(column, known=False) for column in schema.known)
    shared = {name: getattr(schema, name) for name in ("sequence", "time", "time_unit", "time_step")}
    return DataSchema("regression", "every", inputs, (DataColumn("any"),), **shared)


def known_steps(known: Any, sequences: UserSequences, horizon: int) -> np.ndarray:
    """The inputs that are known ahead ``(N, horizon, K)`` at the steps after each of N sequences.

    Args:
        known: in a form of `UserSequences`, its columns those of ``schema.known``, with `horizon` steps or more for
            each sequence; of two tables sequences are found by their names. None if nothing is known ahead.
        sequences: what comes before these steps.
        horizon: how many steps.
    """
    columns = sequences.schema.known
    names = ", ".join(column.name for column in columns)
    if not columns:
        if known is not None:
            raise ValueError("known must be left out: this model reads no input that is known ahead")
        return np.empty((len(sequences), horizon, 0))
    if known is None:
        raise ValueError(f"known must hold {names} at the steps to forecast, which this model reads, got None")
    try:
        told = UserSequences(known, known_schema(sequences.schema))
    except ValueError as error:
        raise ValueError(f"known cannot be used: {error}") from error
    order = list(range(len(told)))
    if sequences.names is not None and told.names is not None:
        missing = [name for name in sequences.names if name not in told.names]
        if missing:
            raise ValueError(f"known must have rows of every sequence of X, it has none of {missing[0]!r}")
        order = [told.names.index(name) for name in sequences.names]
    if len(order) != len(sequences):
        raise ValueError(f"known must have as many sequences as X, {len(sequences)}, got {len(order)}")
    short = [row for row in order if told.lengths[row] < horizon]
    if short:
        raise ValueError(
            f"known must have {horizon} steps for each sequence, sequence {short[0]} has {told.lengths[short[0]]}"
        )
    return np.stack([told.array(row)[:horizon] for row in order])
