"""The cells: the equations of one time step, one cell per file, listed by name in `CELLS`."""

from evenflow.cells.adaptive_saturated import AdaptiveSaturated
from evenflow.cells.cell import Cell, Matrix, State, Weights
from evenflow.cells.cfc import CfCStep
from evenflow.cells.complex_elman import ComplexElman
from evenflow.cells.cornn import CoRNNStep
from evenflow.cells.diagonal_ssm import DiagonalSSM
from evenflow.cells.elman import Elman
from evenflow.cells.fast_grnn import FastGRNNStep
from evenflow.cells.function_cell import CellMaker, FunctionCell, Parameter, cell
from evenflow.cells.gated_antisymmetric import GatedAntisymmetric
from evenflow.cells.gated_feedback import GatedFeedback
from evenflow.cells.goru import GORUStep
from evenflow.cells.gru import GRUStep
from evenflow.cells.indrnn import IndRNNStep
from evenflow.cells.lem import LEMStep
from evenflow.cells.linoss import LinOSSStep
from evenflow.cells.lipschitz import LipschitzStep
from evenflow.cells.lru import LRUStep
from evenflow.cells.lstm import LSTMStep
from evenflow.cells.lstm_1997 import LSTM1997
from evenflow.cells.lstm_peephole import PeepholeLSTM
from evenflow.cells.lstm_projected import ProjectedLSTM
from evenflow.cells.ltc import LTCStep
from evenflow.cells.mgu import MGUStep
from evenflow.cells.min_gru import MinGRUStep
from evenflow.cells.min_lstm import MinLSTMStep
from evenflow.cells.regularised import Regularised, regularised
from evenflow.cells.reset_first_gru import ResetFirstGRU
from evenflow.cells.rg_lru import RGLRUStep
from evenflow.cells.rotrnn import RotRNNStep
from evenflow.cells.scalar_gated import ScalarGated
from evenflow.cells.scrn import SCRNStep
from evenflow.cells.slstm import SLSTMStep
from evenflow.cells.ugrnn import UGRNNStep
from evenflow.cells.unicornn import UnICORNNStep

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
    "adaptive_saturated": AdaptiveSaturated,
    "cornn": CoRNNStep,
    "lem": LEMStep,
    "lipschitz": LipschitzStep,
    "gated_antisymmetric": GatedAntisymmetric,
    "mgu": MGUStep,
    "ugrnn": UGRNNStep,
    "fast_grnn": FastGRNNStep,
    "reset_first_gru": ResetFirstGRU,
    "goru": GORUStep,
    "slstm": SLSTMStep,
    "indrnn": IndRNNStep,
    "unicornn": UnICORNNStep,
    "cfc": CfCStep,
    "ltc": LTCStep,
    "lru": LRUStep,
    "diagonal_ssm": DiagonalSSM,
    "linoss": LinOSSStep,
    "rotrnn": RotRNNStep,
    "min_gru": MinGRUStep,
    "min_lstm": MinLSTMStep,
    "rg_lru": RGLRUStep,
}

__all__ = [
    "CELLS",
    "LSTM1997",
    "AdaptiveSaturated",
    "Cell",
    "CellMaker",
    "CfCStep",
    "CoRNNStep",
    "ComplexElman",
    "DiagonalSSM",
    "Elman",
    "FastGRNNStep",
    "FunctionCell",
    "GORUStep",
    "GRUStep",
    "GatedAntisymmetric",
    "GatedFeedback",
    "IndRNNStep",
    "LEMStep",
    "LRUStep",
    "LSTMStep",
    "LTCStep",
    "LinOSSStep",
    "LipschitzStep",
    "MGUStep",
    "Matrix",
    "MinGRUStep",
    "MinLSTMStep",
    "Parameter",
    "PeepholeLSTM",
    "ProjectedLSTM",
    "RGLRUStep",
    "Regularised",
    "ResetFirstGRU",
    "RotRNNStep",
    "SCRNStep",
    "SLSTMStep",
    "ScalarGated",
    "State",
    "UGRNNStep",
    "UnICORNNStep",
    "Weights",
    "cell",
    "regularised",
]
