"""The named systems: each a point of map × cell × activation.

>>> layer = create("sgornn", 2, 128)
>>> output, h_n = layer(torch.randn(1000, 50, 2))
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from evenflow.checks import unknown
from evenflow.feedforward import MLP, FeedForward, ResNet, SpectralMLP, SpectralResNet
from evenflow.layers.feedback_stack import GatedFeedbackRNN
from evenflow.layers.named import GRU, LSTM, RNN, SCRN, ComplexRNN, ScalarGatedRNN
from evenflow.layers.recurrent import Recurrent
from evenflow.reservoir import EchoState


@dataclass(frozen=True)
class System:
    """One row of the table: a layer with the settings that make it this system.

    `map_options` belong to `map` and are dropped when the user asks for another map; a `map` of None means that the
    layer takes none.
    """

    layer: Callable[..., Recurrent]
    equation: str
    document: str
    map: str | None = "free"
    map_options: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Network:
    """One row of the table of networks without time."""

    network: type[FeedForward]
    equation: str
    document: str


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
    "gated-feedback": System(
        GatedFeedbackRNN,
        "h_j = tanh(W h_{j-1} + b + Σ_i g_ij U h_i), g_ij = σ(w h_{j-1} + u h), 3 layers",
        "Chung et al. 2015; Galvan",
    ),
    "esn": System(
        EchoState,
        "h = (1 - a) h + a tanh(W x + b + U h), U sparse, nothing trained",
        "Jaeger 2001; Galvan",
        None,
    ),
}

_ADDING = "h = h + W_2 f(W_1 h + b_1) + b_2"

NETWORKS: dict[str, Network] = {
    "mlp": Network(MLP, "h = f(W h + b), f = relu", "Rumelhart et al. 1986"),
    "resnet": Network(ResNet, f"{_ADDING}, f = relu", "He et al. 2016"),
    "spectral-mlp": Network(
        SpectralMLP,
        "h = f(W h + b), f = oplu, W = H ... H diag(s) H ... H, |s - 1| <= r",
        "Spectral-RNN (Zhang, Lei, Dhillon)",
    ),
    "spectral-resnet": Network(
        SpectralResNet,
        f"{_ADDING}, f = relu, W as above, |s_1 - 1| <= r, |s_2| <= r",
        "Spectral-RNN (Zhang, Lei, Dhillon)",
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
    if name in NETWORKS:
        network = NETWORKS[name].network.__name__
        raise ValueError(
            f"system {name!r} has no time and so is no recurrent layer: it is "
            f"evenflow.{network}({input_size}, output_size, width={hidden_size})"
        )
    if name not in SYSTEMS:
        raise ValueError(unknown("system", name, [*SYSTEMS, *NETWORKS]))
    system = SYSTEMS[name]
    settings = dict(system.options)
    if system.map is not None:
        settings["map"] = system.map
        if options.get("map", system.map) == system.map:
            settings |= system.map_options
    _known(name, system.layer, options)
    return system.layer(input_size, hidden_size, **settings | options)


def _known(name: str, layer: Callable[..., Recurrent], options: Mapping[str, Any]) -> None:
    """Refuse an option that `layer` does not take; one that takes any hands them on, and they are refused there."""
    parameters = inspect.signature(layer).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return
    known = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    for option in options:
        if option not in known:
            raise ValueError(f"system {name!r} has no option {option!r}; it takes {', '.join(known)}")
