from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The updates that are captured during the test; None for each capture that failed."""
    captured_update = pytest.importorskip("evenflow.lab.training.captured_update")
    captures: list[Any] = []

    class Noted(captured_update.GraphCache):  # type: ignore[name-defined,misc]
        def _try(self, *arguments: Any) -> Any:
            captures.append(super()._try(*arguments))
            return captures[-1]

    monkeypatch.setattr(captured_update, "GraphCache", Noted)
    return captures
