"""Whether a layer is still as it was when something was computed for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evenflow.layers.weight_slots import WeightSlots
from evenflow.maps.last_matrix import MapSettings

if TYPE_CHECKING:
    from evenflow.layers.recurrent import Recurrent


class LayerState:
    """The cell of a layer, its settings, those of its maps, and where its weights are, at one moment.

    Attributes:
        tensors: the weights and buffers.
    """

    def __init__(self, layer: Recurrent) -> None:
        self._slots, self._cell = WeightSlots(layer), layer.cell
        self._revisions = layer.cell.revision, layer.cell.core.revision
        self._settings = [MapSettings(chain) for chain in getattr(layer, "parametrizations", {}).values()]
        self.tensors = self._slots.tensors

    def is_current(self, layer: Recurrent) -> bool:
        """Return True while the layer has this cell, these settings, and these tensors at their addresses."""
        cell = layer.cell
        if cell is not self._cell or (cell.revision, cell.core.revision) != self._revisions:
            return False
        return self._slots.are_unchanged() and all(settings.are_unchanged() for settings in self._settings)
