"""The table of systems: each is a layer, a map and an activation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from evenflow.layers.cell_layers import (
    GORU,
    LEM,
    LRU,
    LTC,
    MGU,
    RGLRU,
    SLSTM,
    UGRNN,
    AdaptiveSaturatedRNN,
    CfC,
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
from evenflow.layers.feedback_stack import GatedFeedbackRNN
from evenflow.layers.named import GRU, LSTM, RNN, SCRN, ComplexRNN, ScalarGatedRNN
from evenflow.layers.recurrent import Recurrent
from evenflow.reservoir import EchoState
from evenflow.system import System

# The ingredients: equations of a step, and of the recurrent matrix.
PLAIN = "h = f(W x + b + U h)"
MODRELU = "h = modrelu(W x + U h)"
COMPLEX = "z = modrelu(W x + U z), z complex"
GATED = "h = α f(W x + b + U h) + β h"
GRU_STEP = "h = (1 - z) n + z h, n = tanh(W x + b + r (U h + c))"
LSTM_STEP = "c = σ(f) c + σ(i) tanh(g), h = σ(o) tanh(c)"
PEEPHOLE = "as lstm; i, f see p c before the step, o sees p c after it"
LSTM_1997 = "c = c + σ(i) tanh(g), h = σ(o) tanh(c), ∂/∂h not carried back in time"
CONTEXT = "s = (1 - α) B x + α s, h = f(A x + b + P s + R h)"
MINIMAL = "h = (1 - f) h + f tanh(W x + b + U (f h))"
UPDATE = "h = g h + (1 - g) tanh(W x + b + U h)"
FAST = "h = (ζ (1 - z) + ν) tanh(p + b) + z h, p = W x + U h"
SCALAR = "c = f c + i tanh(g), n = f n + i, h = σ(o) c / n, i exponential"
OSCILLATORS = "z = z + dt (tanh(W x + b + U y + V z) - γ y - ε z), y = y + dt z"
UNDAMPED = "z = z - d (tanh(w y + W x + b) + α y), y = y + d z, d = dt σ(c)"
INDEPENDENT = "h = f(W x + b + u h), f = relu, u one number a unit"
EXPRESSIVE = "z = (1 - d) z + d tanh(W x + U y), y = (1 - e) y + e tanh(W x + V z)"
LIPSCHITZ = "h = h + ε (A h + tanh(W x + b + U h))"
SATURATED = "h = V⁻¹ tanh(V (W x + b + U h)), V = F diag(s)"
FEEDBACK = "h_j = tanh(W h_{j-1} + b + Σ_i g_ij U h_i), g_ij = σ(w h_{j-1} + u h), 3 layers"
RESERVOIR = "h = (1 - a) h + a tanh(W x + b + U h), U sparse, nothing trained"
RING = "z = λ z + exp(γ) W x, λ = exp(-exp(ν) + i exp(θ)), z complex"
STATE_SPACE = "z = exp(λ d) z + (exp(λ d) - 1) / λ W x, z complex"
DRIVEN = "z = z + d (W x - k y), y = y + d z"
TURNED = "z = γ R(θ) z + √(1 - γ²) W x / |W|, R plane rotations"
MIN_GRU = "h = (1 - z) h + z (W x + b), z = σ(V x + c)"
MIN_LSTM = "h = (f h + i (W x + b)) / (f + i), f, i = σ(V x + c)"
REAL_GATED = "h = λ h + √(1 - λ²) i (W x + b), λ = σ(p)^(8 r), r, i = σ(V x + c)"
CLOSED_FORM = "h = (1 - s) tanh(g) + s tanh(k), s = σ(u dt + v), (g, k, u, v) = V tanh(W x + b + U h) + c"
LIQUID = "h = (h + d f A) / (1 + d (1/τ + f)), f = σ(W x + b + U h), six times with d = dt / 6"
EXP = "U = exp(B), B skew"
CAYLEY = "U = (I + A)⁻¹ (I - A) D, A skew"
ROTATIONS = "U = R_1 Q_1 ... R_k Q_k"
SVD = "H ... H diag(s) H ... H, |s - 1| <= r"
SKEW = "U = B - Bᵀ - γ I"
SCHUR = "U = P (Θ + T) Pᵀ"
FACTORIZED = "U = P diag(s) Qᵀ, |s - 1| <= r"
LIN, ZHANG = "uRNN (Lin, Wang)", "Spectral-RNN (Zhang, Lei, Dhillon)"


def _row(
    layer: Callable[..., Recurrent], equation: str, document: str, map: str | None = "free", **options: Any
) -> System:
    return System(layer, equation, document, map, options.pop("map_options", {}), options)


SYSTEMS: dict[str, System] = {
    "rnn": _row(RNN, f"{PLAIN}, f = tanh", "Elman 1990"),
    "irnn": _row(
        RNN, f"{PLAIN}, f = relu, U starts at I", "Le et al. 2015", activation="relu", map_options={"init": "identity"}
    ),
    "urnn": _row(RNN, f"{PLAIN}, f = |.|, {EXP}", LIN, "exponential", activation="abs"),
    "exprnn": _row(
        RNN, f"{MODRELU}, {EXP}", "Lezcano-Casado, Martínez-Rubio 2019", "exponential", activation="modrelu", bias=False
    ),
    "dtriv": _row(
        RNN,
        f"{MODRELU}, U = exp(C) exp(B), the base C moves",
        "Lezcano-Casado 2019",
        "moving_base",
        activation="modrelu",
        bias=False,
    ),
    "scornn": _row(
        RNN,
        f"{MODRELU}, {CAYLEY}",
        "Helfrich et al. 2018",
        "cayley",
        activation="modrelu",
        bias=False,
        map_options={"signs": "half"},
    ),
    "nnrnn": _row(RNN, f"{MODRELU}, {SCHUR}", "Kerg et al. 2019", "schur", activation="modrelu", bias=False),
    "asrnn": _row(AdaptiveSaturatedRNN, f"{SATURATED}, {EXP}", "Nguyen-Duy et al. 2023", "exponential"),
    "arjovsky-urnn": _row(
        ComplexRNN, f"{COMPLEX}, U = D R F⁻¹ D Π R F D", "Arjovsky et al. 2016", "unitary_product", bias=False
    ),
    "full-urnn": _row(
        ComplexRNN, f"{COMPLEX}, U = exp(A), A skew-Hermitian", "Wisdom et al. 2016", "unitary", bias=False
    ),
    "scurnn": _row(
        ComplexRNN,
        f"{COMPLEX}, U = (I + A)⁻¹ (I - A) D, A skew-Hermitian, D trained phases",
        "Maduranga et al. 2019",
        "unitary_scaled",
        bias=False,
    ),
    "factorized": _row(RNN, f"{PLAIN}, f = tanh, {FACTORIZED}", "Vorontsov et al. 2017", "factorized"),
    # The text of the document has leaky, the authors' released code relu.
    "spectral": _row(RNN, f"{PLAIN}, f = relu, U = {SVD}", ZHANG, "svd", activation="relu"),
    "ornn": _row(
        RNN,
        f"{PLAIN}, f = relu, U a product of reflections",
        "Mhammedi et al. 2017; Spectral-RNN",
        "householder",
        activation="relu",
    ),
    "vprnn": _row(
        RNN, f"{PLAIN}, f = relu, {ROTATIONS}", "Taylor-Melanson et al. 2021; SGORNN", "rotations", activation="relu"
    ),
    "fastrnn": _row(ScalarGatedRNN, f"{GATED}, f = relu", "Kusupati et al. 2018; SGORNN", gates="free", alpha=0.0474),
    "sgornn": _row(ScalarGatedRNN, f"{GATED}, β <= 1 - 2α, {ROTATIONS}", "SGORNN", "rotations", gates="bounded"),
    "antisymmetric": _row(
        ScalarGatedRNN,
        f"h = h + ε tanh(W x + b + U h), {SKEW}",
        "Chang et al. 2019",
        "antisymmetric",
        activation="tanh",
        gates="fixed",
        alpha=0.1,
        beta=1.0,
    ),
    "antisymmetric-gated": _row(
        GatedAntisymmetricRNN, f"h = h + ε z tanh(W x + b + U h), {SKEW}", "Chang et al. 2019", "antisymmetric"
    ),
    "lipschitz": _row(LipschitzRNN, LIPSCHITZ, "Erichson et al. 2021", "symmetric_skew"),
    "cornn": _row(CoRNN, OSCILLATORS, "Rusch, Mishra 2021"),
    "unicornn": _row(UnICORNN, UNDAMPED, "Rusch, Mishra 2021"),
    "indrnn": _row(IndRNN, INDEPENDENT, "Li et al. 2018"),
    "lem": _row(LEM, EXPRESSIVE, "Rusch et al. 2022"),
    "ltc": _row(LTC, LIQUID, "Hasani et al. 2021"),
    "cfc": _row(CfC, CLOSED_FORM, "Hasani et al. 2022"),
    "lru": _row(LRU, RING, "Orvieto et al. 2023", bias=False),
    "s4d": _row(DiagonalStateSpace, f"{STATE_SPACE}, λ = -1/2 + iπk", "Gu et al. 2022", start="lin", bias=False),
    "s5": _row(DiagonalStateSpace, f"{STATE_SPACE}, λ of HiPPO-LegS", "Smith et al. 2023", bias=False),
    "linoss": _row(LinOSS, DRIVEN, "Rusch, Rus 2025", bias=False),
    "rotrnn": _row(RotRNN, TURNED, "Biegun et al. 2024", bias=False),
    "mingru": _row(MinGRU, MIN_GRU, "Feng et al. 2024"),
    "minlstm": _row(MinLSTM, MIN_LSTM, "Feng et al. 2024"),
    "rglru": _row(RGLRU, REAL_GATED, "De et al. 2024"),
    "scrn": _row(SCRN, CONTEXT, "Mikolov et al. 2015; Galvan"),
    "gru": _row(GRU, GRU_STEP, "Cho et al. 2014"),
    "gru-2014": _row(GRU, "h = (1 - z) n + z h, n = tanh(W x + b + U (r h))", "Cho et al. 2014; Galvan", form="2014"),
    "goru": _row(GORU, f"as gru, n = modrelu(W x + r (U h)), {ROTATIONS}", "Jing et al. 2019", "rotations"),
    "ugru": _row(GRU, f"{GRU_STEP}, {EXP}", LIN, "exponential"),
    "lstm": _row(LSTM, LSTM_STEP, "Hochreiter, Schmidhuber 1997; Gers et al. 2000"),
    "lstm-peephole": _row(LSTM, PEEPHOLE, "Gers, Schmidhuber 2000; Vorontsov et al. 2017", form="peephole"),
    "lstm-1997": _row(LSTM, LSTM_1997, "Hochreiter, Schmidhuber 1997; Galvan", form="1997"),
    "mgu": _row(MGU, MINIMAL, "Zhou et al. 2016"),
    "ugrnn": _row(UGRNN, UPDATE, "Collins et al. 2017"),
    "fastgrnn": _row(FastGRNN, FAST, "Kusupati et al. 2018"),
    "slstm": _row(SLSTM, SCALAR, "Beck et al. 2024"),
    "gated-feedback": _row(GatedFeedbackRNN, FEEDBACK, "Chung et al. 2015; Galvan"),
    "esn": _row(EchoState, RESERVOIR, "Jaeger 2001; Galvan", None),
}
