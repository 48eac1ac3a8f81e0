"""Record the inputs of the recurrent layer inside a model, call by call, as leaves for gradients."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from evenflow.probes.model_layer import Layer, eval_mode, need_sequences, outputs_of

LayerInput = tuple[Tensor, PackedSequence | None]  # the tensor of one call, and the packed sequence that held it


@contextmanager
def layer_inputs(layer: nn.Module) -> Iterator[list[LayerInput]]:
    """Inside the block, replace the input of each call of the layer by a detached leaf and list these leaves."""
    inputs: list[LayerInput] = []

    def replace(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        x = args[0] if args else kwargs["input"]
        packed = x if isinstance(x, PackedSequence) else None
        leaf = (x if packed is None else packed.data).detach().requires_grad_()
        inputs.append((leaf, packed))
        x = leaf if packed is None else packed._replace(data=leaf)
        return ((x, *args[1:]), kwargs) if args else (args, kwargs | {"input": x})

    handle = layer.register_forward_pre_hook(replace, with_kwargs=True)
    try:
        yield inputs
    finally:
        handle.remove()


def need_calls(model: nn.Module, inputs: list[LayerInput]) -> None:
    """Raise a ValueError if the model did not call its recurrent layer, or called it without sequences."""
    if not inputs:
        raise ValueError(f"model must call its recurrent layer, got {type(model).__name__} that did not")
    need_sequences("inputs", inputs[0][0])


def run_for_inputs(model: nn.Module, layer: Layer, inputs: Any, lengths: Tensor | None = None) -> list[LayerInput]:
    """Run the model on `inputs` without gradients and return the inputs of its layer, call by call."""
    with eval_mode(model), layer_inputs(layer) as calls, torch.no_grad():
        outputs_of(model, inputs, lengths)
    need_calls(model, calls)
    return [(leaf.detach(), packed) for leaf, packed in calls]


def concatenate(layer: Layer, calls: list[LayerInput]) -> Tensor:
    """The inputs of several calls ``(T, B, I)``, as consecutive pieces of one batch of sequences; none is packed."""
    pieces = [leaf for leaf, _ in calls]
    pieces = [p.unsqueeze(1) if p.dim() == 2 else p.transpose(0, 1) if layer.batch_first else p for p in pieces]
    if len(batches := sorted({p.shape[1] for p in pieces})) > 1:
        raise ValueError(
            f"model must call its recurrent layer with one batch, piece by piece, got batches of {batches}"
        )
    return torch.cat(pieces)
