"""Recurrent networks whose gradients neither vanish nor explode, as drop-in PyTorch layers."""

from typing import TYPE_CHECKING, Any

from evenflow import activations, init, maps
from evenflow.cells import Parameter, cell
from evenflow.feedforward import MLP, ResNet, SpectralLinear, SpectralMLP, SpectralResNet
from evenflow.gated_feedback import GatedFeedbackRNN
from evenflow.generation import generate, stream
from evenflow.layers import GRU, LSTM, RNN, SCRN, ComplexRNN, ScalarGatedRNN
from evenflow.maps import attach, detach
from evenflow.model import SequenceModel
from evenflow.recurrent import Recurrent
from evenflow.reservoir import EchoState
from evenflow.systems import create, systems

if TYPE_CHECKING:
    from evenflow import bounds, optim, penalties, probes, tasks
    from evenflow.diagnosis import doctor
    from evenflow.training.fit import fit

__version__ = "0.1.0"

__all__ = [
    "GRU",
    "LSTM",
    "MLP",
    "RNN",
    "SCRN",
    "ComplexRNN",
    "EchoState",
    "GatedFeedbackRNN",
    "Parameter",
    "Recurrent",
    "ResNet",
    "ScalarGatedRNN",
    "SequenceModel",
    "SpectralLinear",
    "SpectralMLP",
    "SpectralResNet",
    "activations",
    "attach",
    "bounds",
    "cell",
    "create",
    "detach",
    "doctor",
    "fit",
    "generate",
    "init",
    "maps",
    "optim",
    "penalties",
    "probes",
    "stream",
    "systems",
    "tasks",
]


def __getattr__(name: str) -> Any:
    """Rooms that need more than torch are loaded when they are first asked for."""
    import importlib

    if name in ("bounds", "data", "optim", "penalties", "probes", "recipes", "report", "tasks", "training"):
        return importlib.import_module(f"evenflow.{name}")
    if name == "fit":
        return importlib.import_module("evenflow.training").fit
    if name == "doctor":
        return importlib.import_module("evenflow.diagnosis").doctor
    raise AttributeError(f"module 'evenflow' has no attribute {name!r}")
