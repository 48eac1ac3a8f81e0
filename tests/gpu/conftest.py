from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
def recordings(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is recorded meanwhile; None where that broke off."""
    captured = pytest.importorskip("evenflow.lab.training.captured")
    made: list[Any] = []
    record = captured._record

    def noted(*given: Any) -> Any:
        made.append(record(*given))
        return made[-1]

    monkeypatch.setattr(captured, "_record", noted)
    return made
