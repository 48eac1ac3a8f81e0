"""Clipping the gradient by a recurrent matrix before the gradient of the map that makes it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from evenflow.layers.recurrent import Recurrent
from evenflow.maps import Map

MAPPED = "mapped"  # the scope of clipping


def free_matrices(model: nn.Module) -> list[nn.Parameter]:
    """The trained recurrent matrices that could have a map and have none, whose gradients are clipped as they are.

    Raises:
        ValueError: no layer of the model has a recurrent matrix that takes a map.
    """
    return [getattr(layer, name) for layer, name in _matrices(model) if not _maps(layer, name)]


@contextmanager
def clipped_matrices(model: nn.Module, norm: float | None, value: float | None) -> Iterator[None]:
    """Clip ∂L/∂W of every recurrent matrix W that a map makes inside the block, in the backward pass.

    Args:
        norm: the largest norm of one matrix's gradient; None does not clip.
        value: the largest absolute value of an entry, clipped first.
    """
    with ExitStack() as stack:
        for layer, name in _matrices(model):
            for map in _maps(layer, name):
                hook = map.register_forward_hook(partial(_clip_gradient, norm=norm, value=value))
                stack.callback(hook.remove)
        yield


def _matrices(model: nn.Module) -> list[tuple[Recurrent, str]]:
    """Layer and name of each trained recurrent matrix that takes a map: of a GRU the candidate's alone."""
    found = [
        (layer, matrix.name + suffix)
        for layer in model.modules()
        if isinstance(layer, Recurrent)
        for suffix in layer.suffixes
        for matrix in layer.cell.matrices(layer.hidden_size)
        if (matrix.mapped or _maps(layer, matrix.name + suffix)) and _is_trained(layer, matrix.name + suffix)
    ]
    if not found:
        raise ValueError(
            f"clip_scope {MAPPED!r} needs a layer with a trained recurrent matrix that takes a map, got a model "
            "with none"
        )
    return found


def _is_trained(layer: nn.Module, name: str) -> bool:
    if not parametrize.is_parametrized(layer, name):
        return bool(getattr(layer, name).requires_grad)
    chain: Any = layer.parametrizations[name]  # type: ignore[index]
    return any(p.requires_grad for p in chain.parameters())  # without computing the matrix


def _maps(layer: nn.Module, name: str) -> list[Map]:
    """The map that makes ``layer.name``, or nothing."""
    if not parametrize.is_parametrized(layer, name):
        return []
    chain: Any = layer.parametrizations[name]  # type: ignore[index]
    return [part for part in chain if isinstance(part, Map)][-1:]


def _clip_gradient(_: nn.Module, __: Any, matrix: Tensor, *, norm: float | None, value: float | None) -> None:
    """A forward hook that clips the gradient of the matrix once it is complete."""
    if matrix.requires_grad:
        matrix.register_hook(partial(_clipped, norm=norm, value=value))


def _clipped(gradient: Tensor, *, norm: float | None, value: float | None) -> Tensor:
    if value is not None:
        gradient = gradient.clamp(-value, value)
    if norm is not None:
        measured = torch.linalg.vector_norm(gradient, dim=(-2, -1), keepdim=True)
        gradient = gradient * (norm / (measured + 1e-6)).clamp(max=1.0)
    return gradient
