"""The result of the doctor: measurements of a model's gradients through time, and their text of one screen."""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evenflow.bounds import Band, ScalarGateGradients
from evenflow.lab.diagnosis.advice import Advice
from evenflow.probes import MemoryLength, Spectrum

FRACTION = 1e-3  # a gradient below it counts as vanished, one above its inverse as exploded
WIDTH, SHOWN = 100, 4


@dataclass(frozen=True)
class Diagnosis:
    """The result of `doctor`; ``str`` gives a text of one screen.

    Attributes:
        model: the name and sizes of the layer, and of the batch.
        steps: T, the number of steps.
        word: "vanishes", "explodes" or "steady".
        lag: the first lag at which the gradient is below a thousandth, or above a thousand; None if it is steady.
        rate: the average factor by which one step of the backward pass multiplies the gradient.
        profile: ``‖∂s_T/∂s_{T-lag}‖_F / √n`` for lag 0, 1, ..., with 1 at lag 0; s is the state, (h, c) of an LSTM.
        rates: the rate of each layer and direction, in the order of the final states; `profile` belongs to the one
            whose gradient reaches furthest.
        memory: how far back an input still changes the layer's output.
        spectra: the spectra of the recurrent matrices.
        band: bounds from theory on one step, or None for a cell without such a theorem.
        gates: bounds of SGORNN's Theorem 2 on the gradients of weights, or None if it does not cover the model.
        flow: ``‖∂L/∂h_t‖`` for every layer and step, or None without a loss.
        advice: what to change.

    >>> found = doctor(nn.RNN(2, 16), torch.randn(50, 4, 2))
    >>> found.word, found.rate < 1
    ('vanishes', True)
    """

    model: str
    steps: int
    word: str
    lag: int | None
    rate: float
    profile: NDArray[np.float64]
    rates: tuple[float, ...]
    memory: MemoryLength
    spectra: tuple[Spectrum, ...]
    band: Band | None
    flow: NDArray[np.float64] | None
    advice: tuple[Advice, ...]
    gates: ScalarGateGradients | None = None

    def __str__(self) -> str:
        parts = [self.model, self._verdict(), self._memory(), self._matrices(), self._theory()]
        if self.gates is not None:
            parts.append(self._weights(self.gates))
        if self.flow is not None:
            parts.append(self._loss())
        if len(self.rates) > 1:
            rates = ", ".join(_number(rate) for rate in self.rates)
            parts.append(f"Layers: each step back multiplies the gradient by {rates}, from the first layer up.")
        wrapped = [textwrap.fill(part, WIDTH, subsequent_indent="  ") for part in parts]
        advice = [
            textwrap.fill(line, WIDTH, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)
            for a in self.advice
            for line in str(a).splitlines()
        ]
        return "\n".join([*wrapped, "To change:", *advice, self._numbers()])

    def _verdict(self) -> str:
        mean = f"each step back multiplies it by {_number(self.rate)} on average"
        if self.word == "vanishes":
            return f"Measured: gradients vanish; the norm falls below a thousandth within {self.lag} steps; {mean}."
        if self.word == "explodes":
            return f"Measured: gradients explode; the norm exceeds a thousand within {self.lag} steps; {mean}."
        beyond = ""
        if abs(math.log(self.rate)) > 1e-5 and self.steps > 1:
            change = "falls below a thousandth" if self.rate < 1 else "exceeds a thousand"
            beyond = (
                f" At this rate it {change} after about {abs(math.log(FRACTION) / math.log(self.rate)):,.0f} steps."
            )
        end = f"the norm is {_number(self.profile[-1])} after {self.steps - 1} steps"
        return f"Measured: gradients are steady over these {self.steps} steps; {end}; {mean}.{beyond}"

    def _memory(self) -> str:
        if self.memory.complete:
            return f"Memory: all {self.steps} inputs, including the first, change the last output."
        return (
            f"Memory: {self.memory.steps} steps. Of {self.steps} inputs, earlier ones have less than a thousandth of "
            "the strongest effect on the last output."
        )

    def _matrices(self) -> str:
        if len(self.spectra) == 1:
            return f"Recurrent matrix {self.spectra[0]}."
        shown = ", ".join(f"{s.name} {s.min:.3g} to {s.max:.3g}" for s in self.spectra[:SHOWN])
        more = f" and {len(self.spectra) - SHOWN} more" if len(self.spectra) > SHOWN else ""
        return f"Recurrent matrices, by singular values: {shown}{more}."

    def _theory(self) -> str:
        if self.band is None:
            return "Theory: there is no bound for this cell."
        low, high = _number(self.band.lower_rate), _number(self.band.upper_rate)
        ends = f"{_number(self.band.lower)} to {_number(self.band.upper)} over {self.band.lag} steps"
        says = "is constant" if self.band.regime == "constant" else self.band.regime
        limit = f"over ever more steps it {says}"
        return f"Theory: for any input each step back multiplies the norm by {low} to {high}, {ends}; {limit}."

    def _weights(self, gates: ScalarGateGradients) -> str:
        """Theorem 2 and Corollary 1 of the SGORNN document."""
        parts = [f"{_number(gates.weight_ih)} for an entry of the input matrix"]
        if gates.raw is not None:
            sharp = gates.raw if gates.raw_sharp is None else gates.raw_sharp
            parts.append(f"{_number(sharp)} for a parameter of the map")
        parts.append(f"{_number(gates.weight_hh)}, as a norm, for the recurrent matrix")
        return (
            "Theory of scalar gates: with inputs as large as these and a loss that is 1-Lipschitz in the outputs, "
            f"gradients are at most {'; '.join(parts)}."
        )

    def _loss(self) -> str:
        assert self.flow is not None
        top = self.flow[-1] if len(self.flow) == 1 else self.flow.max(0)
        first, last = top[0], top[np.flatnonzero(top)[-1]] if top.any() else 0.0
        if not last:
            return "Loss: its gradient is zero at every step."
        end = "at the last step with a gradient"
        return f"Loss: ‖∂L/∂h_t‖ is {_number(first)} at the first step and {_number(last)} {end}."

    def _numbers(self) -> str:
        lags = [lag for lag in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if lag < self.steps]
        return "Norm at lag: " + "  ".join(f"{lag}: {_number(self.profile[lag])}" for lag in lags)


def _number(value: float) -> str:
    return "0" if value == 0 else f"{value:.3g}"
