"""One look at a model's gradients through time, in plain sentences.

The file is not called after its function, because `evenflow.doctor` is that function and not a module.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

from evenflow.advice import Advice, advise
from evenflow.bounds import Band, gradient_band
from evenflow.cells import State
from evenflow.checks import whole_number
from evenflow.probes import MemoryLength, Spectrum, gradient_flow, memory_length, spectrum
from evenflow.probes.jacobian import hutchinson
from evenflow.probes.memory_length import entering
from evenflow.probes.recurrence import Layer, Recurrence, at_rest, find_layer, record
from evenflow.recurrent import Recurrent

FRACTION = 1e-3  # below it a gradient counts as vanished, above its inverse as exploded
SEQUENCES, PROBES = 4, 16
WORK = 1e10  # multiplications; wide layers are looked at with fewer random vectors, and then over fewer steps
EIGENVALUES = 512  # units up to which they are computed
WIDTH, SHOWN = 100, 4
LARGEST = 1e30  # of a state; beyond, float32 is near its end

Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Diagnosis:
    """What `doctor` found; its text is one screen.

    Attributes:
        model: what was looked at. steps: T, over how many steps.
        word: "vanishes", "explodes" or "steady". lag: the first lag at which less than a thousandth is left, or more
            than a thousand times has come of it; None where steady.
        rate: what a step back multiplies the gradient by, on average.
        profile: ``‖∂s_T/∂s_{T-lag}‖_F / √n`` for lag 0, 1, ...: 1 at the start. s is the state, of an LSTM (h, c).
        rates: the rate of each layer and direction, in the order of the final states; `profile` is of the one that
            reaches furthest.
        memory: how far back an input still changes the layer's output.
        spectra: of the recurrent matrices. band: what theory allows one step, where there is a theory.
        flow: ``‖∂L/∂h_t‖`` for every layer and step, where a loss was given.
        advice: what to change.
    """

    model: str
    steps: int
    word: str
    lag: int | None
    rate: float
    profile: Array
    rates: tuple[float, ...]
    memory: MemoryLength
    spectra: tuple[Spectrum, ...]
    band: Band | None
    flow: Array | None
    advice: tuple[Advice, ...]

    def __str__(self) -> str:
        parts = [self.model, self._verdict(), self._memory(), self._matrices(), self._theory()]
        if self.flow is not None:
            parts.append(self._loss())
        if len(self.rates) > 1:
            parts.append(f"Layers: a step back leaves {', '.join(_number(r) for r in self.rates)}, from the first up.")
        wrapped = [textwrap.fill(part, WIDTH, subsequent_indent="  ") for part in parts]
        advice = [
            textwrap.fill(line, WIDTH, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)
            for a in self.advice
            for line in str(a).splitlines()
        ]
        return "\n".join([*wrapped, "To change:", *advice, self._numbers()])

    def _verdict(self) -> str:
        slope = f"a step back leaves {_number(self.rate)} of it on average"
        if self.word == "vanishes":
            return f"Gradients vanish: {self.lag} steps back less than a thousandth is left; {slope}."
        if self.word == "explodes":
            return f"Gradients explode: {self.lag} steps back they are more than a thousand times larger; {slope}."
        beyond = ""
        if abs(math.log(self.rate)) > 1e-5 and self.steps > 1:
            change = "a thousandth would be left" if self.rate < 1 else "they would be a thousand times larger"
            beyond = f" At this rate {change} after about {abs(math.log(FRACTION) / math.log(self.rate)):,.0f} steps."
        end = f"{_number(self.profile[-1])} is left {self.steps - 1} steps back"
        return f"Gradients are steady: {end}; {slope}.{beyond}"

    def _memory(self) -> str:
        if self.memory.complete:
            return f"Memory: all {self.steps} inputs still change the last output, the first one too."
        return (
            f"Memory: {self.memory.steps} steps. Of {self.steps} inputs, those further back have less than a "
            "thousandth of the strongest effect on the last output."
        )

    def _matrices(self) -> str:
        if len(self.spectra) == 1:
            return f"Recurrent matrix {self.spectra[0]}."
        shown = ", ".join(f"{s.name} {s.min:.3g} to {s.max:.3g}" for s in self.spectra[:SHOWN])
        more = f" and {len(self.spectra) - SHOWN} more" if len(self.spectra) > SHOWN else ""
        return f"Recurrent matrices, by singular values: {shown}{more}."

    def _theory(self) -> str:
        if self.band is None:
            return "Theory: no bound for a cell with gates of its own; the numbers above are measured."
        low, high = _number(self.band.lower_rate), _number(self.band.upper_rate)
        ends = f"{_number(self.band.lower)} to {_number(self.band.upper)} over {self.band.lag} steps"
        says = "is constant" if self.band.regime == "constant" else self.band.regime
        return f"Theory: a step leaves {low} to {high} of a gradient whatever the input, {ends}; it {says}."

    def _loss(self) -> str:
        assert self.flow is not None
        top = self.flow[-1] if len(self.flow) == 1 else self.flow.max(0)
        first, last = top[0], top[np.flatnonzero(top)[-1]] if top.any() else 0.0
        if not last:
            return "Loss: its gradient is zero at every step."
        return f"Loss: ‖∂L/∂h_t‖ is {_number(first)} at the first step and {_number(last)} at the last that has one."

    def _numbers(self) -> str:
        lags = [lag for lag in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if lag < self.steps]
        return "Left at lag: " + "  ".join(f"{lag}: {_number(self.profile[lag])}" for lag in lags)


def doctor(
    model: nn.Module,
    batch: Tensor | PackedSequence | tuple[Any, ...],
    loss: Callable[[Tensor, Tensor], Tensor] | None = None,
    *,
    steps: int = 1000,
) -> Diagnosis:
    """Do this model's gradients vanish or explode, where, what does theory promise, and what could be changed?

    Args:
        model: any module that holds one recurrent layer, of evenflow or torch's RNN, GRU or LSTM.
        batch: inputs as the model takes them, or a tuple (inputs, targets) or (inputs, targets, lengths), as tasks draw
            them. The longest four sequences are looked at.
        loss: of outputs and targets; adds what arrives of the loss's own gradient at each step.
        steps: look at the first so many steps at most.

    The verdict is about the Jacobian of states: less than a thousandth left at some lag "vanishes", more than a
    thousand times "explodes", neither "steady". A stack vanishes if all its layers do, and explodes if one does. States
    start where the layer itself starts them. Norms are estimated from 16 random vectors, the same ones every time. The
    model is left as it was.

    >>> print(doctor(nn.RNN(2, 64), torch.randn(200, 8, 2)))
    RNN of torch, tanh: 2 inputs, 64 units; 4 sequences of 200 steps.
    Gradients vanish: 13 steps back less than a thousandth is left; a step back leaves 0.579 of it on average.
    ...
    """
    whole_number("steps", steps, 1)
    inputs, targets, lengths = _read(batch)
    if loss is not None and targets is None:
        raise ValueError("batch must hold targets for the loss: a tuple (inputs, targets), got inputs alone")
    layer = find_layer(model)
    x, vectors = _afford(layer, _entering(model, layer, inputs, lengths), steps)
    x, paths = _while_finite(layer, x)
    given = _as_taken(layer, x)
    profiles = [_profile(path, vectors) for path in paths]
    place = next(name for name, part in model.named_modules() if part is layer)
    furthest = max(range(len(paths)), key=lambda i: np.nan_to_num(profiles[i][-1], nan=np.inf))
    profile = profiles[furthest]
    word, lag = _judge(profile)
    band = _band(layer, len(x) - 1, furthest)
    return Diagnosis(
        model=_describe(model, layer, x),
        steps=len(x),
        word=word,
        lag=lag,
        rate=_rate(profile),
        profile=profile,
        rates=tuple(_rate(p) for p in profiles),
        memory=memory_length(layer, given, sums=vectors),
        spectra=tuple(spectrum(layer, eigenvalues_up_to=EIGENVALUES)),
        band=band,
        flow=None if loss is None else gradient_flow(model, inputs, targets, loss, lengths, layers="all"),  # type: ignore[arg-type]
        advice=tuple(advise(layer, word, len(x), f"model.{place}" if place else "model")),
    )


def _read(batch: Any) -> tuple[Any, Tensor | None, Tensor | None]:
    if isinstance(batch, Tensor | PackedSequence):
        return batch, None, None
    if not isinstance(batch, tuple | list) or not 1 <= len(batch) <= 3:
        raise ValueError(
            f"batch must be inputs, or (inputs, targets) with lengths or without, got {type(batch).__name__}"
        )
    inputs, targets, lengths = (*batch, None, None)[:3]
    return inputs, targets, lengths


def _entering(model: nn.Module, layer: Layer, inputs: Any, lengths: Tensor | None) -> Tensor:
    """What enters the recurrent layer, ``(T, B, I)``: the longest sequences, cut to the shortest of them."""
    with at_rest(model), entering(layer) as calls, torch.no_grad():
        model(inputs) if lengths is None else model(inputs, lengths=lengths)
    if not calls:
        raise ValueError(f"model must call its recurrent layer, got {type(model).__name__} that did not")
    leaf, packed = calls[0]
    if packed is not None:
        padded, ends = pad_packed_sequence(packed._replace(data=leaf.detach()))
        longest = ends.argsort(descending=True, stable=True)[:SEQUENCES]
        return padded[: int(ends[longest].min()), longest.to(padded.device)]
    pieces = [leaf.detach().unsqueeze(1) if leaf.dim() == 2 else leaf.detach() for leaf, _ in calls]
    unbatched = calls[0][0].dim() == 2
    whole = torch.cat([p.transpose(0, 1) if layer.batch_first and not unbatched else p for p in pieces])
    return whole[:, :SEQUENCES]


def _afford(layer: Layer, x: Tensor, steps: int) -> tuple[Tensor, int]:
    """As many steps and random vectors as keep a wide layer within seconds."""
    each = sum(found.numel() for name, found in layer.state_dict().items() if "weight_hh" in name)
    each = max(each, layer.hidden_size**2) * min(x.shape[1], SEQUENCES)
    steps = min(steps, len(x), max(2, int(WORK / (4 * each))))
    return x[:steps], max(4, min(PROBES, int(WORK / (each * steps))))


def _as_taken(layer: Layer, x: Tensor) -> Tensor:
    return x.transpose(0, 1) if layer.batch_first else x


def _while_finite(layer: Layer, x: Tensor) -> tuple[Tensor, list[Recurrence]]:
    """x up to the step where a state grows out of its numbers, and the recurrences on it."""
    paths = record(layer, _as_taken(layer, x))
    whole = [next((step for step, state in enumerate(path.states[1:]) if not _small(state)), len(x)) for path in paths]
    if min(whole) == len(x):
        return x, paths
    if min(whole) == 0:
        raise ValueError("the layer's states must be finite to be looked at, got some that are not at the first step")
    return x[: min(whole)], record(layer, _as_taken(layer, x[: min(whole)]))


def _small(state: State) -> bool:
    return all(bool((s.abs() < LARGEST).all()) for s in state)


def _profile(path: Recurrence, vectors: int) -> Array:
    last = len(path.inputs) - 1
    norms = hutchinson(path, last, list(range(last + 1)), "state", vectors)
    size = sum(s.shape[-1] for s in path.states[0])
    with np.errstate(over="ignore", invalid="ignore"):
        return np.sqrt(np.square(norms[::-1]).mean(1) / size)


def _judge(profile: Array) -> tuple[str, int | None]:
    profile = np.nan_to_num(profile, nan=np.inf)
    for word, crossed in (("explodes", profile > 1 / FRACTION), ("vanishes", profile < FRACTION)):
        if crossed.any():
            return word, int(np.flatnonzero(crossed)[0])
    return "steady", None


def _rate(profile: Array) -> float:
    """The factor of the straight line through the logarithms; the first step to zero or infinity ends it."""
    usable = np.isfinite(profile) & (profile > 0)
    end = len(profile) if usable.all() else int(np.flatnonzero(~usable)[0])
    if end < 2:
        return 0.0 if len(profile) > 1 and profile[1] == 0 else 1.0
    lags = np.arange(end)
    return float(np.exp(np.polyfit(lags, np.log(profile[:end]), 1)[0]))


def _band(layer: Layer, lag: int, member: int) -> Band | None:
    try:
        return gradient_band(layer, lag, norm="spectral", member=member)
    except ValueError:  # a cell that no theorem covers
        return None


def _describe(model: nn.Module, layer: Layer, x: Tensor) -> str:
    kind = type(layer).__name__.removeprefix("Parametrized")
    whose = "of evenflow" if isinstance(layer, Recurrent) else "of torch"
    activation = getattr(layer, "nonlinearity", None) or getattr(getattr(layer, "cell", None), "activation", None)
    form = [f"{layer.num_layers} layers"] * (layer.num_layers > 1) + ["both directions"] * layer.bidirectional
    shown = ", ".join([f"{kind} {whose}", *([str(activation)] if activation else []), *form])
    sizes = f"{layer.input_size} inputs, {layer.hidden_size} units"
    return f"{shown}: {sizes}; {x.shape[1]} sequences of {len(x)} steps."


def _number(value: float) -> str:
    return "0" if value == 0 else f"{value:.3g}"
