"""The recurrent matrices of a model, gate by gate, as its forward pass uses them."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn.utils import parametrize

from evenflow.layers.recurrent import Recurrent
from evenflow.maps import map_of
from evenflow.maps.singular_values import WithSingularValues

LAYER_TYPES = (Recurrent, nn.RNNBase, nn.RNNCellBase)


def matrices(model: nn.Module, user: str) -> list[Tensor]:
    """The recurrent matrices of `model`, one for each gate, with maps applied.

    Torch's recurrent layers count too. Of a model without recurrence these are the whole weights of its linear layers.

    Args:
        model: any module.
        user: who needs the matrices, for the ValueError that is raised if there are none.
    """
    result: list[Tensor] = []
    for module, name in _recurrent_weights(model, user):
        result += getattr(module, name).chunk(_gates(module, name), -2)
    result = result or [module.weight for module in model.modules() if isinstance(module, nn.Linear)]
    if not result:
        raise ValueError(f"{user} needs a model with recurrent matrices or linear layers, got {type(model).__name__}")
    return result


def singular_values(model: nn.Module, user: str) -> list[Tensor] | None:
    """The singular values of all recurrent matrices if their maps have them as parameters (svd, factorized)."""
    weights = _recurrent_weights(model, user)
    values = []
    for module, name in weights:
        mapped = map_of(module, name)
        if mapped is None or not isinstance(mapped[0], WithSingularValues) or _gates(module, name) > 1:
            return None
        values.append(mapped[0].singular_values(*mapped[1]))
    return values or None


def _recurrent_weights(model: nn.Module, user: str) -> list[tuple[nn.Module, str]]:
    """Every module and name of a weight that starts with ``weight_hh``, with a map or without.

    A recurrent layer without any trained one raises a ValueError: a penalty would have no effect on it.
    """
    weights = []
    for module in model.modules():
        mapped: Any = getattr(module, "parametrizations", {}) if parametrize.is_parametrized(module) else {}
        names = [*(name for name, _ in module.named_parameters(recurse=False)), *mapped]
        weights += [(module, name) for name in names if name.startswith("weight_hh")]
    layers = [module for module in model.modules() if isinstance(module, LAYER_TYPES)]
    if layers and not any(_is_trained(module, name) for module, name in weights):
        kind = parametrize.type_before_parametrizations(layers[0]).__name__
        raise ValueError(f"{user} needs a layer whose recurrent matrices are trained, got {kind}, whose are not")
    return weights


def _is_trained(module: nn.Module, name: str) -> bool:
    if not parametrize.is_parametrized(module, name):
        return bool(getattr(module, name).requires_grad)
    chain: Any = module.parametrizations[name]  # type: ignore[index]
    return any(p.requires_grad for p in chain.parameters())


def _gates(module: nn.Module, name: str) -> int:
    """How many gates' matrices are stacked in the recurrent weight ``module.name``."""
    if isinstance(module, Recurrent):
        blocks = {m.name + s: m.blocks for m in module.cell.matrices(module.hidden_size) for s in module.suffixes}
        return blocks.get(name, 1)
    chain = map_of(module, name)  # a map knows its size without computing the matrix
    rows, columns = getattr(module, name).shape[-2:] if chain is None else (chain[0].rows, chain[0].columns)
    # With a projection of the state (proj_size) torch's gates have more rows than columns.
    height = module.hidden_size if isinstance(module, LAYER_TYPES) else columns
    return rows // height if rows % height == 0 else 1
