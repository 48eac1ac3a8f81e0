"""The learning rate over time, as pure functions of the step."""

from __future__ import annotations

from collections.abc import Callable


def constant(step: int, steps: int, decay: float, every: int) -> float:
    """1 throughout."""
    return 1.0


def linear(step: int, steps: int, decay: float, every: int) -> float:
    """From 1 at the first update down to 0 after the last: ``1 - step / steps``."""
    return max(0.0, 1.0 - step / steps)


def exponential(step: int, steps: int, decay: float, every: int) -> float:
    """Smooth decay: ``decay ^ (step / every)``."""
    return float(decay ** (step / every))


def staircase(step: int, steps: int, decay: float, every: int) -> float:
    """Decay in steps: ``decay ^ ⌊step / every⌋``."""
    return float(decay ** (step // every))


SCHEDULES: dict[str, Callable[[int, int, float, int], float]] = {
    "constant": constant,
    "linear": linear,
    "exponential": exponential,
    "step": staircase,
}


def factor(name: str, step: int, steps: int, decay: float = 0.5, every: int = 1000) -> float:
    """What the starting rate is multiplied by at update `step` (from 0) of `steps`.

    >>> [factor("linear", step, 4) for step in range(5)]
    [1.0, 0.75, 0.5, 0.25, 0.0]
    """
    return SCHEDULES[name](step, steps, decay, every)
