"""Loggers get every row of metrics.csv, the settings, the git revision and the outcome."""

from __future__ import annotations

import csv
import math
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lightning_fabric.loggers import CSVLogger, Logger

from evenflow import SequenceModel, create, fit
from evenflow.lab.tasks import make
from evenflow.lab.training import NonFiniteLoss, Run, resume, train, train_population
from evenflow.lab.training.loggers import git_revision
from evenflow.runtime.import_path import import_path

LENGTH, UNITS = 12, 8
ADDING = make("adding", length=LENGTH)
QUICK: dict[str, Any] = {"steps": 6, "batch_size": 4, "validate_every": 3, "log_every": 3, "device": "cpu"}
SYSTEM = {"name": "urnn", "hidden_size": UNITS}
SAME = 1e-5  # float32 rounding of one number
OUTCOME = {"best_step", "best_loss", "best_metric", "solved"}  # logged once, at the end


def model() -> SequenceModel:
    return SequenceModel(create("urnn", 2, UNITS), 1)


def config(**training: Any) -> dict[str, Any]:
    return {"task": {"name": "adding", "length": LENGTH}, "system": SYSTEM, "training": QUICK | training}


def check_rows(logged: dict[str, list[tuple[int, float]]], run: Run) -> None:
    """`logged` holds every number of metrics.csv at its step, and the outcome at the last."""
    assert set(logged) == {*run.metrics, *OUTCOME} - {"step"}
    for name, points in logged.items():
        steps, values = zip(*points, strict=True)
        if name in OUTCOME:
            assert points == [(6, pytest.approx(float(run.status[name]), rel=SAME))]
        else:
            assert list(steps) == run.metrics["step"].tolist()
            np.testing.assert_allclose(values, run.metrics[name], rtol=SAME)


def tensorboard_numbers(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def wandb_records(file: Path) -> Iterator[Any]:
    """The records of a file of an offline run: blocks of 32 KiB, in which a record has a header of 7 bytes."""
    from wandb.proto import wandb_internal_pb2

    content, at, parts = file.read_bytes(), 7, b""  # a header of the file stands first
    while at + 7 <= len(content):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
        _, length, kind = struct.unpack("<IHB", content[at : at + 7])
        parts += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record, or the last of its parts
            yield wandb_internal_pb2.Record.FromString(parts)
            parts = b""


def wandb_runs(folder: Path) -> list[list[Any]]:
    import wandb

    wandb.teardown()  # its service writes the file, and may still be at it after the end of the run
    files = sorted(folder.glob("wandb/offline-run-*/*.wandb"), key=lambda file: file.parent.name)
    return [list(wandb_records(file)) for file in files]


def wandb_numbers(records: list[Any]) -> dict[str, list[tuple[int, float]]]:
    logged: dict[str, list[tuple[int, float]]] = {}
    for record in records:
        if record.WhichOneof("record_type") == "history":
            row = {".".join(item.nested_key) or item.key: float(item.value_json) for item in record.history.item}
            for name in row:
                if not name.startswith("_"):
                    logged.setdefault(name, []).append((int(row["_step"]), row[name]))
    return logged


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="Weights & Biases is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")


