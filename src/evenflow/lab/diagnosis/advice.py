"""What to change in a layer whose gradients vanish or explode: lines of code, each with its reason."""

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
    """A line of code to try, and why; `code` is None where there is nothing to type."""

    code: str | None
    why: str

    def __str__(self) -> str:
        return self.why if self.code is None else f"{self.code}\n  {self.why}"


def advise(layer: Layer, word: str, steps: int, place: str = "layer") -> list[Advice]:
    """What to try, the most telling first.

    Args:
        word: "vanishes", "explodes" or "steady".
        steps: over how many steps the layer is to remember.
        place: how the lines call the layer.
    """
    if word == "steady":
        return [Advice(None, "Nothing: over these steps gradients arrive at a size that can be learnt from.")]
    cell = as_evenflow_layer(layer).cell if _has_twin(layer) else None
    own = _explodes(layer, cell, place) if word == "explodes" else _vanishes(layer, cell, steps, place)
    return own + (_general(layer, steps) if word == "vanishes" else [])


def _explodes(layer: Layer, cell: object, place: str) -> list[Advice]:
    sizes = _sizes(layer)
    clip = Advice(
        "evenflow.fit(model, task, clip_norm=1.0)",
        "keeps single updates from running away; it does not mend their direction.",
    )
    if isinstance(cell, Elman):
        activation = cell.activation.key
        found = [
            Advice(
                f'evenflow.RNN({sizes}, map="exponential", activation="{activation}")',
                "an orthogonal recurrent matrix: no step can stretch a gradient.",
            ),
            Advice(
                f'evenflow.RNN({sizes}, map="svd", margin=0.01, activation="{activation}")',
                "singular values within 0.01 of one: a step stretches by 1% at most.",
            ),
        ]
        if isinstance(layer, nn.RNN):
            found.insert(0, _attach(layer, place))
        return [*found, clip]
    if isinstance(cell, GRUStep):
        return [
            Advice(
                f'evenflow.create("ugru", {sizes})',
                "an orthogonal matrix for the candidate, the part that can stretch most.",
            ),
            clip,
        ]
    return [clip]


def _vanishes(layer: Layer, cell: object, steps: int, place: str) -> list[Advice]:
    H, sizes = layer.hidden_size, _sizes(layer)
    ours = isinstance(layer, Recurrent)
    shut = f"{math.log(max(2, steps) - 0.99):.2f}"
    if isinstance(layer, EchoState):
        leak = f"{1 / max(2, steps):.3g}"
        return [
            Advice(f"evenflow.EchoState({sizes}, radius=0.99, leak={leak})", "slow units that forget little a step.")
        ]
    if isinstance(cell, ScalarGated | ComplexElman):
        return []
    if isinstance(cell, Elman):
        found = [
            Advice(
                f'evenflow.RNN({sizes}, map="exponential", activation="abs")',
                "singular values and slopes of one: the gradient keeps its size at every lag (Lin and Wang).",
            )
        ]
        if isinstance(layer, nn.RNN):
            found.append(_attach(layer, place))
        return found
    if isinstance(cell, LSTMStep):
        code = (
            f"evenflow.LSTM({sizes}, forget_bias={shut})" if ours else f"{place}.bias_hh_l0.data[{H}:{2 * H}] = {shut}"
        )
        return [Advice(code, f"starts the forget gates open, with a memory of about {steps} steps: ln(T - 1).")]
    if isinstance(cell, GRUStep):
        name = "bias_l0" if ours else "bias_hh_l0"
        why = f"starts the update gates at keeping the state for about {steps} steps: ln(T - 1)."
        return [Advice(f"{place}.{name}.data[{H}:{2 * H}] = {shut}", why)]
    if isinstance(cell, SCRNStep):
        return [
            Advice(f"evenflow.SCRN({sizes}, alpha={_near_one(steps)})", f"context units that last about {steps} steps.")
        ]
    if isinstance(cell, LSTM1997):
        return [Advice(f"evenflow.LSTM({sizes}, forget_bias={shut})", "forget gates, and the whole gradient.")]
    return []


def _general(layer: Layer, steps: int) -> list[Advice]:
    alpha = 1 / (4 * steps)
    options = f"alpha={alpha:.3g}, beta={1 - 2 * float(f'{alpha:.3g}'):.6g}"
    return [
        Advice(
            f'evenflow.create("sgornn", {_sizes(layer, even=True)}, {options})',
            f"gates of this size leave at least {(1 - 3 * alpha) ** steps:.2f} of a gradient over {steps} steps.",
        )
    ]


def _attach(layer: nn.RNN, place: str) -> Advice:
    return Advice(
        f'evenflow.attach({place}, "weight_hh_l0", evenflow.maps.Exponential({layer.hidden_size}))',
        "keeps your module and makes its recurrent matrix orthogonal; the slopes of its activation stay what they are.",
    )


def _sizes(layer: Layer, even: bool = False) -> str:
    """The arguments that make a layer of the same form; rotations turn pairs of units, so theirs are even."""
    H = layer.hidden_size + (layer.hidden_size % 2 if even else 0)
    shown = [f"{layer.input_size}, {H}"]
    shown += [
        f"{name}={getattr(layer, name)}"
        for name, default in (("num_layers", 1), ("batch_first", False), ("bidirectional", False))
        if getattr(layer, name) != default
    ]
    return ", ".join(shown)


def _near_one(steps: int) -> str:
    return f"{1 - 1 / max(2, steps):.6g}"


def _has_twin(layer: Layer) -> bool:
    return isinstance(layer, Recurrent) or not getattr(layer, "proj_size", 0)
