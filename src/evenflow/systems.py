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
from evenflow.layers import GRU, LSTM, RNN, SCRN, ComplexRNN, ScalarGatedRNN
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
_COMPLEX = "z = modrelu(W x + U z), z complex"
_GRU = "h = (1 - z) n + z h, n = tanh(W x + b + r (U h + c))"

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
    "scornn": System(
        RNN,
        "h = modrelu(W x + U h), U = (I + A)⁻¹ (I - A) D, A skew",
        "Helfrich et al. 2018",
        "cayley",
        {"signs": "half"},
        {"activation": "modrelu", "bias": False},
    ),
    "arjovsky-urnn": System(
        ComplexRNN,
        f"{_COMPLEX}, U = D R F⁻¹ D Π R F D",
        "Arjovsky et al. 2016",
        "unitary_product",
        {},
        {"bias": False},
    ),
    "full-urnn": System(
        ComplexRNN,
        f"{_COMPLEX}, U = exp(A), A skew-Hermitian",
        "Wisdom et al. 2016",
        "unitary",
        {},
        {"bias": False},
    ),
    "factorized": System(
        RNN,
        f"{_PLAIN}, f = tanh, U = P diag(s) Qᵀ, |s - 1| <= r",
        "Vorontsov et al. 2017",
        "factorized",
    ),
    "spectral": System(
        RNN,
        f"{_PLAIN}, f = relu, U = H ... H diag(s) H ... H, |s - 1| <= r",
        "Spectral-RNN (Zhang, Lei, Dhillon)",
        "svd",
        {},
        {"activation": "relu"},  # the text says leaky, the authors' released code relu
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
    "scrn": System(SCRN, "s = (1 - α) B x + α s, h = f(A x + b + P s + R h)", "Mikolov et al. 2015; Galvan"),
    "gru": System(GRU, _GRU, "Cho et al. 2014"),
    "ugru": System(GRU, f"{_GRU}, U = exp(B), B skew", "uRNN (Lin, Wang)", "exponential"),
    "lstm": System(
        LSTM, "c = σ(f) c + σ(i) tanh(g), h = σ(o) tanh(c)", "Hochreiter, Schmidhuber 1997; Gers et al. 2000"
    ),
    "lstm-peephole": System(
        LSTM,
        "as lstm; i, f see p c before the step, o sees p c after it",
        "Gers, Schmidhuber 2000; Vorontsov et al. 2017",
        options={"form": "peephole"},
    ),
    "lstm-1997": System(
        LSTM,
        "c = c + σ(i) tanh(g), h = σ(o) tanh(c), ∂/∂h not carried back in time",
        "Hochreiter, Schmidhuber 1997; Galvan",
        options={"form": "1997"},
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
