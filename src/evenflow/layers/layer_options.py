"""Checks of the options that all recurrent layers share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from evenflow.checks import number, one_of, whole_number
from evenflow.scan import ENGINES, STORAGES

if TYPE_CHECKING:
    from evenflow.layers.recurrent import Recurrent

INITIAL_STATES = ("zero", "learned")


def check_layer_options(
    layer: Recurrent,
    input_size: int,
    hidden_size: int,
    num_layers: int,
    bias: bool,
    batch_first: bool,
    dropout: float,
    bidirectional: bool,
    initial_state: str,
    input_range: float | None,
    engine: str,
    checkpoint_every: int | None,
    storage: str | None,
    generator: torch.Generator | None,
    dtype: torch.dtype | None,
) -> None:
    """Raise a ValueError that names the first option of a layer with an impossible value; see `Recurrent`."""
    for name, value in (("input_size", input_size), ("hidden_size", hidden_size), ("num_layers", num_layers)):
        whole_number(name, value, 1)
    for name, value in (("bias", bias), ("batch_first", batch_first), ("bidirectional", bidirectional)):
        if value not in (True, False):
            raise ValueError(f"{name} must be True or False, got {value!r}")
    number("dropout", dropout)
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout must be at least 0 and below 1, got {dropout}")
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise ValueError(f"dtype must be a floating point torch.dtype, got {dtype!r}")
    if generator is not None and not isinstance(generator, torch.Generator):
        raise ValueError(f"generator must be a torch.Generator, got {generator!r}")
    one_of("initial_state", initial_state, INITIAL_STATES)
    if input_range is not None:
        number("input_range", input_range)
        if not 1e-30 <= input_range <= 1e30:  # which single precision holds
            raise ValueError(f"input_range must be a number from 1e-30 to 1e30, got {input_range}")
    one_of("engine", engine, ENGINES)
    if checkpoint_every is not None:
        whole_number("checkpoint_every", checkpoint_every, 1)
    if storage is not None:
        one_of("storage", storage, STORAGES)
        if checkpoint_every is not None or not layer.layers_run_in_turn:
            where = "with checkpoint_every" if checkpoint_every else f"for {type(layer).__name__}"
            raise ValueError(f"storage must be None {where}, got {storage!r}")
