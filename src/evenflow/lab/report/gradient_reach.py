"""Measures how far back in time a gradient reaches.

With g_t = ‖∂L/∂h_t‖ for t = 1..T, the gradient reaches back N steps when

    g_{T-j} >= f g_T   for all j = 0..N,     f = 1e-3,

and N + 1 steps back it is smaller; if there is no such step, N = T - 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evenflow.lab.report.numbers import number

FRACTION = 1e-3  # the sentences below and the page call it a thousandth


@dataclass(frozen=True)
class GradientReach:
    """The reach of one gradient profile g_1..g_T.

    Attributes:
        steps: N above.
        length: T.
        ratio: g_1 / g_T.
        smallest: the least g_t / g_T; below the fraction if the gradient vanishes on its way, even if it grows again.

        >>> measure(np.array([1e-6, 1e-4, 1e-2, 1.0]))
        GradientReach(steps=1, length=4, ratio=1e-06, smallest=1e-06)

    Reference: Bengio, Simard and Frasconi 1994, where the decay of this ratio was first shown.
    """

    steps: int
    length: int
    ratio: float
    smallest: float

    @property
    def complete(self) -> bool:
        """Whether the gradient never falls below the fraction."""
        return self.steps == self.length - 1

    @property
    def word(self) -> str:
        """What the gradient does backwards in time: flows, vanishes or explodes."""
        if self.ratio > 1 / FRACTION:
            return "explodes"
        return "flows" if self.complete else "vanishes"

    def brief(self) -> str:
        """A sentence for a card: "Gradient reaches back 12 of 199 steps."."""
        if self.word == "explodes":
            return f"Gradient grows {number(self.ratio)} times backwards in time."
        return f"Gradient reaches back {'all ' if self.complete else f'{self.steps} of '}{self.length - 1} steps."

    def sentence(self) -> str:
        """The reach in words, without a subject: "reaches back 12 of 199 steps ..."."""
        back = self.length - 1
        if self.length == 1:
            return "has a single time step, so there is nothing to reach back over"
        start = f"at step 1 it is {f'{number(self.ratio)} times its last-step value' if self.ratio else 'exactly zero'}"
        if self.word == "explodes":
            return f"grows backwards in time: {start}"
        if self.complete:
            return f"reaches back all {back} steps; {start}"
        end = "before falling under a thousandth of its last-step value"
        return f"reaches back {self.steps} of {back} steps {end}; {start}"


def measure(profile: np.ndarray) -> GradientReach | None:
    """The reach of one profile (T,); None if the profile is not finite or all zero.

    Zeros at the end belong to steps after the end of every sequence of the batch: T is the last step before them.
    """
    profile = np.asarray(profile, dtype=np.float64)
    used = np.flatnonzero(profile)
    if not used.size or not np.isfinite(profile).all():
        return None
    profile = profile[: used[-1] + 1]
    with np.errstate(over="ignore"):
        relative = profile[::-1] / profile[-1]
    small = np.flatnonzero(relative < FRACTION)
    steps = int(small[0]) - 1 if small.size else len(profile) - 1
    return GradientReach(steps, len(profile), float(relative[-1]), float(relative.min()))


def sentence(profile: np.ndarray) -> str:
    """The reach of one profile in words, or why it cannot be measured."""
    reach = measure(profile)
    if reach is not None:
        return reach.sentence()
    if not np.isfinite(profile).all():
        return "is not finite everywhere, so its reach cannot be measured"
    return "is zero at every step"
