from __future__ import annotations

from pathlib import Path

import pytest
from synthetic_runs import write_run


@pytest.fixture
def four(tmp_path: Path) -> list[Path]:
    """A vanishing, a slowly vanishing and two level runs, of which two solve the task."""
    return [
        write_run(tmp_path / "rnn", "rnn", decay=0.75, end=0.165, seed=1),
        write_run(tmp_path / "lstm", "lstm", decay=0.955, end=0.06, seed=2),
        write_run(tmp_path / "urnn", "urnn", end=0.0008, seed=3, options={"map": "exponential"}),
        write_run(tmp_path / "sgornn", "sgornn", end=0.0004, seed=4, options={"map": "rotations", "alpha": 0.023}),
    ]
