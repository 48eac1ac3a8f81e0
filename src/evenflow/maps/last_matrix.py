"""The last matrix that a map computed without gradients, for calls in which nothing has changed since."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from evenflow.runtime.torch_state import plain_tensors

KINDS = (bool, int, float, str, tuple, type(None))


class LastMatrix:
    """Keeps the matrix of the last call without gradients, with a copy of everything that it was computed from.

    The numbers are compared by value: a write through ``p.data``, which torch does not count as a change, is seen as
    well. A comparison on a GPU would wait for the GPU, so only matrices on a CPU are kept. Copies and pickles of a map
    start without one.
    """

    def __init__(self) -> None:
        self._last: tuple[MapSettings, list[Tensor], Tensor] | None = None  # in one piece, for threads

    def __reduce__(self) -> Any:
        return LastMatrix, ()

    def get(self, map: nn.Module, raw: tuple[Tensor, ...], compute: Callable[..., Tensor]) -> Tensor:
        """Return a copy of the matrix kept, or that of ``compute(*raw)``."""
        if torch.is_grad_enabled() and any(r.requires_grad for r in raw):
            return compute(*raw)
        read = [*raw, *map.buffers()]
        if not plain_tensors(read) or not all(value.device.type == "cpu" for value in read):
            return compute(*raw)
        last = self._last
        if last is None or not last[0].are_unchanged() or not _same(last[1], read):
            with torch.no_grad():
                copies = [value.detach().clone() for value in read]
                last = self._last = (MapSettings(map), copies, compute(*raw).detach())
        return last[2].clone()  # the caller may write to its copy


class MapSettings:
    """Everything but tensors that the matrix of a map depends on, at one moment."""

    def __init__(self, map: nn.Module) -> None:
        self._parts = [(part, part.extra_repr()) for part in map.modules()]
        dictionaries = [vars(part) for part, _ in self._parts]
        public = [(names, name, value) for names in dictionaries for name, value in names.items() if name[0] != "_"]
        self._slots = [slot for slot in public if slot[1] != "training" and isinstance(slot[2], KINDS)]

    def are_unchanged(self) -> bool:
        """Return True while no setting has been assigned; `extra_repr` shows those of objects within a map."""
        for names, name, value in self._slots:
            if names.get(name) is not value:
                return False
        return all(part.extra_repr() == shown for part, shown in self._parts)


def _same(kept: list[Tensor], now: list[Tensor]) -> bool:
    if len(kept) != len(now):
        return False
    return all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(kept, now, strict=True))