@pytest.fixture
def file_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A client of a local file store of MLflow."""
    mlflow = pytest.importorskip("mlflow", reason="MLflow is not installed")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return mlflow.MlflowClient()


def mlflow_runs(client: Any) -> list[Any]:
    return client.search_runs([client.get_experiment_by_name("evenflow").experiment_id])


def test_tensorboard_gets_the_rows_the_settings_and_the_outcome(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(config(logger="tensorboard"), tmp_path / "run")
    events = tmp_path / "run" / "tensorboard"
    check_rows(tensorboard_numbers(events), Run(tmp_path / "run"))
    accumulator = EventAccumulator(str(events))
    accumulator.Reload()
    (text,) = accumulator.Tensors("settings/text_summary")
    written = text.tensor_proto.string_val[0].decode()
    assert "system.name = urnn" in written
    assert f"git_revision = {git_revision()}" in written


def test_wandb_gets_the_rows_the_settings_and_the_outcome(tmp_path: Path, offline: None) -> None:
    train(config(logger="wandb", seed=3), tmp_path / "run")
    (records,) = wandb_runs(tmp_path / "run")
    check_rows(wandb_numbers(records), Run(tmp_path / "run"))
    (run,) = [record.run for record in records if record.WhichOneof("record_type") == "run"]
    settings = {item.key or item.nested_key[0]: item.value_json for item in run.config.update}
    assert (run.project, run.display_name) == ("evenflow", "run")
    assert set(run.tags) == {"adding", "urnn", "seed 3"}
    assert settings["system.hidden_size"] == str(UNITS)
    assert settings["git_revision"] == ("null" if git_revision() is None else f'"{git_revision()}"')
    (end,) = [record.exit for record in records if record.WhichOneof("record_type") == "exit"]
    assert end.exit_code == 0


def test_a_resumed_run_is_the_same_run_of_wandb(tmp_path: Path, offline: None) -> None:
    train(config(logger="wandb"), tmp_path / "run")
    resume(tmp_path / "run", steps=9)
    first, second = wandb_runs(tmp_path / "run")
    names = {record.run.run_id for record in (*first, *second) if record.WhichOneof("record_type") == "run"}
    assert len(names) == 1
    assert [step for step, _ in wandb_numbers(second)["loss"]] == [9]


def test_wandb_writes_into_a_relative_folder_though_its_service_runs_elsewhere(
    tmp_path: Path, offline: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(config(logger="wandb"), tmp_path / "first")  # starts the service, in the current folder of this test
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    train(config(logger="wandb"), "run")
    (records,) = wandb_runs(tmp_path / "elsewhere" / "run")
    check_rows(wandb_numbers(records), Run(tmp_path / "elsewhere" / "run"))


def test_seeds_that_train_together_are_runs_of_their_own(tmp_path: Path, offline: None) -> None:
    folders = [tmp_path / f"seed-{seed}" for seed in range(2)]
    train_population([config(logger="wandb", seed=seed) for seed in range(2)], folders)
    for folder in folders:
        (records,) = wandb_runs(folder)
        check_rows(wandb_numbers(records), Run(folder))


def test_wandb_without_a_key_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb", reason="Weights & Biases is not installed")

    def refuse(**_: Any) -> None:
        raise wandb.errors.UsageError("No API key configured. Use `wandb login` to log in.")

    monkeypatch.setattr(wandb, "init", refuse)
    with pytest.raises(ValueError, match=r"^logger wandb cannot start: No API key configured.*WANDB_MODE=offline"):
        train(config(logger="wandb"), tmp_path / "run")


def test_mlflow_gets_the_rows_the_settings_and_the_outcome(tmp_path: Path, file_store: Any) -> None:
    train(config(logger="mlflow", seed=3), tmp_path / "run")
    (found,) = mlflow_runs(file_store)
    identifier = found.info.run_id
    logged = {
        name: [(point.step, point.value) for point in file_store.get_metric_history(identifier, name)]
        for name in found.data.metrics
    }
    check_rows(logged, Run(tmp_path / "run"))
    assert (found.info.run_name, found.info.status) == ("run", "FINISHED")
    assert found.data.tags["evenflow.tags"] == "adding, urnn, seed 3"
    assert found.data.tags.get("mlflow.source.git.commit") == git_revision()
    assert found.data.params["training.lr"] == "0.001"
    resume(tmp_path / "run", steps=9)
    assert [run.info.run_id for run in mlflow_runs(file_store)] == [identifier]


def test_a_run_that_diverges_has_failed_in_mlflow(file_store: Any) -> None:
    with pytest.raises(NonFiniteLoss):
        train(config(logger="mlflow", optimizer="sgd", lr=1e30))
    assert [run.info.status for run in mlflow_runs(file_store)] == ["FAILED"]


def test_a_logger_of_fabric_as_an_object_and_one_by_name(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    own = CSVLogger(tmp_path / "logs", name="mine", version="one")
    result = fit(model(), ADDING, folder=tmp_path / "run", logger=["tensorboard", own], **QUICK)
    with open(tmp_path / "logs" / "mine" / "one" / "metrics.csv") as file:
        rows = list(csv.DictReader(file))
    losses = [float(row["loss"]) for row in rows if row["loss"]]
    np.testing.assert_allclose(losses, result.history["loss"], rtol=SAME)
    assert tensorboard_numbers(tmp_path / "run" / "tensorboard")["loss"][-1][0] == 6
    assert Run(tmp_path / "run").config["training"]["logger"] == f"tensorboard+{import_path(own)}"


class Broken(Logger):
    """Fails after its first row."""

    def __init__(self) -> None:
        self.rows: list[int | None] = []
        self.settings: dict[str, Any] = {}

    @property
    def name(self) -> str:
        return "broken"

    @property
    def version(self) -> str:
        return "1"

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        self.rows.append(step)
        if len(self.rows) > 1:
            raise ConnectionError("the service has gone")

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        self.settings = dict(params)


def test_a_logger_that_fails_does_not_end_the_run() -> None:
    broken = Broken()
    with pytest.warns(UserWarning, match=r"^logger .*Broken is left out from here on, it failed: the service has gone"):
        result = fit(model(), ADDING, logger=broken, **QUICK)
    assert result.steps == 6
    assert broken.rows == [3, 6]
    assert broken.settings["training.steps"] == 6


def test_the_numbers_of_a_run_do_not_depend_on_its_loggers(tmp_path: Path, offline: None) -> None:
    plain, logged = (train(config(logger=logger), tmp_path / str(logger)) for logger in (None, "wandb"))
    assert plain.history["loss"].tolist() == logged.history["loss"].tolist()


def test_a_resumed_run_may_turn_a_logger_on(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    fit(model(), ADDING, folder=tmp_path / "run", **QUICK)
    fit(model(), ADDING, folder=tmp_path / "run", resume=True, logger="tensorboard", **QUICK)
    assert math.isfinite(tensorboard_numbers(tmp_path / "run" / "tensorboard")["best_loss"][0][1])


def test_a_run_of_the_time_before_other_loggers(tmp_path: Path) -> None:
    train(config(), tmp_path / "run")
    file = tmp_path / "run" / "config.toml"
    text = file.read_text()
    for value, logger in (("false", None), ("true", "tensorboard")):
        file.write_text(text.replace("[training]\n", f"[training]\ntensorboard = {value}\n", 1))
        assert Run(tmp_path / "run").config["training"].get("logger") == logger
        assert resume(tmp_path / "run").steps == 6


@pytest.mark.parametrize(
    ("logger", "words"),
    [
        ("tensorboard", r"^logger tensorboard writes into the run folder, got folder None$"),
        ("wandbb", r"^unknown logger 'wandbb', did you mean wandb\?$"),
        ("csv", r"^logger 'csv' is not needed: every run folder holds metrics.csv$"),
        ("my_package:Logger", r"^logger 'my_package:Logger' must be given to fit as an object, got its name alone$"),
        (1, r"^logger must be a name, a logger of Lightning Fabric or a list of these, got 1$"),
        (["wandb", "wandb"], r"^logger must hold one logger of a class, got wandb, wandb$"),
    ],
)
def test_a_logger_that_is_not_there(logger: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        fit(model(), ADDING, logger=logger, **QUICK)


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow"])
def test_a_logger_that_is_not_installed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    words = rf"^logger {name} needs the package of that name: pip install 'evenflow\[{name}\]'$"
    with pytest.raises(ValueError, match=words):
        fit(model(), ADDING, folder=tmp_path / "run", logger=name, **QUICK)
    assert not (tmp_path / "run").exists()


def test_the_git_revision_says_whether_files_have_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert git_revision() is None

    def git(*arguments: str) -> str:
        identity = ("-c", "user.name=A", "-c", "user.email=a@b.c")
        done = subprocess.run(["git", *identity, *arguments], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    git("init", "-q")
    (tmp_path / "file").write_text("one")
    git("add", "file")
    git("commit", "-q", "-m", "one")
    commit = git("rev-parse", "HEAD")
    assert git_revision() == commit
    (tmp_path / "file").write_text("two")
    assert git_revision() == f"{commit}-dirty"
