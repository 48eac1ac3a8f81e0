"""Diagnose vanishing and exploding gradients: measure a model's Jacobians through time and judge them."""

from __future__ import annotations

from collections.abc import Callable
from keyword import iskeyword
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

from evenflow.bounds import Band, ScalarGateGradients, gradient_band, scalar_gate_gradients
from evenflow.cells import State
from evenflow.checks import whole_number
from evenflow.lab.diagnosis.advice import advise
from evenflow.lab.diagnosis.diagnosis import FRACTION, Diagnosis
from evenflow.layers.recurrent import Recurrent
from evenflow.models.sequence_model import SequenceModel
from evenflow.probes import gradient_flow, memory_length, spectrum
from evenflow.probes.jacobian import hutchinson
from evenflow.probes.layer_inputs import concatenate, run_for_inputs
from evenflow.probes.model_layer import Layer, find_layer
from evenflow.probes.unrolled import Unrolled, unroll

SEQUENCES, PROBES = 4, 16
WORK = 1e10  # multiplications; wide layers are measured with fewer random vectors, and then over fewer steps
EIGENVALUES = 512  # units up to which eigenvalues are computed
LARGEST = 1e30  # of a state; larger ones are near the end of float32


def doctor(
    model: nn.Module,
    batch: Tensor | PackedSequence | tuple[Any, ...],
    loss: Callable[[Tensor, Tensor], Tensor] | None = None,
    *,
    steps: int = 1000,
) -> Diagnosis:
    """Diagnose whether a model's gradients vanish or explode, compare them with theory, and advise what to change.

    Args:
        model: any module that contains one recurrent layer, of evenflow or torch's RNN, GRU or LSTM.
        batch: inputs as the model takes them, or a tuple (inputs, targets) or (inputs, targets, lengths), as tasks draw
            them. The four longest sequences are measured.
        loss: function of outputs and targets; with it the diagnosis includes the loss's own gradient at each step.
        steps: the largest number of steps to measure, from the first one.

    The verdict is about the Jacobian of states: "vanishes" if its norm is below a thousandth at some lag, "explodes" if
    it is above a thousand, else "steady". A stack vanishes if all its layers do, and explodes if one does. The first
    state is the layer's own. Norms are estimated from 16 random vectors, which are the same in every call. The model is
    left unchanged.

    >>> print(doctor(nn.RNN(2, 64), torch.randn(200, 8, 2)))
    RNN of torch, tanh: 2 inputs, 64 units; 4 sequences of 200 steps.
    Measured: gradients vanish; the norm falls below a thousandth within 14 steps; each step back
      multiplies it by 0.618 on average.
    ...
    """
    whole_number("steps", steps, 1)
    inputs, targets, lengths = _read(batch)
    if loss is not None and targets is None:
        raise ValueError("batch must hold targets for the loss: a tuple (inputs, targets), got inputs alone")
    layer = find_layer(model)
    x, vectors = _afford(layer, _layer_input(model, layer, inputs, lengths), steps)
    x, members = _while_finite(layer, x)
    profiles = [_profile(member, vectors) for member in members]
    name = next(name for name, module in model.named_modules() if module is layer)
    furthest = max(range(len(members)), key=lambda i: np.nan_to_num(profiles[i][-1], nan=np.inf))
    profile = profiles[furthest]
    word, lag = _judge(profile)
    return Diagnosis(
        model=_describe(model, layer, x),
        steps=len(x),
        word=word,
        lag=lag,
        rate=_rate(profile),
        profile=profile,
        rates=tuple(_rate(p) for p in profiles),
        memory=memory_length(layer, _in_layer_order(layer, x), sums=vectors),
        spectra=tuple(spectrum(layer, eigenvalues_up_to=EIGENVALUES)),
        band=_band(layer, len(x) - 1, furthest),
        flow=None if loss is None else gradient_flow(model, inputs, targets, loss, lengths, layers="all"),  # type: ignore[arg-type]
        advice=tuple(advise(layer, word, len(x), _expression(model, name))),
        gates=_gates(model, inputs),
    )


def _expression(model: nn.Module, path: str) -> str:
    """The Python expression for a submodule: ``model.layers[0]`` for the path ``layers.0``."""
    text = "model"
    for name in path.split(".") if path else ():
        if name.isidentifier() and not iskeyword(name):
            text += f".{name}"
        else:
            numbered = name.isdecimal() and isinstance(model, nn.ModuleList | nn.Sequential)
            text += f"[{name}]" if numbered else f'.get_submodule("{name}")'
        model = model.get_submodule(name)
    return text


