"""Values as people write them on a command line: ``-s bias=False``, ``svd(margin=.1)``."""

from __future__ import annotations

import re
import tomllib
from typing import Any

WORDS = {"true": True, "false": False, "none": None}
NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?", re.IGNORECASE)


def read_value(text: str) -> Any:
    """A value as TOML or Python would write it: a number, True or False, None, a list; plain text if it is none.

    >>> [read_value(text) for text in ("False", ".1", "[1, 2]", "henaff")]
    [False, 0.1, [1, 2], 'henaff']
    """
    try:
        value = tomllib.loads(f"value = {text}")["value"]
        if isinstance(value, bool | int | float | str | list | dict):  # and no date
            return value
    except tomllib.TOMLDecodeError:
        pass
    if text.lower() in WORDS:
        return WORDS[text.lower()]
    return float(text) if NUMBER.fullmatch(text) and not text.lstrip("+-").isdigit() else text
