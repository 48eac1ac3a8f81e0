"""Gated feedback: a stack of layers in one step, each with input from the states of all layers one step before."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

from evenflow import init
from evenflow.cells.cell import Cell, Matrix, Weights
from evenflow.checks import one_of, whole_number

# By unit: blocks of the pre-activations, and how many of them are gates that read only the state of their own layer.
UNITS = {"tanh": (1, 0), "gru": (3, 2), "lstm": (4, 3)}


class GatedFeedback(Cell):
    """``h^j_t = tanh(W^j h^{j-1}_t + b^j + Σ_i g^{ij}_t U^{ij} h^i_{t-1})``, for j = 1 to L one after the other.

    ``g^{ij}_t = σ(w^{ij} h^{j-1}_t + u^{ij} h*_{t-1})`` is one number, the global reset gate from layer i to layer j;
    h^0 is the input x, and h* the states of all layers side by side. With GRU or LSTM units the sum takes the place of
    ``U h`` in the candidate (n, or g) alone; the unit's own gates see ``h^{j-1}_t`` and ``h^j_{t-1}``, as in a stack.

    Shapes:
        Each state has all layers, ``(B, L H)``, the first layer first. `project` computes the pre-activations of the
        first layer, ``(T, B, blocks * H + L)``. The layer may append columns: L H that are added to the new states
        (taps), and (L - 1) H factors of the states that a layer passes to the next one (dropout).

    Args:
        unit: ``"tanh"``, ``"gru"`` or ``"lstm"``.
        layers: L.
        forget_bias: see `LSTMStep`; for LSTM units alone.

    Weights, of each layer j (the layer adds the suffix, `prepare` brings them together):
        weight_ih ``(blocks * H, I)`` and bias ``(blocks * H)``: as in `GRUStep` and `LSTMStep`.
        weight_hh ``(L H, H)``: the U^{ij} below each other.
        weight_ih_gate ``(L, I)`` and weight_hh_gate ``(L, L H)``: the rows w^{ij} and u^{ij}, Glorot uniform.
        weight_hh_own ``(2H, H)`` or ``(3H, H)``: of the unit's own gates (r, z or i, f, o).
        bias_hh_n ``(H)``: as in `GRUStep`.

    Note on the text: Galvan's 2.16 has no t on g, which changes with every step, and his sentence feeds layer i to "a
    lower layer j", while his figure and Chung et al. have all pairs, i = j too. He prints no equation of the units;
    they are those of Chung et al. Neither has a bias in a global gate.

    >>> layer = GatedFeedbackRNN(2, 32, num_layers=3, unit="gru")  # one step of this cell moves all three layers
    >>> layer(torch.randn(100, 8, 2))[0].shape
    torch.Size([100, 8, 32])

    References: Chung et al. 2015; Galvan, 2.1.4.
    """

    equation = "h_j = f(W h_{j-1} + b + Σ_i g_ij U h_i), g_ij = σ(w h_{j-1} + u h*)"

    def __init__(self, unit: str = "tanh", layers: int = 3, forget_bias: float = 1.0) -> None:
        one_of("unit", unit, UNITS)
        whole_number("num_layers", layers, 1)
        self.unit, self.layers, self.forget_bias = unit, layers, forget_bias
        self.blocks, self.own = UNITS[unit]
        self.states = ("h", "c") if unit == "lstm" else ("h",)
        every, above = range(layers), range(1, layers)
        own = [f"weight_hh_own_l{j}" for j in every] if self.own else []
        up = [f"weight_ih_l{j}" for j in above]
        self.recurrent = (*(f"weight_hh_{i}" for i in every), "weight_hh_gate", *own, *up)
        shifts = [f"bias_hh_n_l{j}" for j in every] if unit == "gru" else []
        self.parameters = (*(f"bias_l{j}" for j in above), *shifts)

    def matrices(self, hidden_size: int) -> tuple[Matrix, ...]:
        feedback = Matrix("weight_hh", hidden_size, self.layers, mapped=False)
        return (feedback, Matrix("weight_hh_own", hidden_size, self.own, mapped=False)) if self.own else (feedback,)

    def start(
        self, input_size: int, hidden_size: int, bias: bool, generator: torch.Generator | None
    ) -> dict[str, Tensor]:
        weights = super().start(input_size, hidden_size, bias, generator)
        if bias and self.unit == "gru":
            weights["bias_hh_n"] = torch.zeros(hidden_size)
        if bias and self.unit == "lstm":
            weights["bias"][hidden_size : 2 * hidden_size] = self.forget_bias
        for name, width in (("weight_ih_gate", input_size), ("weight_hh_gate", self.layers * hidden_size)):
            weights[name] = init.glorot_uniform(self.layers, width, generator=generator)
        return weights

    def prepare(self, weights: Weights) -> Weights:
        """From weights by layer (``weight_hh_l0``) to those of one step: matrices of the same states become one."""
        L = self.layers

        def every(name: str) -> list[Tensor]:
            return [weights[f"{name}_l{j}"] for j in range(L)]

        H = weights["weight_hh_l0"].shape[-1]
        feedback = torch.stack(every("weight_hh")).view(L, L, H, H)  # to j, from i, rows, columns
        ready = {f"weight_hh_{i}": feedback[:, i].reshape(L * H, H) for i in range(L)}
        ready["weight_hh_gate"] = torch.cat(every("weight_hh_gate"))
        ready |= {f"{s}0": torch.cat(every(f"{s}0")) for s in self.states if f"{s}0_l0" in weights}  # learned ones
        for j, pair in enumerate(zip(every("weight_ih"), every("weight_ih_gate"), strict=True)):
            suffix = f"_l{j}" if j else ""  # `project` computes that of the first layer
            ready["weight_ih" + suffix] = torch.cat(pair)
            if f"bias_l{j}" in weights:
                ready["bias" + suffix] = pad(weights[f"bias_l{j}"], (0, L))
        return {**weights, **ready}

    def gates(self, into: Tensor, j: int) -> Tensor:
        """The global gates from all layers to layer j, ``(B, L)``, from their pre-activations."""
        return into.sigmoid()

    def step(self, a: Tensor, *arguments: Tensor) -> tuple[Tensor, ...]:
        L, (state, memory) = self.layers, (arguments[0], arguments[1] if self.unit == "lstm" else None)
        H = state.shape[-1] // L
        names = (*self.recurrent, *self.parameters)
        weights = dict(zip(names, arguments[len(self.states) :], strict=True))
        before = state.split(H, -1)
        fed_back = [
            (h @ weights[f"weight_hh_{i}"].mT).split(H, -1) for i, h in enumerate(before)
        ]  # U^{ij} h^i at [i][j]
        gate_inputs = (state @ weights["weight_hh_gate"].mT).split(L, -1)
        into, *columns = self.columns(a, H)
        taps, dropout = (None if v is None else v.split(H, -1) for v in columns)
        new_h: list[Tensor] = []
        new_c: list[Tensor] = []
        for j in range(L):
            if j:
                below = new_h[-1] if dropout is None else new_h[-1] * dropout[j - 1]
                into = linear(below, weights[f"weight_ih_l{j}"], weights.get(f"bias_l{j}"))
            share, toward_gates = into.split([self.blocks * H, L], -1)
            gates = self.gates(toward_gates + gate_inputs[j], j).split(1, -1)
            feedback = sum((g * fed_back[i][j] for i, g in enumerate(gates)), start=torch.zeros_like(before[0]))
            if self.unit == "tanh":
                h = (share + feedback).tanh()
            else:
                own = before[j] @ weights[f"weight_hh_own_l{j}"].mT
                if memory is None:
                    r, z = (share[:, : 2 * H] + own).sigmoid().chunk(2, -1)
                    c = weights.get(f"bias_hh_n_l{j}")
                    n = (share[:, 2 * H :] + r * (feedback if c is None else feedback + c)).tanh()
                    h = (1 - z) * n + z * before[j]
                else:
                    i, f, o = (torch.cat([share[:, : 2 * H], share[:, 3 * H :]], -1) + own).sigmoid().chunk(3, -1)
                    new_c.append(f * memory.split(H, -1)[j] + i * (share[:, 2 * H : 3 * H] + feedback).tanh())
                    h = o * new_c[-1].tanh()
            new_h.append(h if taps is None else h + taps[j])
        members = (new_h, new_c) if new_c else (new_h,)
        return tuple(torch.cat(member, -1) for member in members)

    def columns(self, a: Tensor, H: int) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """The columns of a: pre-activations of the first layer, taps and dropout factors; None where one is missing."""
        L, width = self.layers, self.blocks * H + self.layers
        tapped = a.shape[-1] - width >= L * H
        into, taps, dropout = a.tensor_split([width, width + L * H * tapped], -1)
        return into, taps if tapped else None, dropout if dropout.shape[-1] else None
