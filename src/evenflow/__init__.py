"""Recurrent networks whose gradients neither vanish nor explode, as drop-in PyTorch layers."""

from typing import TYPE_CHECKING, Any

from evenflow import activations, init, maps
from evenflow.feedforward import MLP, ResNet, SpectralLinear, SpectralMLP, SpectralResNet
from evenflow.gated_feedback import GatedFeedbackRNN
from evenflow.generation import generate, stream
from evenflow.layers import GRU, LSTM, RNN, SCRN, ComplexRNN, ScalarGatedRNN
from evenflow.maps import attach, detach
from evenflow.model import SequenceModel
from evenflow.reservoir import EchoState
from evenflow.systems import create, systems

if TYPE_CHECKING:
    from evenflow import probes, tasks
    from evenflow.training import fit

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
    "ResNet",
    "ScalarGatedRNN",
    "SequenceModel",
    "SpectralLinear",
    "SpectralMLP",
    "SpectralResNet",
    "activations",
    "attach",
    "create",
    "detach",
    "fit",
    "generate",
    "init",
    "maps",
    "probes",
    "stream",
    "systems",
    "tasks",
]


def __getattr__(name: str) -> Any:
    """Rooms that need more than torch are loaded when they are first asked for."""
    import importlib

    if name in ("probes", "tasks", "training", "report"):
        return importlib.import_module(f"evenflow.{name}")
    if name == "fit":
        return importlib.import_module("evenflow.training").fit
    raise AttributeError(f"module 'evenflow' has no attribute {name!r}")
