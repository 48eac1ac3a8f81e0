"""The recurrent matrices of a model, as its forward pass uses them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn
from torch.nn.utils import parametrize

from evenflow.maps import Map

RECURRENT = "weight_hh"


def recurrent_weights(model: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """Every module and name of a weight that begins with ``weight_hh``, with a map or without."""
    for part in model.modules():
        mapped: Any = getattr(part, "parametrizations", {}) if parametrize.is_parametrized(part) else {}
        for name in [*(name for name, _ in part.named_parameters(recurse=False)), *mapped]:
            if name.startswith(RECURRENT):
                yield part, name


def matrices(model: nn.Module, user: str) -> list[Tensor]:
    """The recurrent matrices of `model`; where gates are stacked, one for each gate.

    A matrix is the composite one, as its map makes it. Torch's own recurrent layers count as ours do; in a model
    without recurrence it is the weights of its linear layers.
    """
    weights = [getattr(part, name) for part, name in recurrent_weights(model)]
    if not weights:
        weights = [part.weight for part in model.modules() if isinstance(part, nn.Linear)]
    if not weights:
        raise ValueError(f"{user} needs a model with recurrent matrices or linear layers, got {type(model).__name__}")
    found: list[Tensor] = []
    for weight in weights:
        rows, columns = weight.shape[-2:]
        found += weight.split(columns, -2) if rows % columns == 0 else [weight]
    return found


def map_of(part: nn.Module, name: str) -> tuple[Map, list[Tensor]] | None:
    """The map on ``part.name`` and its numbers, or None where there is none."""
    if not parametrize.is_parametrized(part, name):
        return None
    chain: Any = part.parametrizations[name]  # type: ignore[index]
    if len(chain) != 1 or not isinstance(chain[0], Map):
        return None
    return chain[0], list(chain.parameters(recurse=False))
