"""Means and scales of inputs and outputs, which an exported model holds so that it works in the units of the data."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from evenflow.layers import Recurrent
from evenflow.models import SequenceModel

Scaling = tuple[Tensor | Sequence[float], Tensor | Sequence[float]]


def input_scaling(
    model: SequenceModel | Recurrent, layer: Recurrent, scaling: Scaling | None
) -> tuple[Tensor, Tensor] | None:
    """Mean and scale of each input in double precision; None if inputs are not scaled."""
    if scaling is None:
        return None
    if isinstance(model, SequenceModel) and model.embedding is not None:
        raise ValueError("scaling must be None for a model with a vocabulary, whose inputs are symbols")
    return _read("scaling", scaling, raw_inputs(model, layer), "input")


def raw_inputs(model: SequenceModel | Recurrent, layer: Recurrent) -> int:
    """How many numbers a model reads at a step; a column with an embedding is one."""
    columns = model.columns if isinstance(model, SequenceModel) else None
    return layer.input_size - (0 if columns is None else columns.added)


def scaled_readout(model: SequenceModel | Recurrent, scaling: Scaling | None, softmax: bool) -> nn.Linear | None:
    """The readout of a model whose outputs are ``scale * y + mean``, for a model with outputs y; None for a layer."""
    if not isinstance(model, SequenceModel):
        if scaling is not None:
            raise ValueError("output_scaling must be None for a layer, which has no readout")
        return None
    if scaling is None:
        return model.output
    if softmax:
        raise ValueError("output_scaling must be None with softmax, whose outputs are probabilities")
    mean, scale = _read("output_scaling", scaling, model.output.out_features, "output")
    weight, bias = model.output.weight, model.output.bias
    scaled = nn.utils.skip_init(nn.Linear, *reversed(weight.shape), dtype=weight.dtype)
    scaled.weight.data = (weight.detach().cpu().double() * scale.unsqueeze(-1)).to(weight.dtype)
    scaled.bias.data = (bias.detach().cpu().double() * scale + mean).to(weight.dtype)
    return scaled


def _read(argument: str, scaling: Scaling, count: int, what: str) -> tuple[Tensor, Tensor]:
    if not isinstance(scaling, tuple | list) or len(scaling) != 2:
        raise ValueError(f"{argument} must be a pair (mean, scale), got {scaling!r}")
    mean, scale = (torch.as_tensor(v, dtype=torch.float64, device="cpu").detach() for v in scaling)
    for name, value in (("mean", mean), ("scale", scale)):
        if value.shape != (count,) or not bool(value.isfinite().all()):
            got = f"shape {tuple(value.shape)}" if value.shape != (count,) else str(value.tolist())
            numbers = f"{count} finite numbers, one for each {what}"
            raise ValueError(f"the {name} in {argument} must be {numbers}, got {got}")
    if not bool((scale.float() > 0).all()):
        raise ValueError(f"the scale in {argument} must be above 0 for every {what}, got {scale.tolist()}")
    return mean, scale
