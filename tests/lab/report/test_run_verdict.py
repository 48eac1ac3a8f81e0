from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from synthetic_runs import write_rows, write_run

from evenflow.lab.report.run_record import read_runs
from evenflow.lab.report.run_verdict import judge

SOLVED, HALF, BASELINE = 0.0005, 0.08, 0.1667  # mse on the adding task, solved under 0.001


def row(step: int, mse: float) -> dict[str, float]:
    return {"step": step, "loss": mse, "gradient_norm": 1.0, "valid_loss": mse, "valid_metric": mse}


@pytest.mark.parametrize(
    ("rows", "status", "word", "reason"),
    [
        pytest.param(
            [row(1, HALF), row(2, SOLVED)], "finished", "Solved",
            "First at update 2. Solved means a validation mse below 0.001. Lowest", id="solved",
        ),
        pytest.param([row(1, SOLVED), row(2, HALF)], "finished", "Solved", "lost again by the end", id="lost again"),
        pytest.param([row(1, SOLVED)], "running", "Solved", "First at update 1", id="solved before the end"),
        pytest.param([row(1, HALF)], "finished", "Not solved", "0.08, against 0.167 without memory", id="half way"),
        pytest.param(
            [row(1, HALF), row(2, 1e5)], "finished", "Not solved",
            "It ended worse than it began: training loss 100,000 after 0.08.", id="worse than before",
        ),
        pytest.param([row(1, BASELINE)], "finished", "Not solved", "no better than 0.167", id="at the baseline"),
        pytest.param(
            [row(1, 0.98 * BASELINE)], "finished", "Not solved", "hardly better than 0.167", id="just below it"
        ),
        pytest.param([row(1, HALF)], "interrupted", "Unfinished", "update 1 of 1,200", id="interrupted"),
        pytest.param([row(1, SOLVED), {"step": 2, "loss": np.nan}], "finished", "Diverged", "update 2", id="nan loss"),
        pytest.param(
            [row(1, SOLVED), {"step": 2, "loss": 1.0, "gradient_norm": np.inf}], "finished", "Diverged", "update 2",
            id="infinite gradient",
        ),
        pytest.param([row(1, HALF)], "failed", "Failed", "Training stopped with an error", id="failed"),
        pytest.param([{"step": 1, "loss": 0.5}], "finished", "No verdict", "Nothing was validated", id="no validation"),
        pytest.param([], "running", "Unfinished", "update 0 of 1,200", id="not begun"),
    ],
)  # fmt: skip
def test_verdicts(tmp_path: Path, rows: list[dict[str, float]], status: str, word: str, reason: str) -> None:
    folder = write_run(tmp_path / "a")
    write_rows(folder, *rows)
    (folder / "status.toml").write_text(f'state = "{status}"\n')
    (run,) = read_runs([folder])
    verdict = judge(run)
    assert verdict.word == word
    assert reason in verdict.reason
    assert verdict.reason.endswith(".")


def test_the_message_of_a_failed_run_is_its_reason(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a")
    (folder / "status.toml").write_text('state = "failed"\nmessage = "the disk is full"\n')
    assert judge(read_runs([folder])[0]).reason == "The disk is full."
