"""Read the measurements in benchmarks/results, and write numbers as the tables of speed show them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]

Rows = list[list[str]]


@cache
def measured(name: str) -> dict[str, Any]:
    """The content of benchmarks/results/NAME.json."""
    return json.loads((ROOT / f"benchmarks/results/{name}.json").read_text("utf-8"))


def span(values: Iterable[float], digits: int | None = None) -> str:
    """The smallest and the largest value as text: "0.29 to 0.31", or one number where both round to the same.

    digits: decimals; by default none if all values are above 2, else two.
    """
    numbers = list(values)
    if digits is None:
        digits = 0 if min(numbers) > 2 else 2
    least, most = f"{min(numbers):.{digits}f}", f"{max(numbers):.{digits}f}"
    return least if least == most else f"{least} to {most}"
