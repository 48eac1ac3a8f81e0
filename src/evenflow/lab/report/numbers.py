"""Formats numbers and durations for readers: few digits, commas between thousands, powers of ten."""

from __future__ import annotations

import math

RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def power(exponent: int) -> str:
    """A power of ten: power(-3) is 10⁻³."""
    return "10" + str(exponent).translate(RAISED)


def number(value: float | None, digits: int = 3) -> str:
    """A number with this many significant digits; an en dash for None.

    >>> number(0.04213), number(123456.0), number(3.2e-9), number(float("nan"))
    ('0.0421', '123,456', '3.2 × 10⁻⁹', 'not finite')
    """
    if value is None:
        return "–"
    if not math.isfinite(value):
        return "not finite"
    if value == 0:
        return "0"
    # Rounded before the exponent is read: 999.9999 has the exponent of 1000.
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    e = int(exponent)
    if -4 < e < 0 or (e == -4 and mantissa.rstrip("0").rstrip(".") in ("1", "-1")):
        return minus(f"{value:.{digits - 1 - e}f}".rstrip("0"))
    if 0 <= e < digits:
        text = f"{value:.{digits - 1 - e}f}"
        return minus(text.rstrip("0").rstrip(".") if "." in text else text)
    if digits <= e < 9:
        return minus(f"{value:,.0f}")
    mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
    return power(e) if mantissa == "1" else minus(f"{mantissa} × {power(e)}")


def minus(text: str) -> str:
    """The text with a typographic minus sign in place of a leading hyphen."""
    return text.replace("-", "−", 1) if text.startswith("-") else text


def duration(seconds: float | None, rough: bool = False) -> str:
    """Seconds in readable units: 8.2 s, 3 min 20 s, 2 h 5 min; with `rough`, two digits of one unit: 3.3 min."""
    if seconds is None or not math.isfinite(seconds):
        return "–"
    if rough:
        limits = ((90, 1, "s"), (5400, 60, "min"), (259_200, 3600, "h"), (math.inf, 86_400, "days"))
        unit, name = next((unit, name) for limit, unit, name in limits if seconds < limit)
        return f"{number(max(1.0, seconds / unit), 2)} {name}"
    if seconds < 60:
        return f"{number(seconds)} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min"
