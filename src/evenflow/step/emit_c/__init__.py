"""A step's passes over all time steps as C, around the register-tiled product of ``scan/c``.

Each thread owns some rows of the batch for all steps. A step is a few phases: products of all its rows, then passes
over the units of each row, one loop for each width of blocks. The text is the same for every size; a call brings the
widths. It is written for ``REAL`` and ``NAME``, see ``scan/c/head.h``.
"""

from evenflow.step.emit_c.c_backward import CBackward
from evenflow.step.emit_c.c_forward import CForward
from evenflow.step.emit_c.c_sizes import number_names, tensor_names
from evenflow.step.places import Places

__all__ = ["CBackward", "CForward", "number_names", "tensor_names", "text"]


def text(places: Places, backward: bool) -> str:
    """One direction of a step."""
    return (CBackward if backward else CForward)(places).text()
