"""The maths of one time step, one cell per file."""

from evenflow.cells.cell import Cell, Matrix, State, Weights
from evenflow.cells.complex_elman import ComplexElman
from evenflow.cells.elman import Elman
from evenflow.cells.gated_feedback import GatedFeedback
from evenflow.cells.gru import GRU
from evenflow.cells.lstm import LSTM
from evenflow.cells.lstm_1997 import LSTM1997
from evenflow.cells.lstm_peephole import PeepholeLSTM
from evenflow.cells.own import CellMaker, FunctionCell, Parameter, cell
from evenflow.cells.scalar_gated import ScalarGated
from evenflow.cells.scrn import SCRN

CELLS: dict[str, type[Cell]] = {
    "elman": Elman,
    "complex_elman": ComplexElman,
    "scalar_gated": ScalarGated,
    "gru": GRU,
    "lstm": LSTM,
    "lstm_peephole": PeepholeLSTM,
    "lstm_1997": LSTM1997,
    "scrn": SCRN,
    "gated_feedback": GatedFeedback,
}

__all__ = [
    "CELLS",
    "GRU",
    "LSTM",
    "LSTM1997",
    "SCRN",
    "Cell",
    "CellMaker",
    "ComplexElman",
    "Elman",
    "FunctionCell",
    "GatedFeedback",
    "Matrix",
    "Parameter",
    "PeepholeLSTM",
    "ScalarGated",
    "State",
    "Weights",
    "cell",
]
