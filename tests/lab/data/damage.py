"""Files that went wrong on their way, and what readers say to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

# Each example writes over the same file, so that one folder for all of them is right.
same_folder = settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])


def refusal(read: Callable[..., Any], *arguments: Any, **options: Any) -> str:
    """What a reader says: a plain ValueError of one line."""
    with pytest.raises(ValueError) as caught:
        read(*arguments, **options)
    assert type(caught.value) is ValueError
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def answer_or_sentence(read: Callable[[], Any], path: object) -> Any:
    """What the reader gives, or None where it refuses the file in one line that names it."""
    try:
        return read()
    except ValueError as error:
        said = error
    assert type(said) is ValueError
    assert str(said).startswith(f"cannot read {str(path)!r}: ")
    assert len(str(said).splitlines()) == 1
    return None


@st.composite
def damaged(draw: st.DrawFn, good: bytes) -> bytes:
    """`good` with some bytes changed, a stretch repeated or left out, or its end cut off."""
    data = bytearray(good)
    for position, byte in draw(st.lists(st.tuples(st.integers(0, len(good) - 1), st.integers(0, 255)), max_size=4)):
        data[position] = byte
    start, end = sorted(draw(st.tuples(st.integers(0, len(good)), st.integers(0, len(good)))))
    match draw(st.sampled_from(["whole", "cut", "hole", "twice"])):
        case "cut":
            del data[max(end, 1) :]
        case "hole":
            del data[start:end]
        case "twice":
            data[end:end] = data[start:end]
    return bytes(data) or b"\0"
