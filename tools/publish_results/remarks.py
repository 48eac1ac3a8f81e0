"""remarks.toml: hand-written sentences that explain differing results, and a check of the numbers in them."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

from evenflow.checks import unknown
from evenflow.lab.recipes.recipe_catalog import names

FILE = "remarks.toml"
# Digits inside a word, such as a machine's name, are not numbers.
NUMBER = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")


def read(folder: Path) -> dict[str, list[str]]:
    """The remarks of each recipe; empty if there is no file."""
    path = folder / FILE
    if not path.is_file():
        return {}
    try:
        table = tomllib.loads(path.read_text("utf-8"))
    except (ValueError, OSError) as error:
        raise ValueError(f"{str(path)!r} cannot be read: {error}") from error
    remarks = {}
    for name, value in table.items():
        if name not in names():
            raise ValueError(unknown(f"recipe in {FILE}", name, names()))
        sentences = value.get("remarks") if isinstance(value, Mapping) else None
        if not isinstance(sentences, list) or not all(isinstance(text, str) for text in sentences):
            raise ValueError(f"{FILE} must have a list of sentences called remarks for {name}, got {value!r}")
        remarks[name] = [" ".join(text.split()) for text in sentences]
    return remarks


def check(name: str, sentences: Iterable[str], sources: Iterable[str]) -> None:
    """Raise a ValueError if a number of a sentence, rounded to its digits, occurs in none of the sources."""
    allowed = [value for text in sources for _, value in numbers(text)]
    for sentence in sentences:
        for digits, value in numbers(sentence):
            near = 0.5 * 10.0**-digits * (1 + 1e-9)
            if not any(abs(value - other) <= near for other in allowed):
                raise ValueError(
                    f"a remark on {name} has the number {value:g}, which neither its record nor its recipe holds: "
                    f"{sentence!r}"
                )


def numbers(text: str) -> list[tuple[int, float]]:
    """Every number of a text, with its number of decimals.

    >>> numbers("from 1,411 to 0.25 on an H200")
    [(0, 1411.0), (2, 0.25)]
    """
    pairs = []
    for match in NUMBER.findall(text):
        plain = match.replace(",", "")
        mantissa, _, exponent = plain.partition("e")
        pairs.append((len(mantissa.partition(".")[2]) - int(exponent or 0), float(plain)))
    return pairs
