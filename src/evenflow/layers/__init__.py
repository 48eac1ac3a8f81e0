"""The layers: `Recurrent` with the call forms of `torch.nn.RNN` for any cell, and the named layers built on it."""

from evenflow.layers.cell_layers import (
    GORU,
    LEM,
    LRU,
    MGU,
    RGLRU,
    SLSTM,
    UGRNN,
    AdaptiveSaturatedRNN,
    CoRNN,
    DiagonalStateSpace,
    FastGRNN,
    GatedAntisymmetricRNN,
    IndRNN,
    LinOSS,
    LipschitzRNN,
    MinGRU,
    MinLSTM,
    RotRNN,
    UnICORNN,
)
from evenflow.layers.cell_modules import GRUCell, LSTMCell, RecurrentCell, RNNCell
from evenflow.layers.feedback_stack import GatedFeedbackRNN
from evenflow.layers.named import GRU, LSTM, RNN, SCRN, ComplexRNN, ScalarGatedRNN
from evenflow.layers.recurrent import Recurrent
from evenflow.layers.torch_layers import from_torch, to_torch

__all__ = [
    "GORU",
    "GRU",
    "LEM",
    "LRU",
    "LSTM",
    "MGU",
    "RGLRU",
    "RNN",
    "SCRN",
    "SLSTM",
    "UGRNN",
    "AdaptiveSaturatedRNN",
    "CoRNN",
    "ComplexRNN",
    "DiagonalStateSpace",
    "FastGRNN",
    "GRUCell",
    "GatedAntisymmetricRNN",
    "GatedFeedbackRNN",
    "IndRNN",
    "LSTMCell",
    "LinOSS",
    "LipschitzRNN",
    "MinGRU",
    "MinLSTM",
    "RNNCell",
    "Recurrent",
    "RecurrentCell",
    "RotRNN",
    "ScalarGatedRNN",
    "UnICORNN",
    "from_torch",
    "to_torch",
]
