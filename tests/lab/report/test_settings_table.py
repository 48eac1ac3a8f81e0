from __future__ import annotations

from pathlib import Path

from synthetic_runs import write_run

from evenflow.lab.report.run_record import read_runs
from evenflow.lab.report.settings_table import caption, settings_groups


def test_rows_that_differ_are_marked_and_named(tmp_path: Path) -> None:
    runs = read_runs(
        [
            write_run(tmp_path / "a", "urnn", training={"clip_norm": 1.0}),
            write_run(tmp_path / "b", "rnn", options={"bias": True}),
        ]
    )
    groups = settings_groups(runs)
    rows = {f"{group.name}: {row.name}": row for group in groups for row in group.rows}
    assert {name for name, row in rows.items() if row.differs} == {
        "System: name",
        "System: bias",
        "Training: clip norm",
    }
    assert rows["System: name"].values == ["urnn", "rnn"]
    assert rows["System: bias"].values == ["–", "yes"]
    assert rows["Training: lr"].values == ["0.01", "0.01"]
    assert "name, bias, clip norm" in caption(groups, 2)


def test_one_run_and_equal_runs_have_no_mark(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a")
    for folders in ([folder], [folder, folder]):
        groups = settings_groups(read_runs(folders))
        assert not any(row.differs for group in groups for row in group.rows)
    assert caption(groups, 2) == "All settings are the same in all runs."
