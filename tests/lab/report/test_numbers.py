from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenflow.lab.report.numbers import RAISED, duration, number


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.04213, "0.0421"),
        (0.06, "0.06"),
        (1e-3, "0.001"),
        (123456.0, "123,456"),
        (3.2e-9, "3.2 × 10⁻⁹"),
        (1e-27, "10⁻²⁷"),
        (0.9999, "1"),
        (999.96, "1,000"),
        (-0.5, "−0.5"),
        (40.0, "40"),
        (0.0, "0"),
        (math.nan, "not finite"),
        (None, "–"),
    ],
)
def test_numbers_read_as_a_person_writes_them(value: float | None, text: str) -> None:
    assert number(value) == text


@given(st.floats(-1e300, 1e300, allow_subnormal=False))
def test_the_text_is_the_number_to_three_digits(value: float) -> None:
    text = number(value).replace(",", "").replace("−", "-", 1)
    mantissa, raised = (text, "") if text[-1] in "0123456789" else text.rsplit("10", 1)
    exponent = int(raised.translate({mark: digit for digit, mark in RAISED.items()}) or "0")
    back = float(f"{mantissa.replace('×', '').strip() or '1'}e{exponent}")
    assert back == pytest.approx(value, rel=5.1e-3, abs=0)


@pytest.mark.parametrize(
    ("seconds", "text"), [(8.23, "8.23 s"), (59.999, "60 s"), (200.0, "3 min 20 s"), (7500.0, "2 h 5 min"), (None, "–")]
)
def test_durations(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "1 s"), (45, "45 s"), (300, "5 min"), (7200, "2 h"), (12_500, "3.5 h"), (40_000, "11 h"), (1e6, "12 days")],
)
def test_rough_durations_have_two_digits_of_one_unit(seconds: float, text: str) -> None:
    assert duration(seconds, rough=True) == text
