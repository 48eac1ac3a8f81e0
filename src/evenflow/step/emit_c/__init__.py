"""A step's passes over all time steps as C, around the register-tiled matrix product of ``scan/c``.

Each thread runs some rows of the batch through all steps. A step is a few phases: matrix products of all its rows,
then passes over the units of each row, with one loop for each width of blocks. The text is the same for all sizes; a
call passes the widths. The text is written for the macros ``REAL`` and ``NAME``, see ``scan/c/head.h``.
"""

from evenflow.step.emit_c.c_backward import CBackward
from evenflow.step.emit_c.c_forward import CForward
from evenflow.step.emit_c.c_sizes import number_names
from evenflow.step.places import Places

__all__ = ["CBackward", "CForward", "number_names", "text"]


def text(places: Places, backward: bool) -> str:
    """The C function of one pass of a step."""
    return (CBackward if backward else CForward)(places).text()
