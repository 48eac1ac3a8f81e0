"""Numbers as a reader wants them: few digits, thousands apart, powers of ten raised."""

from __future__ import annotations

import math

RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def power(exponent: int) -> str:
    """10 to a whole exponent: power(-3) is 10⁻³."""
    return "10" + str(exponent).translate(RAISED)


def number(value: float | None, digits: int = 3) -> str:
    """A number with so many significant digits; an en dash for a missing one.

    >>> number(0.04213), number(123456.0), number(3.2e-9), number(float("nan"))
    ('0.0421', '123,456', '3.2 × 10⁻⁹', 'not finite')
    """
    if value is None:
        return "–"
    if not math.isfinite(value):
        return "not finite"
    if value == 0:
        return "0"
    # Rounded first: 999.9999 has the exponent of 1000.
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
    """The typographic minus sign in place of a hyphen."""
    return text.replace("-", "−", 1) if text.startswith("-") else text


def duration(seconds: float | None) -> str:
    """Seconds in the unit a person would say: 8.2 s, 3 min 20 s, 2 h 5 min."""
    if seconds is None or not math.isfinite(seconds):
        return "–"
    if seconds < 60:
        return f"{number(seconds)} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min"
