"""Attach a map to a weight of any torch module, and detach it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from evenflow.maps.blocks import Blocks, Flattened
from evenflow.maps.exponential import Exponential
from evenflow.maps.free import Free
from evenflow.maps.make_map import MAPS
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
    """Replace ``module.name`` by the matrix of `map`, which is trained through the free numbers of the map.

    Args:
        module: any module. A weight of more than two dimensions, as in a convolution, is a matrix ``(out, rest)``.
        name: of the weight, such as ``"weight"`` or ``"weight_hh_l0"``.
        map: a map of the size of the weight, or of one block. A map serves one weight.
        blocks: for a weight of stacked gates, the gates that get a matrix of the map, by index or by torch's letter
            (``"rzn"`` for GRU, ``"ifgo"`` for LSTM; evenflow's GRU has ``"rz"`` in weight_hh and n in weight_hh_n). The
            others stay free. Default: the whole weight is one matrix.
        generator: source of the initial numbers. Default: torch's global generator.

    The weight is initialised with ``map(*map.start(generator))``; assign to ``module.name`` afterwards for another
    value. With `Free` it stays a plain parameter.

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
    if not isinstance(map, Map):
        kind = MAPS.get(map, Exponential) if isinstance(map, str) else Exponential
        example = f"evenflow.maps.{kind.__name__}({weight.shape[-1]})"
        raise ValueError(f"map must be a map with its size, such as {example}, got {map!r}")
    if parametrize.is_parametrized(module, name):
        raise ValueError(f"{type(module).__name__}.{name} has a map already; detach it first")
    fitted = _fit(map, module, name, weight, blocks)
    with torch.device("cpu"):  # initial numbers are drawn on the CPU, whatever the default device
        raw = fitted.start_beside(weight, generator) if isinstance(fitted, Blocks) else fitted.start(generator)
    raw = tuple(r.to(weight.device, weight.dtype) for r in raw)
    if isinstance(map, Free):
        with torch.no_grad():
            weight.copy_(fitted(*raw))
        return module
    fitted.to(weight.device)
    return attach_fitted(module, name, fitted, raw)


def attach_fitted(module: nn.Module, name: str, map: Map, raw: tuple[Tensor, ...]) -> nn.Module:
    """Replace ``module.name`` by the matrix of a map of its size, with these numbers."""
    # parametrize calls right_inverse for the initial numbers, which are known here without computing an inverse.
    map.right_inverse = lambda _: raw[0] if len(raw) == 1 else raw  # type: ignore[method-assign,assignment]
    try:
        parametrize.register_parametrization(module, name, map, unsafe=True)
    finally:
        del map.right_inverse
    return module


def detach(module: nn.Module, name: str) -> nn.Module:
    """Remove the map of ``module.name`` and leave its matrix as a plain parameter.

    >>> linear = attach(nn.Linear(64, 64), "weight", Exponential(64))
    >>> type(detach(linear, "weight").weight)
    <class 'torch.nn.parameter.Parameter'>
    """
    if not parametrize.is_parametrized(module, name):
        raise ValueError(f"{type(module).__name__}.{name} has no map attached")
    weight = getattr(module, name).detach()
    _unshare_class(module)
    # torch would write the matrix into the parameter of the numbers: impossible for a complex matrix of real numbers.
    complex_of_real = weight.is_complex() and module.parametrizations[name].is_tensor  # type: ignore[index,union-attr]
    parametrize.remove_parametrizations(module, name, leave_parametrized=not complex_of_real)
    if complex_of_real:
        setattr(module, name, nn.Parameter(weight))
    return module


def _unshare_class(module: nn.Module) -> None:
    """Give the module a class of its own: torch removes the weight's property from the class, which copies share."""
    shared = type(module)
    module.__class__ = type(shared.__name__, shared.__bases__, dict(shared.__dict__))


def parameter_groups(module: nn.Module, lr: float, map_lr: float | None = None) -> list[dict[str, object]]:
    """Return the parameters of a module in groups for an optimiser, with the keys ``params``, ``lr`` and ``stiefel``.

    Args:
        lr: learning rate of all parameters but those of maps.
        map_lr: learning rate of the numbers of maps. Default: `lr`. The spectrum of a `Factorized` map gets
            ``map_lr / 2r``.

    The bases of a `Factorized` map are in a group with ``stiefel=True``, for an optimiser that keeps their columns
    orthonormal.

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
    """Yield each raw parameter of the attached maps, with its factor of the learning rate and its `stiefel` flag.

    >>> linear = attach(nn.Linear(64, 64), "weight", SVD(64))
    >>> [tuple(raw.shape) for raw, factor, stiefel in mapped(linear)]
    [(2080,), (2080,), (64,)]
    """
    for part in module.modules():
        if isinstance(part, parametrize.ParametrizationList) and len(part) == 1 and isinstance(part[0], Map):
            yield from zip(part.parameters(recurse=False), part[0].rates, part[0].stiefel, strict=True)


def move_bases(module: nn.Module, step: int) -> None:
    """Do what maps ask for after update `step`.

    Numbers that an update has moved out of a bound are projected onto it (``bound="clip"``), and the bases of maps that
    have one, such as `MovingExponential`, are moved if they are due.

    Args:
        step: how many updates there have been.

    >>> layer = attach(nn.Linear(8, 8), "weight", MovingExponential(8, every=10))
    >>> for step in range(1, 31):  # after each update
    ...     move_bases(layer, step)
    """
    for part in module.modules():
        if isinstance(part, parametrize.ParametrizationList) and len(part) == 1 and isinstance(part[0], Map):
            part[0].project(*part.parameters(recurse=False))
            every = part[0].moves_every
            if every is not None and step % every == 0:
                part[0].move(*part.parameters(recurse=False))


def map_of(module: nn.Module, name: str) -> tuple[Map, list[Tensor]] | None:
    """Return the map of ``module.name`` and its numbers, or None if it has no map.

    >>> linear = attach(nn.Linear(64, 64), "weight", Exponential(64))
    >>> map, raw = map_of(linear, "weight")
    >>> type(map).__name__, map_of(linear, "bias")
    ('Exponential', None)
    """
    if not parametrize.is_parametrized(module, name):
        return None
    chain: Any = module.parametrizations[name]  # type: ignore[index]
    if len(chain) != 1 or not isinstance(chain[0], Map):
        return None
    return chain[0], list(chain.parameters(recurse=False))


def _fit(map: Map, module: nn.Module, name: str, weight: Tensor, blocks: str | Sequence[int | str] | None) -> Map:
    """Return a map of the whole weight: `map`, or `Blocks` or `Flattened` of it."""
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
    if (cell := getattr(module, "cell", None)) is not None:  # a layer of evenflow
        gates = cell.core.letters.get(name.rsplit("_l", 1)[0], "")
    known: dict[int | str, int] = {letter: i for i, letter in enumerate(gates)}
    known.update({i: i for i in range(count)})
    chosen = [known.get(block, -1) for block in blocks]
    if not chosen or -1 in chosen or len(set(chosen)) < len(chosen):
        letters = f" or letters of {gates!r}" if gates else ""
        raise ValueError(f"blocks must be different indices from 0 to {count - 1}{letters}, got {blocks!r}")
    return Blocks(map, count, tuple(sorted(chosen)))
