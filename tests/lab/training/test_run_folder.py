from __future__ import annotations

import os

import numpy as np
import pytest

from evenflow.lab.training import Run, metrics
from evenflow.lab.training.run_writer import RunWriter

CONFIG = {"task": {"name": "adding"}, "training": {"steps": 3}}


@pytest.fixture
def writer(tmp_path):
    writer = RunWriter.create(tmp_path / "runs" / "one", CONFIG)
    yield writer
    writer.close()


def row(step: int, **values: float) -> str:
    return metrics.to_line({"step": step, "loss": 0.1 * step, "seconds": 0.5, **values})


def test_what_is_written_can_be_read(writer):
    writer.append(row(1))
    writer.append(row(2, valid_loss=0.25, valid_metric=1.0))
    writer.probes({"step": np.array([0, 2]), "gradient_norm": np.stack([np.ones(4), np.zeros(4)])})
    writer.status("finished", step=2, message="all steps done", best_step=None)
    run = Run(writer.folder)
    assert (run.name, run.config) == ("one", CONFIG)
    assert run.status == {"state": "finished", "step": 2, "message": "all steps done"}
    assert run.metrics["step"].tolist() == [1, 2]
    assert run.metrics["loss"].tolist() == [0.1, 0.2]
    np.testing.assert_array_equal(run.metrics["valid_loss"], [np.nan, 0.25])
    assert run.probes["step"].tolist() == [0, 2]
    assert run.probes["gradient_norm"].shape == (2, 4)


def test_columns(writer):
    for step, loss in ((1, 0.5), (2, 0.25), (3, np.nan)):
        writer.append(row(step, loss=loss, **({"valid_metric": 0.1 * step} if step > 1 else {})))
    run = Run(writer.folder)
    assert [part.tolist() for part in run.curve("loss")] == [[1, 2], [0.5, 0.25]]
    assert run.curve("loss", nan=True)[0].tolist() == [1, 2, 3]
    assert run.curve("valid_metric", nan=True)[0].tolist() == [2, 3]
    assert (run.last("loss"), run.last("valid_metric")) == (0.25, pytest.approx(0.3))
    assert (run.best("loss"), run.best("valid_metric", higher=True)) == (0.25, pytest.approx(0.3))
    assert np.isnan(run.last("valid_loss"))
    assert np.isnan(run.best("valid_loss"))
    assert run.probe("gradient_norm") is None


def test_a_run_that_has_just_begun(writer):
    run = Run(str(writer.folder))
    assert run.status["state"] == "running"
    assert all(len(column) == 0 for column in run.metrics.values())
    assert run.probes is None
    for which in ("last", "best"):
        with pytest.raises(ValueError, match=f"has no {which} weights yet"):
            run.weights(which)
    with pytest.raises(ValueError, match=r"^which must be last or best, got 'first'$"):
        run.weights("first")


def test_a_row_cut_off_by_a_crash_is_left_out(writer):
    writer.append(row(1))
    with open(writer.folder / "metrics.csv", "a") as file:
        file.write("2,0.123")
    assert Run(writer.folder).metrics["step"].tolist() == [1]


def test_rows_after_the_checkpoint_are_dropped(writer):
    for step in range(1, 6):
        writer.append(row(step))
    lines = Run(writer.folder).metric_lines()
    assert writer.keep_until(3, lines) == lines[:3]
    writer.append(row(4, loss=9.0))
    assert Run(writer.folder).metrics["step"].tolist() == [1, 2, 3, 4]
    assert Run(writer.folder).metrics["loss"][-1] == 9


def test_numbers_survive_the_text():
    values = np.float32([1 / 3, 1e-30, 12345.678, np.nan])
    lines = [metrics.to_line({"step": i, "loss": float(v)}) for i, v in enumerate(values)]
    np.testing.assert_array_equal(metrics.to_arrays(lines)["loss"].astype(np.float32), values)


