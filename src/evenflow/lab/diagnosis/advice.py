"""Advice for a layer whose gradients vanish or explode: lines of code, each with its reason."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import nn

from evenflow.cells import LSTM1997, ComplexElman, Elman, GRUStep, LSTMStep, ScalarGated, SCRNStep
from evenflow.layers.recurrent import Recurrent
from evenflow.probes.model_layer import Layer, as_evenflow_layer
from evenflow.reservoir import EchoState


@dataclass(frozen=True)
class Advice:
    """A line of code to try and the reason for it; `code` is None if there is nothing to change.

    >>> for advice in doctor(nn.RNN(2, 16), torch.randn(50, 4, 2)).advice:
    ...     print(advice.code)
    evenflow.RNN(2, 16, map="exponential", activation="abs")
    evenflow.attach(model, "weight_hh_l0", evenflow.maps.Exponential(16))
    evenflow.create("sgornn", 2, 16, alpha=0.005, beta=0.99)
    """

    code: str | None
    why: str

    def __str__(self) -> str:
        return self.why if self.code is None else f"{self.code}\n  {self.why}"


def advise(layer: Layer, word: str, steps: int, place: str = "layer") -> list[Advice]:
    """What to try, the most effective first.

    Args:
        layer: the layer.
        word: "vanishes", "explodes" or "steady".
        steps: the number of steps that the layer should remember.
        place: the Python expression for the layer in the lines of code.
    """
    if word == "steady":
        return [Advice(None, "Nothing: over these steps gradients arrive at a size that can be learnt from.")]
    cell = None if getattr(layer, "proj_size", 0) else as_evenflow_layer(layer).cell.core
    if word == "explodes":
        return _against_explosion(layer, cell, place)
    return [*_against_vanishing(layer, cell, steps, place), _sgornn(layer, steps)]


def _against_explosion(layer: Layer, cell: object, place: str) -> list[Advice]:
    sizes = _sizes(layer)
    clip = Advice(
        "evenflow.fit(model, task, clip_norm=1.0)",
        "keeps single updates from running away; it does not mend their direction.",
    )
    if isinstance(cell, Elman):
        activation = cell.activation.key
        layers = [
            Advice(
                f'evenflow.RNN({sizes}, map="exponential", activation="{activation}")',
                "an orthogonal recurrent matrix: no step can stretch a gradient.",
            ),
            Advice(
                f'evenflow.RNN({sizes}, map="svd", margin=0.01, activation="{activation}")',
                "singular values within 0.01 of one: a step stretches by 1% at most.",
            ),
        ]
        return [*([_attach(layer, place)] if isinstance(layer, nn.RNN) else []), *layers, clip]
    if isinstance(cell, GRUStep):
        why = "an orthogonal matrix for the candidate, the part that can stretch most."
        return [Advice(f'evenflow.create("ugru", {sizes})', why), clip]
    return [clip]


def _against_vanishing(layer: Layer, cell: object, steps: int, place: str) -> list[Advice]:
    H, sizes, ours = layer.hidden_size, _sizes(layer), isinstance(layer, Recurrent)
    bias = f"{math.log(max(2, steps) - 0.99):.2f}"  # of a gate that then keeps the state for about `steps` steps
    if isinstance(layer, EchoState):
        options = f"radius=0.99, leak={1 / max(2, steps):.3g}"
        return [Advice(f"evenflow.EchoState({sizes}, {options})", "slow units that forget little a step.")]
    if isinstance(cell, ScalarGated | ComplexElman):
        return []
    if isinstance(cell, Elman):
        why = "singular values and slopes of one: the gradient keeps its size at every lag (Lin and Wang)."
        orthogonal = Advice(f'evenflow.RNN({sizes}, map="exponential", activation="abs")', why)
        return [orthogonal, _attach(layer, place)] if isinstance(layer, nn.RNN) else [orthogonal]
    if isinstance(cell, LSTMStep):
        new, assigned = f"evenflow.LSTM({sizes}, forget_bias={bias})", f"{place}.bias_hh_l0.data[{H}:{2 * H}] = {bias}"
        why = f"starts the forget gates open, with a memory of about {steps} steps: ln(T - 1)."
        return [Advice(new if ours else assigned, why)]
    if isinstance(cell, GRUStep):
        name = "bias_l0" if ours else "bias_hh_l0"
        why = f"starts the update gates at keeping the state for about {steps} steps: ln(T - 1)."
        return [Advice(f"{place}.{name}.data[{H}:{2 * H}] = {bias}", why)]
    if isinstance(cell, SCRNStep):
        code = f"evenflow.SCRN({sizes}, alpha={1 - 1 / max(2, steps):.6g})"
        return [Advice(code, f"context units that last about {steps} steps.")]
    if isinstance(cell, LSTM1997):
        return [Advice(f"evenflow.LSTM({sizes}, forget_bias={bias})", "forget gates, and the whole gradient.")]
    return []


def _sgornn(layer: Layer, steps: int) -> Advice:
    alpha = 1 / (4 * steps)
    options = f"alpha={alpha:.3g}, beta={1 - 2 * float(f'{alpha:.3g}'):.6g}"
    return Advice(
        f'evenflow.create("sgornn", {_sizes(layer, even=True)}, {options})',
        f"gates of this size leave at least {(1 - 3 * alpha) ** steps:.2f} of a gradient over {steps} steps.",
    )


def _attach(layer: nn.RNN, place: str) -> Advice:
    return Advice(
        f'evenflow.attach({place}, "weight_hh_l0", evenflow.maps.Exponential({layer.hidden_size}))',
        "keeps your module and makes its recurrent matrix orthogonal; the slopes of its activation stay what they are.",
    )


def _sizes(layer: Layer, even: bool = False) -> str:
    """The arguments for a layer of the same shape; the rotations of ``sgornn`` need an even number of units."""
    shown = [f"{layer.input_size}, {layer.hidden_size + (layer.hidden_size % 2 if even else 0)}"]
    defaults = {"num_layers": 1, "batch_first": False, "bidirectional": False}
    shown += [f"{name}={getattr(layer, name)}" for name, value in defaults.items() if getattr(layer, name) != value]
    return ", ".join(shown)
