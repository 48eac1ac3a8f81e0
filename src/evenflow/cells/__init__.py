"""The cells: the equations of one time step, one cell per file, listed by name in `CELLS`."""

from evenflow.cells.cell import Cell, Matrix, State, Weights
from evenflow.cells.complex_elman import ComplexElman
from evenflow.cells.elman import Elman
from evenflow.cells.function_cell import CellMaker, FunctionCell, Parameter, cell
from evenflow.cells.gated_feedback import GatedFeedback
from evenflow.cells.gru import GRUStep
from evenflow.cells.lstm import LSTMStep
from evenflow.cells.lstm_1997 import LSTM1997
from evenflow.cells.lstm_peephole import PeepholeLSTM
from evenflow.cells.lstm_projected import ProjectedLSTM
from evenflow.cells.regularised import Regularised, regularised
from evenflow.cells.scalar_gated import ScalarGated
from evenflow.cells.scrn import SCRNStep

CELLS: dict[str, type[Cell]] = {
    "elman": Elman,
    "complex_elman": ComplexElman,
    "scalar_gated": ScalarGated,
    "gru": GRUStep,
    "lstm": LSTMStep,
    "lstm_peephole": PeepholeLSTM,
    "lstm_1997": LSTM1997,
    "scrn": SCRNStep,
    "gated_feedback": GatedFeedback,
}

__all__ = [
    "CELLS",
    "LSTM1997",
    "Cell",
    "CellMaker",
    "ComplexElman",
    "Elman",
    "FunctionCell",
    "GRUStep",
    "GatedFeedback",
    "LSTMStep",
    "Matrix",
    "Parameter",
    "PeepholeLSTM",
    "ProjectedLSTM",
    "Regularised",
    "SCRNStep",
    "ScalarGated",
    "State",
    "Weights",
    "cell",
    "regularised",
]
