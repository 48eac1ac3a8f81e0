"""Recurrent networks whose gradients neither vanish nor explode, as drop-in PyTorch layers."""

from typing import TYPE_CHECKING, Any

from evenflow import activations, init, maps
from evenflow.cells import Parameter, cell
from evenflow.feedforward import MLP, ResNet, SpectralLinear, SpectralMLP, SpectralResNet
from evenflow.layers import (
    GORU,
    GRU,
    LEM,
    LRU,
    LSTM,
    LTC,
    MGU,
    RGLRU,
    RNN,
    SCRN,
    SLSTM,
    UGRNN,
    AdaptiveSaturatedRNN,
    CfC,
    ComplexRNN,
    CoRNN,
    DiagonalStateSpace,
    FastGRNN,
    GatedAntisymmetricRNN,
    GatedFeedbackRNN,
    GRUCell,
    IndRNN,
    LinOSS,
    LipschitzRNN,
    LSTMCell,
    MinGRU,
    MinLSTM,
    Recurrent,
    RecurrentCell,
    RNNCell,
    RotRNN,
    ScalarGatedRNN,
    UnICORNN,
    from_torch,
    to_torch,
)
from evenflow.maps import attach, detach
from evenflow.models import SequenceModel, generate, load, pretrained, save, stream
from evenflow.reservoir import EchoState
from evenflow.systems import create, systems
from evenflow.version import VERSION

if TYPE_CHECKING:
    from evenflow import bounds, export, optim, penalties, probes
    from evenflow.lab import tasks
    from evenflow.lab.diagnosis import doctor
    from evenflow.lab.training.fit import fit

__version__ = VERSION

# Names that need the extra `lab`: the module, and the attribute of the module unless it is the module itself.
LAB = {
    "tasks": ("evenflow.lab.tasks", ""),
    "fit": ("evenflow.lab.training", "fit"),
    "doctor": ("evenflow.lab.diagnosis", "doctor"),
}

__all__ = [
    "GORU",
    "GRU",
    "LEM",
    "LRU",
    "LSTM",
    "LTC",
    "MGU",
    "MLP",
    "RGLRU",
    "RNN",
    "SCRN",
    "SLSTM",
    "UGRNN",
    "AdaptiveSaturatedRNN",
    "CfC",
    "CoRNN",
    "ComplexRNN",
    "DiagonalStateSpace",
    "EchoState",
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
    "Parameter",
    "RNNCell",
    "Recurrent",
    "RecurrentCell",
    "ResNet",
    "RotRNN",
    "ScalarGatedRNN",
    "SequenceModel",
    "SpectralLinear",
    "SpectralMLP",
    "SpectralResNet",
    "UnICORNN",
    "activations",
    "attach",
    "bounds",
    "cell",
    "create",
    "detach",
    "doctor",
    "export",
    "fit",
    "from_torch",
    "generate",
    "init",
    "load",
    "maps",
    "optim",
    "penalties",
    "pretrained",
    "probes",
    "save",
    "stream",
    "systems",
    "tasks",
    "to_torch",
]


def __getattr__(name: str) -> Any:
    """Load slow subpackages, and names of the lab, when they are first used."""
    from importlib import import_module

    if name in ("bounds", "export", "lab", "optim", "penalties", "probes", "sklearn"):
        return import_module(f"evenflow.{name}")
    if name in LAB:
        module, attribute = LAB[name]
        try:
            loaded = import_module(module)
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("evenflow"):
                raise
            raise ImportError(
                f'evenflow.{name} needs {error.name}, which is not installed: pip install "evenflow[lab]"'
            ) from error
        return getattr(loaded, attribute) if attribute else loaded
    raise AttributeError(f"module 'evenflow' has no attribute {name!r}")
