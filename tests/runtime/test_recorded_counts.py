"""When something is recorded, which maps, layers and updates share; recordings themselves are tested in tests/gpu."""

from __future__ import annotations

from typing import Any

from evenflow.runtime.recorded import familiar


def test_it_is_made_when_it_has_come_up_often_enough() -> None:
    known: dict[Any, Any] = {}
    made: list[str] = []

    def make() -> str:
        made.append("recording")
        return made[-1]

    found = [familiar(known, "shape", 2, 4, make) for _ in range(5)]
    assert found == [None, None, "recording", "recording", "recording"]
    assert made == ["recording"]


def test_no_more_than_a_few_are_made() -> None:
    known: dict[Any, Any] = {}
    found = [familiar(known, shape, 0, 2, lambda shape=shape: f"of {shape}") for shape in range(4)]  # type: ignore[misc]
    assert found == ["of 0", "of 1", None, None]
    assert familiar(known, 1, 0, 2, lambda: "another") == "of 1"


def test_what_could_not_be_made_is_not_tried_again_and_does_not_count() -> None:
    known: dict[Any, Any] = {}
    tried: list[int] = []
    for _ in range(3):
        assert familiar(known, "broken", 0, 1, lambda: tried.append(1)) is None
    assert tried == [1]
    assert familiar(known, "sound", 0, 1, lambda: "recording") == "recording"