def _read(batch: Any) -> tuple[Any, Tensor | None, Tensor | None]:
    if isinstance(batch, Tensor | PackedSequence):
        return batch, None, None
    if not isinstance(batch, tuple | list) or not 1 <= len(batch) <= 3:
        raise ValueError(
            f"batch must be inputs, or (inputs, targets) with lengths or without, got {type(batch).__name__}"
        )
    inputs, targets, lengths = (*batch, None, None)[:3]
    return inputs, targets, lengths


def _layer_input(model: nn.Module, layer: Layer, inputs: Any, lengths: Tensor | None) -> Tensor:
    """The input of the recurrent layer ``(T, B, I)``: the longest sequences, cut to the shortest of them."""
    calls = run_for_inputs(model, layer, inputs, lengths)
    data, packed = calls[0]
    if packed is not None:
        padded, ends = pad_packed_sequence(packed._replace(data=data))
        longest = ends.argsort(descending=True, stable=True)[:SEQUENCES]
        return padded[: int(ends[longest].min()), longest.to(padded.device)]
    return concatenate(layer, calls)[:, :SEQUENCES]


def _afford(layer: Layer, x: Tensor, steps: int) -> tuple[Tensor, int]:
    """x and the number of random vectors, reduced for a wide layer so that the diagnosis takes seconds."""
    per_step = sum(weight.numel() for name, weight in layer.state_dict().items() if "weight_hh" in name)
    per_step = max(per_step, layer.hidden_size**2) * min(x.shape[1], SEQUENCES)
    steps = min(steps, len(x), max(2, int(WORK / (4 * per_step))))
    return x[:steps], max(4, min(PROBES, int(WORK / (per_step * steps))))


def _in_layer_order(layer: Layer, x: Tensor) -> Tensor:
    return x.transpose(0, 1) if layer.batch_first else x


def _while_finite(layer: Layer, x: Tensor) -> tuple[Tensor, list[Unrolled]]:
    """x up to the step where a state overflows, and the layer unrolled on it."""
    members = unroll(layer, _in_layer_order(layer, x))
    steps = min(next((t for t, s in enumerate(m.states[1:]) if not _is_small(s)), len(x)) for m in members)
    if steps == len(x):
        return x, members
    if steps == 0:
        raise ValueError("the layer's states must be finite, got infinite or nan values at the first step")
    return x[:steps], unroll(layer, _in_layer_order(layer, x[:steps]))


def _is_small(state: State) -> bool:
    return all(bool((s.abs() < LARGEST).all()) for s in state)


def _profile(member: Unrolled, vectors: int) -> NDArray[np.float64]:
    last = len(member.inputs) - 1
    norms = hutchinson(member, last, list(range(last + 1)), "state", vectors)
    size = sum(s.shape[-1] for s in member.states[0])
    with np.errstate(over="ignore", invalid="ignore"):
        return np.sqrt(np.square(norms[::-1]).mean(1) / size)


def _judge(profile: NDArray[np.float64]) -> tuple[str, int | None]:
    profile = np.nan_to_num(profile, nan=np.inf)
    for word, crossed in (("explodes", profile > 1 / FRACTION), ("vanishes", profile < FRACTION)):
        if crossed.any():
            return word, int(np.flatnonzero(crossed)[0])
    return "steady", None


def _rate(profile: NDArray[np.float64]) -> float:
    """The factor per step of an exponential fitted to the profile, up to its first zero or infinity."""
    usable = np.isfinite(profile) & (profile > 0)
    end = len(profile) if usable.all() else int(np.flatnonzero(~usable)[0])
    if end < 2:
        return 0.0 if len(profile) > 1 and profile[1] == 0 else 1.0
    lags = np.arange(end)
    return float(np.exp(np.polyfit(lags, np.log(profile[:end]), 1)[0]))


def _band(layer: Layer, lag: int, member: int) -> Band | None:
    try:
        return gradient_band(layer, lag, norm="spectral", member=member)
    except ValueError:  # no theorem covers the cell
        return None


def _gates(model: nn.Module, inputs: Any) -> ScalarGateGradients | None:
    if not isinstance(model, SequenceModel) or not isinstance(inputs, Tensor):
        return None
    try:
        return scalar_gate_gradients(model, inputs)
    except ValueError:  # the theorem does not cover the model
        return None


def _describe(model: nn.Module, layer: Layer, x: Tensor) -> str:
    kind = type(layer).__name__.removeprefix("Parametrized")
    whose = "of evenflow" if isinstance(layer, Recurrent) else "of torch"
    activation = getattr(layer, "nonlinearity", None) or getattr(getattr(layer, "cell", None), "activation", None)
    form = [f"{layer.num_layers} layers"] * (layer.num_layers > 1) + ["both directions"] * layer.bidirectional
    shown = ", ".join([f"{kind} {whose}", *([str(activation)] if activation else []), *form])
    sizes = f"{layer.input_size} inputs, {layer.hidden_size} units"
    return f"{shown}: {sizes}; {x.shape[1]} sequences of {len(x)} steps."