@pytest.mark.parametrize("file", ["config.toml", "status.toml", "metrics.csv", "probes.npz"])
def test_a_damaged_file_is_named(writer, file):
    (writer.folder / file).write_bytes(b"\x00nonsense\n\xff")
    with pytest.raises(ValueError, match=f"^{file} of run '.*one' cannot be read: "):
        getattr(Run(writer.folder), file.split(".")[0])


@pytest.mark.parametrize(
    ("junk", "shown"),
    [
        (b"foo,bar", "'foo,bar'"),
        (b"2,0.1", "'2,0.1'"),
        (b"2,0.1,,,,,0.5,7", "'2,0.1,,,,,0.5,7'"),
        (b"2,0.1,,,,,half", "'2,0.1,,,,,half'"),
        (b"2,0.1\xff,,,,,0.5", r"'2,0.1\\xff,,,,,0.5'"),
        (b"", "''"),
    ],
    ids=["words", "short", "long", "no-number", "byte", "empty"],
)
def test_a_line_that_is_no_row_is_named(writer, junk, shown):
    writer.append(row(1))
    with open(writer.folder / "metrics.csv", "ab") as file:
        file.write(junk + b"\n" + row(3).encode() + b"\n")
    for read in (Run(writer.folder).metric_lines, lambda: Run(writer.folder).metrics):
        with pytest.raises(ValueError) as error:
            read()
        assert str(error.value) == (
            f"metrics.csv of run {str(writer.folder)!r} cannot be read: "
            f"line 3 must hold a step and 6 numbers, got {shown}"
        )


@pytest.mark.parametrize("value", [0.0, -1.5, 1e-30, 123456789.0, float("inf"), -float("inf"), float("nan")])
def test_every_number_that_is_written_can_be_read(writer, value):
    writer.append(row(1, loss=value))
    np.testing.assert_array_equal(Run(writer.folder).metrics["loss"], np.float64([value]))


def test_line_ends_of_another_system(writer):
    writer.append(row(1))
    path = writer.folder / "metrics.csv"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert Run(writer.folder).metrics["step"].tolist() == [1]


def test_no_run_there(tmp_path):
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(ValueError, match=r"^folder '.*' holds no run: it has no config.toml$"):
            Run(folder)
        with pytest.raises(ValueError, match=r"holds no run"):
            RunWriter.reopen(folder)


def test_a_run_is_not_overwritten(writer):
    writer.close()
    with pytest.raises(ValueError, match=r"^folder '.*one' holds a run already: resume it or choose another folder$"):
        RunWriter.create(writer.folder, CONFIG)


def test_a_second_writer_is_refused(writer):
    with pytest.raises(ValueError, match=r"^folder '.*one' is being written by another process$"):
        RunWriter.reopen(writer.folder)
    writer.close()
    RunWriter.reopen(writer.folder).close()


def test_unwritable_folders(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"^folder '.*file' is a file, a run needs a folder$"):
        RunWriter.create(tmp_path / "file", CONFIG)
    with pytest.raises(ValueError, match=r"^folder '.*run' cannot be written: Not a directory$"):
        RunWriter.create(tmp_path / "file" / "run", CONFIG)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission(tmp_path):
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    with pytest.raises(ValueError, match=r"^folder '.*run' cannot be written: Permission denied$"):
        RunWriter.create(locked / "run", CONFIG)


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("config.toml", b"training = 3\n", "config.toml of run .* is damaged: 'training' is no table"),
        ("config.toml", b"", "config.toml of run .* cannot be read: .* it is empty"),
        ("config.toml", b"\xff", "config.toml of run .* cannot be read: .* line 1 is not UTF-8 text"),
        ("status.toml", b"step = 3\n", "status.toml of run .* is damaged: it has no state"),
        ("status.toml", b"state = 3\n", "status.toml of run .* is damaged: it has no state"),
    ],
)
def test_damaged_tables_are_one_sentence(tmp_path, file, content, said):
    (tmp_path / "config.toml").write_bytes(b"[training]\nsteps = 3\n")
    (tmp_path / file).write_bytes(content)
    with pytest.raises(ValueError, match=said) as error:
        _ = Run(tmp_path).status
    assert type(error.value) is ValueError
    assert "\n" not in str(error.value)
