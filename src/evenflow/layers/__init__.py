"""The layers: `Recurrent` with the call forms of `torch.nn.RNN` for any cell, and the named layers built on it."""

from evenflow.layers.cell_modules import GRUCell, LSTMCell, RecurrentCell, RNNCell
from evenflow.layers.feedback_stack import GatedFeedbackRNN
from evenflow.layers.named import GRU, LSTM, RNN, SCRN, ComplexRNN, ScalarGatedRNN
from evenflow.layers.recurrent import Recurrent
from evenflow.layers.torch_layers import from_torch, to_torch

__all__ = [
    "GRU",
    "LSTM",
    "RNN",
    "SCRN",
    "ComplexRNN",
    "GRUCell",
    "GatedFeedbackRNN",
    "LSTMCell",
    "RNNCell",
    "Recurrent",
    "RecurrentCell",
    "ScalarGatedRNN",
    "from_torch",
    "to_torch",
]
