"""Half precision as a way to store numbers: a recurrence on them runs in single precision all the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

STORAGES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
HALF = tuple(STORAGES.values())


def widened(run: Callable[..., Any], likes: Sequence[int]) -> Callable[..., Any]:
    """`run` in float32, or float64 where others are, wherever some of its tensors are in half precision.

    Args:
        likes: for each result the argument whose dtype it is stored in.
    """

    def wide(*given: Any) -> Any:
        if not any(isinstance(v, Tensor) and v.dtype in HALF for v in given):
            return run(*given)
        double = any(isinstance(v, Tensor) and v.dtype == torch.float64 for v in given)
        full = torch.float64 if double else torch.float32
        results = run(*(v.to(full) if isinstance(v, Tensor) and v.dtype in HALF else v for v in given))
        # Of what is not there the gradient is empty, in no dtype that matters.
        stored = (given[like] for like in likes)
        return tuple(
            r.to(v.dtype) if v is not None and r.is_floating_point() else r
            for r, v in zip(results, stored, strict=True)
        )

    return wide
