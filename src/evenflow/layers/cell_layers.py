"""Layers that are one cell of the library and nothing else, each made from its cell by `layer_class`."""

from __future__ import annotations

import inspect
from typing import Any

from evenflow.cells import (
    AdaptiveSaturated,
    Cell,
    CfCStep,
    CoRNNStep,
    DiagonalSSM,
    FastGRNNStep,
    GatedAntisymmetric,
    GORUStep,
    IndRNNStep,
    LEMStep,
    LinOSSStep,
    LipschitzStep,
    LRUStep,
    LTCStep,
    MGUStep,
    MinGRUStep,
    MinLSTMStep,
    RGLRUStep,
    RotRNNStep,
    SLSTMStep,
    UGRNNStep,
    UnICORNNStep,
)
from evenflow.layers.recurrent import Recurrent
from evenflow.runtime.shared_arguments import with_shared_arguments


def layer_class(name: str, cell: type[Cell]) -> type[Recurrent]:
    """The class of layers of one cell: the constructor takes the cell's settings besides the options of `Recurrent`.

    Args:
        name: of the class.
        cell: its equation, settings and weights are the docstring of the class.
    """
    settings = [
        p.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for p in inspect.signature(cell).parameters.values()
        if p.kind is p.POSITIONAL_OR_KEYWORD
    ]

    def __init__(
        self: Recurrent, input_size: int, hidden_size: int, num_layers: int = 1, *positional: Any, **options: Any
    ) -> None:
        chosen = {p.name: options.pop(p.name) for p in settings if p.name in options}
        Recurrent.__init__(self, cell(**chosen), input_size, hidden_size, num_layers, *positional, **options)

    written = list(inspect.signature(__init__).parameters.values())
    own = [*written[:-1], *settings, written[-1]]
    __init__.__signature__ = inspect.Signature(own)  # type: ignore[attr-defined]
    doc = inspect.cleandoc(cell.__doc__ or "")
    if "\nArgs:\n" not in doc:
        doc = doc.replace("\nWeights:", "\nArgs:\n    others: as in `Recurrent`.\n\nWeights:", 1)
    members = {"__init__": __init__, "__doc__": doc, "__module__": __name__, "__qualname__": name}
    return with_shared_arguments(type(name, (Recurrent,), members))


AdaptiveSaturatedRNN = layer_class("AdaptiveSaturatedRNN", AdaptiveSaturated)
CoRNN = layer_class("CoRNN", CoRNNStep)
IndRNN = layer_class("IndRNN", IndRNNStep)
UnICORNN = layer_class("UnICORNN", UnICORNNStep)
LEM = layer_class("LEM", LEMStep)
LipschitzRNN = layer_class("LipschitzRNN", LipschitzStep)
GatedAntisymmetricRNN = layer_class("GatedAntisymmetricRNN", GatedAntisymmetric)
MGU = layer_class("MGU", MGUStep)
UGRNN = layer_class("UGRNN", UGRNNStep)
FastGRNN = layer_class("FastGRNN", FastGRNNStep)
GORU = layer_class("GORU", GORUStep)
SLSTM = layer_class("SLSTM", SLSTMStep)
LRU = layer_class("LRU", LRUStep)
DiagonalStateSpace = layer_class("DiagonalStateSpace", DiagonalSSM)
LinOSS = layer_class("LinOSS", LinOSSStep)
RotRNN = layer_class("RotRNN", RotRNNStep)
MinGRU = layer_class("MinGRU", MinGRUStep)
MinLSTM = layer_class("MinLSTM", MinLSTMStep)
RGLRU = layer_class("RGLRU", RGLRUStep)
CfC = layer_class("CfC", CfCStep)
LTC = layer_class("LTC", LTCStep)
