"""The named systems: each a point of map × cell × activation.

>>> layer = create("sgornn", 2, 128)
>>> output, h_n = layer(torch.randn(1000, 50, 2))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from evenflow.checks import unknown
from evenflow.layers import LSTM, RNN, ScalarGatedRNN
from evenflow.recurrent import Recurrent


@dataclass(frozen=True)
class System:
    """One row of the table: a layer with the settings that make it this system.

    `map_options` belong to `map` and are dropped when the user asks for another map.
    """

    layer: Callable[..., Recurrent]
    equation: str
    document: str
    map: str = "free"
    map_options: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


_PLAIN = "h = f(W x + b + U h)"
_GATED = "h = α f(W x + b + U h) + β h"

SYSTEMS: dict[str, System] = {
    "rnn": System(RNN, f"{_PLAIN}, f = tanh", "Elman 1990"),
    "irnn": System(
        RNN,
        f"{_PLAIN}, f = relu, U starts at I",
        "Le et al. 2015",
        "free",
        {"init": "identity"},
        {"activation": "relu"},
    ),
    "urnn": System(
        RNN, f"{_PLAIN}, f = |.|, U = exp(B), B skew", "uRNN (Lin, Wang)", "exponential", {}, {"activation": "abs"}
    ),
    "exprnn": System(
        RNN,
        "h = modrelu(W x + U h), U = exp(B), B skew",
        "Lezcano-Casado, Martínez-Rubio 2019",
        "exponential",
        {},
        {"activation": "modrelu", "bias": False},
    ),
    "ornn": System(
        RNN,
        f"{_PLAIN}, f = relu, U a product of reflections",
        "Mhammedi et al. 2017; Spectral-RNN",
        "householder",
        {},
        {"activation": "relu"},
    ),
    "vprnn": System(
        RNN,
        f"{_PLAIN}, f = relu, U = R_1 Q_1 ... R_k Q_k",
        "Taylor-Melanson et al. 2021; SGORNN",
        "rotations",
        {},
        {"activation": "relu"},
    ),
    "fastrnn": System(
        ScalarGatedRNN,
        f"{_GATED}, f = relu",
        "Kusupati et al. 2018; SGORNN",
        options={"gates": "free", "alpha": 0.0474},
    ),
    "sgornn": System(
        ScalarGatedRNN,
        f"{_GATED}, β <= 1 - 2α, U = R_1 Q_1 ... R_k Q_k",
        "SGORNN",
        "rotations",
        {},
        {"gates": "bounded"},
    ),
    "lstm": System(
        LSTM, "c = σ(f) c + σ(i) tanh(g), h = σ(o) tanh(c)", "Hochreiter, Schmidhuber 1997; Gers et al. 2000"
    ),
}


def systems() -> Mapping[str, System]:
    """The table of named systems, to read."""
    return MappingProxyType(SYSTEMS)


def create(name: str, input_size: int, hidden_size: int, **options: Any) -> Recurrent:
    """The layer called `name`, ready to stand where `torch.nn.RNN` stood.

    Args:
        name: a row of `systems()`.
        input_size, hidden_size: widths of the input and the state.
        options: anything the layer takes (``num_layers=2``, ``bidirectional=True``, ``activation="oplu"``,
            ``map="householder"``, and that map's own options), over the system's settings.
    """
    if name not in SYSTEMS:
        raise ValueError(unknown("system", name, SYSTEMS))
    system = SYSTEMS[name]
    settings: dict[str, Any] = {"map": system.map, **system.options}
    if options.get("map", system.map) == system.map:
        settings |= system.map_options
    return system.layer(input_size, hidden_size, **settings | options)
