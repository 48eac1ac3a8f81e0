from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from synthetic_runs import LENGTH, PROBES, STEPS, write_probes, write_rows, write_run

from evenflow.lab.report.run_record import read_runs


def test_a_record_holds_what_the_folder_says(tmp_path: Path) -> None:
    (run,) = read_runs([write_run(tmp_path / "a")])
    assert (run.label, run.task_name, run.metric_name, run.baseline) == ("sgornn", "adding", "mse", 1 / 6)
    assert (run.updates, run.planned, run.parameters) == (STEPS, STEPS, 4417)
    assert run.final("seconds") == pytest.approx(STEPS * 0.02)
    assert len(run.curve("loss")[0]) == STEPS // 10
    assert list(run.curve("valid_loss")[0]) == list(range(100, STEPS + 1, 100))
    assert run.probe_norm is not None
    assert run.probe_norm.shape == (PROBES, LENGTH)
    assert run.best_value("valid_loss") == pytest.approx(0.0005, rel=0.01)
    step, mse = run.curve("valid_metric")
    assert run.solved_at == step[mse < 0.001][0]


def test_best_of_an_accuracy_is_the_largest(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", task={"name": "copy", "length": 50})
    write_rows(
        folder,
        {"step": 1, "loss": 1, "valid_loss": 1, "valid_metric": 0.2},
        {"step": 2, "loss": 1, "valid_loss": 2, "valid_metric": 0.7},
        {"step": 3, "loss": 1, "valid_loss": 3, "valid_metric": np.nan},
    )
    (run,) = read_runs([folder])
    assert (run.best_value("valid_metric"), run.best_value("valid_loss")) == (0.7, 1)
    assert not run.metric_is_loss


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        pytest.param({"system": "rnn"}, {"system": "lstm"}, ["rnn", "lstm"], id="systems differ"),
        pytest.param({"seed": 1}, {"seed": 2}, ["sgornn, seed 1", "sgornn, seed 2"], id="seeds differ"),
        pytest.param({}, {}, ["sgornn (a)", "sgornn (b)"], id="nothing differs"),
    ],
)
def test_labels_tell_runs_apart(tmp_path: Path, first: dict, second: dict, expected: list[str]) -> None:
    folders = [write_run(tmp_path / "a", **first), write_run(tmp_path / "b", **second)]
    assert [run.label for run in read_runs(folders)] == expected


def test_the_same_folder_twice_gets_two_labels(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a")
    labels = [run.label for run in read_runs([folder, folder])]
    assert len(set(labels)) == 2


def test_probes_are_put_in_order_once_each(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a")
    write_probes(folder, np.array([20, 0, 20]), np.array([[3.0], [1.0], [4.0]]))
    (run,) = read_runs([folder])
    assert run.probe_step is not None
    assert list(run.probe_step) == [0, 20]


@pytest.mark.parametrize(
    ("content", "gap"),
    [
        pytest.param(b"PK nonsense", "probes.npz is damaged", id="not a zip"),
        pytest.param(b"", "probes.npz is damaged", id="empty file"),
        pytest.param({"step": np.zeros(2)}, "probes.npz is damaged", id="array missing"),
        pytest.param(
            {"step": np.zeros(2), "gradient_norm": np.zeros(2)}, "shapes (2,) and (2,)", id="shapes do not fit"
        ),
        pytest.param(
            {"step": np.zeros(0), "gradient_norm": np.zeros((0, 5))}, "No gradient probes were recorded", id="no rows"
        ),
    ],
)
def test_bad_probes_cost_the_heat_map_not_the_page(tmp_path: Path, content: bytes | dict, gap: str) -> None:
    folder = write_run(tmp_path / "a")
    if isinstance(content, bytes):
        (folder / "probes.npz").write_bytes(content)
    else:
        np.savez(folder / "probes.npz", **content)
    (run,) = read_runs([folder])
    assert run.probe_norm is None
    assert gap in run.probe_gap


def test_an_unknown_task_keeps_its_name(tmp_path: Path) -> None:
    (run,) = read_runs([write_run(tmp_path / "a", task={"name": "from-the-future", "length": 3})])
    assert (run.task, run.task_name, run.baseline, run.metric_name) == (None, "from-the-future", None, "metric")


def test_a_model_of_ones_own_goes_by_its_folder(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "mine")
    text = (folder / "config.toml").read_text()
    (folder / "config.toml").write_text(text.replace("[system]", "[other]"))
    assert read_runs([folder])[0].label == "mine"


def test_bad_folders_are_refused_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^folders must name at least one run folder, got none$"):
        read_runs([])
    with pytest.raises(ValueError, match=r"^folders must be run folders, and there is no folder '.*nowhere'$"):
        read_runs([tmp_path / "nowhere"])
    with pytest.raises(ValueError, match=r"holds no run: it has no config.toml$"):
        read_runs([tmp_path])
    folder = write_run(tmp_path / "a")
    with pytest.raises(ValueError, match=r"^notes must hold one note per run folder, got 2 for 1 folders$"):
        read_runs([folder], ["a", "b"])
    (folder / "metrics.csv").write_text("not,what,it,was\n1,2,3,4\n")
    with pytest.raises(ValueError, match=r"^metrics.csv of run '.*' cannot be read"):
        read_runs([folder])
