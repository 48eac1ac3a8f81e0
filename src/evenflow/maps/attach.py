"""Put a map on a weight of any torch module, and take it off again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from evenflow.maps.blocks import Blocks, Flattened
from evenflow.maps.free import Free
from evenflow.maps.map import Map

# The order in which torch stacks the gates of a weight.
GATES = {nn.GRU: "rzn", nn.GRUCell: "rzn", nn.LSTM: "ifgo", nn.LSTMCell: "ifgo"}


def attach(
    module: nn.Module,
    name: str,
    map: Map,
    *,
    blocks: str | Sequence[int | str] | None = None,
    generator: torch.Generator | None = None,
) -> nn.Module:
    """Make ``module.name`` the matrix of `map`, trained through the map's free numbers.

    Args:
        module: any module; a weight of more than two dimensions (a convolution's) is taken as ``(out, rest)``.
        name: of the weight, such as ``"weight"`` or ``"weight_hh_l0"``.
        map: a map of the weight's size, or of one block's. One map serves one weight.
        blocks: for a weight of stacked gates: which of them get a matrix of their own, by index or by torch's letter
            (``"rzn"`` for GRU, ``"ifgo"`` for LSTM). The others stay free.
        generator: for the starting value.

    The weight starts at ``map(*map.start(generator))``; assign to ``module.name`` afterwards to start elsewhere. With
    `Free` it stays a plain parameter.

    >>> layer = attach(nn.Linear(8, 8), "weight", Exponential(8))
    >>> bool(residual(layer.weight) < 1e-5)
    True
    >>> gru = attach(nn.GRU(3, 8), "weight_hh_l0", Exponential(8), blocks="n")

    Note, torch's recurrent modules read a weight several times per call; ``with parametrize.cached():`` around the call
    computes its matrix once.
    """
    weight = getattr(module, name, None)
    if not isinstance(weight, Tensor):
        raise ValueError(f"{type(module).__name__} has no weight named {name!r} to attach a map to")
    if parametrize.is_parametrized(module, name):
        raise ValueError(f"{type(module).__name__}.{name} has a map already; detach it first")
    fitted = _fit(map, module, name, weight, blocks)
    raw = fitted.start_beside(weight, generator) if isinstance(fitted, Blocks) else fitted.start(generator)
    raw = tuple(r.to(weight.device, weight.dtype) for r in raw)
    if isinstance(map, Free):
        with torch.no_grad():
            weight.copy_(fitted(*raw))
        return module
    fitted.to(weight.device)
    # parametrize asks right_inverse for the first numbers; a map knows them without solving for them.
    fitted.right_inverse = lambda _: raw[0] if len(raw) == 1 else raw  # type: ignore[method-assign,assignment]
    try:
        parametrize.register_parametrization(module, name, fitted, unsafe=True)
    finally:
        del fitted.right_inverse
    return module


def detach(module: nn.Module, name: str) -> nn.Module:
    """Take the map off ``module.name`` and leave the matrix it had as a plain parameter."""
    if not parametrize.is_parametrized(module, name):
        raise ValueError(f"{type(module).__name__}.{name} has no map attached")
    weight = getattr(module, name).detach()
    _with_a_class_of_its_own(module)
    # torch would put the matrix where the numbers were, which fails for a complex matrix of real numbers.
    complex_of_real = weight.is_complex() and module.parametrizations[name].is_tensor  # type: ignore[index,union-attr]
    parametrize.remove_parametrizations(module, name, leave_parametrized=not complex_of_real)
    if complex_of_real:
        setattr(module, name, nn.Parameter(weight))
    return module


def _with_a_class_of_its_own(module: nn.Module) -> None:
    """A copy of a module shares its class, and torch takes the map's property from the class: from both of them."""
    shared = type(module)
    module.__class__ = type(shared.__name__, shared.__bases__, dict(shared.__dict__))


def parameter_groups(module: nn.Module, lr: float, map_lr: float | None = None) -> list[dict[str, object]]:
    """The module's parameters in groups for an optimiser, each with its learning rate and whether it is Stiefel.

    Most are in one group with `lr`, those of maps in one with `map_lr`, which is `lr` by default. The spectrum of a
    `Factorized` map has ``map_lr / 2r``; its bases are in a group marked ``stiefel``, for an optimiser that keeps their
    columns orthonormal.

    >>> layer = attach(nn.Linear(8, 8), "weight", Factorized(8, margin=0.1))
    >>> [(group["lr"], group["stiefel"]) for group in parameter_groups(layer, 0.01)]
    [(0.01, False), (0.01, True), (0.05, False)]
    """
    maps = lr if map_lr is None else map_lr
    special = {id(p): (maps * rate, stiefel) for p, rate, stiefel in mapped(module)}
    groups: dict[tuple[float, bool], list[nn.Parameter]] = {}
    for p in module.parameters():
        groups.setdefault(special.get(id(p), (lr, False)), []).append(p)
    return [{"params": ps, "lr": rate, "stiefel": stiefel} for (rate, stiefel), ps in groups.items()]


def mapped(module: nn.Module) -> Iterator[tuple[nn.Parameter, float, bool]]:
    """Every raw parameter of an attached map, with its share of the learning rate and whether it is Stiefel."""
    for part in module.modules():
        if isinstance(part, parametrize.ParametrizationList) and len(part) == 1 and isinstance(part[0], Map):
            yield from zip(part.parameters(recurse=False), part[0].rates, part[0].stiefel, strict=True)


def _fit(map: Map, module: nn.Module, name: str, weight: Tensor, blocks: str | Sequence[int | str] | None) -> Map:
    """The map for the whole weight: itself, or wrapped for gate blocks or for more than two dimensions."""
    what = f"{type(module).__name__}.{name}"
    if weight.dim() < 2:
        raise ValueError(f"{what} must have at least two dimensions to be a matrix, got shape {tuple(weight.shape)}")
    rows, columns = weight.shape[0], weight[0].numel()
    if blocks is None:
        if (map.rows, map.columns) != (rows, columns):
            hint = "; choose its gates with blocks=" if columns == map.columns and rows % map.rows == 0 else ""
            raise ValueError(f"map makes {map.rows} x {map.columns} matrices but {what} is {rows} x {columns}{hint}")
        return map if weight.dim() == 2 else Flattened(map, tuple(weight.shape))
    if weight.dim() != 2 or columns != map.columns or rows % map.rows:
        raise ValueError(f"{what} is {rows} x {columns}, which is no stack of {map.rows} x {map.columns} blocks")
    count = rows // map.rows
    gates = next((letters for kind, letters in GATES.items() if isinstance(module, kind)), "")
    known: dict[int | str, int] = {letter: i for i, letter in enumerate(gates)}
    known.update({i: i for i in range(count)})
    chosen = [known.get(block, -1) for block in blocks]
    if not chosen or -1 in chosen or len(set(chosen)) < len(chosen):
        letters = f" or letters of {gates!r}" if gates else ""
        raise ValueError(f"blocks must be different indices from 0 to {count - 1}{letters}, got {blocks!r}")
    return Blocks(map, count, tuple(sorted(chosen)))
