"""Checks of arguments, with error messages that say what was passed and what is allowed."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable
from difflib import get_close_matches
from numbers import Real
from operator import ge, gt, le, lt
from typing import Any

LARGEST = sys.float_info.max


def unknown(kind: str, name: object, known: Iterable[str]) -> str:
    """An error message for an unknown `name`, with the most similar known names, or all of them if none is similar.

    Similar are names with few other letters, else names that begin with `name`, else names that `name` contains.

    >>> unknown("task", "copi", ["adding", "copy"])
    "unknown task 'copi', did you mean copy?"
    """
    choices = sorted(known)
    written = {choice.lower(): choice for choice in choices}
    near = [written[match] for match in get_close_matches(str(name).lower(), written, n=3)]
    near = near or [choice for choice in choices if len(str(name)) > 1 and choice.startswith(str(name))][:3]
    near = near or [choice for choice in choices if choice in str(name)][:3]
    if near:
        return f"unknown {kind} {name!r}, did you mean {' or '.join(near)}?"
    return f"unknown {kind} {name!r}, known are {', '.join(choices)}"


def unknown_option(kind: type, name: str, other: str, known: Iterable[str]) -> str:
    """An error message for an option that neither the class `kind` nor `other`, which takes options too, has."""
    kinds = [each for each in kind.__mro__ if each.__module__.startswith("evenflow")]
    parameters = [p for each in kinds for p in inspect.signature(each).parameters.values() if p.name != "cell"]
    named = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    choices = list(dict.fromkeys([*named, *known]))
    near = get_close_matches(name, choices, n=1, cutoff=0.75)
    hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(choices)}"
    return f"{kind.__name__} has no option {name!r}, nor has {other}; {hint}"


def one_of(argument: str, value: object, known: Iterable[str]) -> None:
    """Raise a ValueError unless `value` is one of the `known` words."""
    choices = list(known)
    if value not in choices:
        raise ValueError(f"{argument} must be one of {', '.join(choices)}, got {value!r}")


def number(
    argument: str,
    value: Any,
    *,
    above: float | None = None,
    least: float | None = None,
    below: float | None = None,
    most: float | None = None,
) -> None:
    """Raise a ValueError unless `value` is a finite number within these limits."""
    rules = [("above", gt, above), ("of at least", ge, least), ("below", lt, below), ("at most", le, most)]
    limits = [(f"{words} {limit:g}", holds, limit) for words, holds, limit in rules if limit is not None]
    # Not math.isfinite, which raises for whole numbers that no float holds.
    finite = isinstance(value, Real) and not isinstance(value, bool) and -LARGEST <= value <= LARGEST  # type: ignore[operator]
    if not finite or not all(holds(value, limit) for _, holds, limit in limits):
        kind = "number " + " and ".join(words for words, *_ in limits) if limits else "finite number"
        raise ValueError(f"{argument} must be a {kind}, got {value!r}")


def whole_number(argument: str, value: object, least: int) -> None:
    """Raise a ValueError unless `value` is a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{argument} must be a whole number of at least {least}, got {value!r}")
