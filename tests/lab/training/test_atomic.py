"""A disk that is full: the file is named, nothing half-written stays, and the run says how it ended."""

from __future__ import annotations

import errno
import io
import os
from pathlib import Path

import pytest

from evenflow.lab.report import write_report
from evenflow.lab.training import Run, atomic, resume, run_writer, train

CONFIG = {
    "task": {"name": "adding", "length": 6},
    "system": {"name": "rnn", "hidden_size": 4},
    "training": {"steps": 6, "batch_size": 2, "validate_every": 2, "validation_batches": 1, "log_every": 1},
}


def full(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


def temporaries(folder: Path) -> list[Path]:
    return list(folder.rglob(atomic.TEMPORARY + "*"))


@pytest.mark.parametrize("moment", ["fsync", "replace"])
def test_the_file_is_named_and_stays_as_it_was(tmp_path, monkeypatch, moment):
    path = tmp_path / "file"
    atomic.write(path, b"before")
    monkeypatch.setattr(os, moment, full)
    with pytest.raises(OSError, match="No space left on device") as error:
        atomic.write(path, b"after")
    assert (error.value.errno, error.value.filename) == (errno.ENOSPC, str(path))
    assert os.listdir(tmp_path) == ["file"]
    assert path.read_bytes() == b"before"


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError) as error:
        atomic.write(tmp_path / "none" / "file", b"")
    assert error.value.filename == str(tmp_path / "none" / "file")


def test_an_interruption_leaves_no_temporary(tmp_path, monkeypatch):
    def interrupt(descriptor):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        atomic.write(tmp_path / "file", b"after")
    assert os.listdir(tmp_path) == []


class Full(io.BufferedWriter):
    """Metrics whose fourth row finds the disk full, and so does what the buffer holds when it is closed."""

    rows = 0

    def flush(self):
        if self.rows == 3:
            full()
        super().flush()
        self.rows += 1


def fill_at_fourth_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """From then on no row and no new file finds room; a file keeps the room it has."""
    keep_until, write_flushed, opened = run_writer.RunWriter.keep_until, atomic.write_flushed, []

    def keep(writer, step, lines):
        kept = keep_until(writer, step, lines)
        writer.close_metrics()
        writer._metrics = Full(open(writer.folder / "metrics.csv", "ab", buffering=0))  # noqa: SIM115
        opened.append(writer._metrics)
        return kept

    def write(path, content):
        if opened and opened[-1].rows == 3:
            path.write_bytes(content[: len(content) // 2])
            full()
        write_flushed(path, content)

    monkeypatch.setattr(run_writer.RunWriter, "keep_until", keep)
    monkeypatch.setattr(atomic, "write_flushed", write)


def test_a_run_on_a_full_disk_says_how_it_ended_and_goes_on_later(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        fill_at_fourth_row(patch)
        with pytest.raises(OSError, match=r"No space left on device: '.*metrics.csv'"):
            train(CONFIG, folder, progress=False)
    status = Run(folder).status
    assert (status["state"], status["step"]) == ("failed", 4)
    assert status["message"].endswith(f"No space left on device: '{folder / 'metrics.csv'}'")
    assert temporaries(folder) == []
    resume(folder, progress=False)
    train(CONFIG, tmp_path / "alone", progress=False)
    lines = [[line.rsplit(",", 1)[0] for line in Run(f).metric_lines()] for f in (folder, tmp_path / "alone")]
    assert lines[0] == lines[1]
    assert Run(folder).status == Run(tmp_path / "alone").status


def test_a_shorter_status_takes_the_place_of_a_longer_one(tmp_path, monkeypatch):
    writer = run_writer.RunWriter.create(tmp_path / "run", CONFIG)
    try:
        for message in ("short", "long " * 20, "short again"):
            writer.status("failed", message=message)
            assert Run(writer.folder).status["message"] == message
            monkeypatch.setattr(os, "replace", full)
    finally:
        writer.close()
    assert temporaries(tmp_path) == []


def test_a_report_on_a_full_disk_leaves_no_temporary(tmp_path, monkeypatch):
    train(CONFIG, tmp_path / "run", progress=False)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises((OSError, ValueError), match=r"page.html"):
        write_report([tmp_path / "run"], tmp_path / "page.html")
    assert temporaries(tmp_path) == []
