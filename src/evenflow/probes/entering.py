"""What enters the recurrent layer inside a model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from evenflow.probes.recurrence import Layer, at_rest, need_sequences

Leaf = tuple[Tensor, PackedSequence | None]  # what entered the layer in one call, and the packing it came in


@contextmanager
def entering(layer: Layer) -> Iterator[list[Leaf]]:
    """What enters the layer, call by call, as tensors that gradients end in."""
    found: list[Leaf] = []

    def enter(module: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        name = "input"
        given = arguments[0] if arguments else options[name]
        leaf = (given.data if isinstance(given, PackedSequence) else given).detach().requires_grad_()
        replaced = given._replace(data=leaf) if isinstance(given, PackedSequence) else leaf
        found.append((leaf, given if isinstance(given, PackedSequence) else None))
        return ((replaced, *arguments[1:]), options) if arguments else (arguments, options | {name: replaced})

    handle = layer.register_forward_pre_hook(enter, with_kwargs=True)
    try:
        yield found
    finally:
        handle.remove()


def need_calls(model: nn.Module, leaves: list[Leaf]) -> None:
    """Refuse a model that left its recurrent layer alone, or gave it no sequence."""
    if not leaves:
        raise ValueError(f"model must call its recurrent layer, got {type(model).__name__} that did not")
    need_sequences("inputs", leaves[0][0])


def entered(model: nn.Module, layer: Layer, inputs: Any, lengths: Tensor | None = None) -> list[Leaf]:
    """What enters the layer when the model is run on these inputs, call by call and without gradients."""
    with at_rest(model), entering(layer) as leaves, torch.no_grad():
        model(inputs) if lengths is None else model(inputs, lengths=lengths)
    need_calls(model, leaves)
    return [(leaf.detach(), packed) for leaf, packed in leaves]


def joined(layer: Layer, leaves: list[Leaf]) -> Tensor:
    """What entered, ``(T, B, I)``, none of it packed; several calls are taken for pieces of one batch of sequences."""
    pieces = [leaf for leaf, _ in leaves]
    pieces = [p.unsqueeze(1) if p.dim() == 2 else p.transpose(0, 1) if layer.batch_first else p for p in pieces]
    if len(batches := sorted({p.shape[1] for p in pieces})) > 1:
        raise ValueError(
            f"model must call its recurrent layer with one batch, piece by piece, got batches of {batches}"
        )
    return torch.cat(pieces)
