"""Notices that the state of a layer that keeps norms has grown over batches that carry it on."""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.nn.utils import parametrize

from evenflow.cells import Elman, ScalarGated
from evenflow.maps import Map
from evenflow.runtime.torch_state import in_dispatch_mode, is_observed

if TYPE_CHECKING:
    from evenflow.layers.recurrent import Recurrent

EVERY = 64  # calls; a look at the state takes microseconds
GROWTH = 100.0


class CarriedNorm:
    """Looks at the initial state of every 64th call, and warns once per layer if it has grown a hundredfold.

    It looks at layers with an orthogonal or unitary map and a plain step, and on a CPU alone: elsewhere it would make
    the program wait. A state of at most one a unit, as after tanh, counts as small. A copy of a layer starts anew.
    """

    def __init__(self) -> None:
        self._calls, self._first, self._warned = 0, math.inf, False

    def __reduce__(self) -> Any:
        return CarriedNorm, ()

    def look(self, layer: Recurrent, hx: Any) -> None:
        self._calls += 1
        if self._calls % EVERY != 1 or self._warned:
            return
        h = hx if isinstance(hx, Tensor) else hx[0] if isinstance(hx, tuple | list) and hx else None
        if type(h) is not Tensor or not h.is_cpu or not h.numel() or in_dispatch_mode() or not keeps_norm(layer):
            return
        size = h.detach().float().square().mean().sqrt().item()
        if size > 0:
            self._first = min(self._first, size)
        if math.isfinite(size) and size > max(GROWTH * self._first, 1.0):
            self._warned, kind = True, parametrize.type_before_parametrizations(layer).__name__
            warnings.warn(
                f"the state carried from call to call has grown more than a hundredfold, to {size:.3g} a unit. The "
                f"matrix of this {kind} keeps the norm of the state, so a bias or a constant input adds up. If "
                "outputs grow as well, use bias=False, centred inputs, a gated system or a bounded activation",
                UserWarning,
                stacklevel=3,
            )


def keeps_norm(layer: Recurrent) -> bool:
    """Return True for a plain step with a map whose matrices are orthogonal or unitary."""
    core = layer.cell.core
    if not isinstance(core, Elman) or isinstance(core, ScalarGated) or is_observed():
        return False
    chains = getattr(layer, "parametrizations", {}).values()
    return any(isinstance(part, Map) and part.orthogonal for chain in chains for part in chain.children())
