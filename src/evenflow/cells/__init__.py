"""The maths of one time step, one cell per file."""

from evenflow.cells.cell import Cell, State, Weights
from evenflow.cells.elman import Elman
from evenflow.cells.lstm import LSTM
from evenflow.cells.scalar_gated import ScalarGated

CELLS: dict[str, type[Cell]] = {"elman": Elman, "scalar_gated": ScalarGated, "lstm": LSTM}

__all__ = ["CELLS", "LSTM", "Cell", "Elman", "ScalarGated", "State", "Weights"]
