"""The recurrent matrices of a model, as its forward pass uses them."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn.utils import parametrize

from evenflow.layers.recurrent import Recurrent
from evenflow.maps import Map

RECURRENT = "weight_hh"
LAYERS = (Recurrent, nn.RNNBase, nn.RNNCellBase)


def recurrent_weights(model: nn.Module, user: str) -> list[tuple[nn.Module, str]]:
    """Every module and name of a weight that begins with ``weight_hh``, with a map or without.

    A recurrent layer without any that is trained is refused: there a penalty would do nothing.
    """
    found = []
    for part in model.modules():
        mapped: Any = getattr(part, "parametrizations", {}) if parametrize.is_parametrized(part) else {}
        for name in [*(name for name, _ in part.named_parameters(recurse=False)), *mapped]:
            if name.startswith(RECURRENT):
                found.append((part, name))
    layers = [part for part in model.modules() if isinstance(part, LAYERS)]
    if layers and not any(_trained(part, name) for part, name in found):
        kind = parametrize.type_before_parametrizations(layers[0]).__name__
        raise ValueError(f"{user} needs a layer whose recurrent matrices are trained, got {kind}, whose are not")
    return found


def _trained(part: nn.Module, name: str) -> bool:
    if not parametrize.is_parametrized(part, name):
        return bool(getattr(part, name).requires_grad)
    chain: Any = part.parametrizations[name]  # type: ignore[index]
    return any(p.requires_grad for p in chain.parameters())


def matrices(model: nn.Module, user: str) -> list[Tensor]:
    """The recurrent matrices of `model`; where gates are stacked, one for each gate.

    A matrix is the composite one, as its map makes it. Torch's own recurrent layers count as ours do; in a model
    without recurrence it is the weights of its linear layers, each of them whole.
    """
    found: list[Tensor] = []
    for part, name in recurrent_weights(model, user):
        found += getattr(part, name).chunk(gates(part, name), -2)
    if not found:
        found = [part.weight for part in model.modules() if isinstance(part, nn.Linear)]
    if not found:
        raise ValueError(f"{user} needs a model with recurrent matrices or linear layers, got {type(model).__name__}")
    return found


def gates(part: nn.Module, name: str) -> int:
    """How many gates' matrices stand below each other in the recurrent weight ``part.name``."""
    if isinstance(part, Recurrent):
        stacked = {m.name + suffix: m.blocks for m in part.cell.matrices(part.hidden_size) for suffix in part.suffixes}
        return stacked.get(name, 1)
    made = map_of(part, name)  # which knows its size without making a matrix
    rows, columns = getattr(part, name).shape[-2:] if made is None else (made[0].rows, made[0].columns)
    # With a projection of the state (proj_size) torch's gates are taller than they are wide.
    height = part.hidden_size if isinstance(part, LAYERS) else columns
    return rows // height if rows % height == 0 else 1


def map_of(part: nn.Module, name: str) -> tuple[Map, list[Tensor]] | None:
    """The map on ``part.name`` and its numbers, or None where there is none."""
    if not parametrize.is_parametrized(part, name):
        return None
    chain: Any = part.parametrizations[name]  # type: ignore[index]
    if len(chain) != 1 or not isinstance(chain[0], Map):
        return None
    return chain[0], list(chain.parameters(recurse=False))


def spectra(model: nn.Module, user: str) -> list[Tensor] | None:
    """The singular values of all recurrent matrices where their maps have them at hand (``svd``, ``factorized``)."""
    weights = recurrent_weights(model, user)
    made = [map_of(part, name) if gates(part, name) == 1 else None for part, name in weights]
    if not weights or not all(found is not None and hasattr(found[0], "singular_values") for found in made):
        return None
    return [found[0].singular_values(*found[1]) for found in made if found is not None]  # type: ignore[operator]
