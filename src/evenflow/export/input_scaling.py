"""Mean and scale of each input, which an exported model subtracts and divides by."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Scaling = tuple[Tensor | Sequence[float], Tensor | Sequence[float]]


def read_scaling(scaling: Scaling | None, inputs: int | None) -> tuple[Tensor, Tensor] | None:
    """Mean and scale in double precision.

    Args:
        scaling: as the user gave it; None for inputs that are not scaled.
        inputs: the number of inputs; None for a model that reads symbols.
    """
    if scaling is None:
        return None
    if inputs is None:
        raise ValueError("scaling must be None for a model with a vocabulary, whose inputs are symbols")
    if not isinstance(scaling, tuple | list) or len(scaling) != 2:
        raise ValueError(f"scaling must be a pair (mean, scale), got {scaling!r}")
    mean, scale = (torch.as_tensor(v, dtype=torch.float64, device="cpu").detach() for v in scaling)
    for name, value in (("mean", mean), ("scale", scale)):
        if value.shape != (inputs,) or not bool(value.isfinite().all()):
            got = f"shape {tuple(value.shape)}" if value.shape != (inputs,) else str(value.tolist())
            raise ValueError(f"the {name} in scaling must be {inputs} finite numbers, one for each input, got {got}")
    if not bool((scale.float() > 0).all()):
        raise ValueError(f"the scale in scaling must be above 0 for every input, got {scale.tolist()}")
    return mean, scale
