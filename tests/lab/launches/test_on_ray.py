"""Launches on Ray: the bits of launches here, whatever is lost on the way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from local_s3 import bucket_on
from ray_cluster import small_cluster

from evenflow.lab import cli
from evenflow.lab.launches import Launch, OnRay
from evenflow.lab.launches.run_store import RunStore
from evenflow.lab.recipes import parse, reproduce
from evenflow.lab.sweep import Axes, Rules, sweep
from evenflow.lab.sweep.compare import compare
from evenflow.lab.training import Run

pytestmark = pytest.mark.slow
PATIENCE = 300  # seconds, on a busy machine
TASK = {"name": "adding", "length": 20}
TRAINING = {"batch_size": 8, "validation_batches": 1, "device": "cpu", "log_every": 5}
AXES = Axes(
    maps=["exponential", "rotations", "free"],
    cells=["elman"],
    activations=["relu", "abs"],
    hidden=[8],
    lrs=[0.01, 0.003, 0.001, 1e-9],
)
RULES = Rules(updates=1000, first=16, keep=0.33, finalists=2, seeds=2)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """The tests share its workers, which load torch once."""
    ray = pytest.importorskip("ray")
    with bucket_on(), small_cluster() as nodes:
        ray.init(address=nodes.address, log_to_driver=False, logging_level="ERROR")
        try:
            yield nodes
        finally:
            ray.shutdown()


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def points(folder, place=None, **options):
    return sweep(TASK, AXES, RULES, folder, training=TRAINING, place=place, progress=False, **options)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """The sweep in this process."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("plain") / "sweep"
    points(folder)
    return folder


def record(folder):
    """sweep.json without what may differ between two sweeps of the same request."""
    table = json.loads((folder / "sweep.json").read_text())
    for name in ("seconds", "began", "hardware"):
        table.pop(name)
    for each in table["rounds"]:
        for scores in each["scores"].values():
            for score in scores:
                score.pop("seconds")
    return table


def assert_same_runs(one, other):
    """All runs have the same rows, but for the clock, and the same bits in all weights."""
    folders = sorted(path.parent.relative_to(one) for path in one.rglob("config.toml"))
    assert folders == sorted(path.parent.relative_to(other) for path in other.rglob("config.toml"))
    for folder in folders:
        first, second = Run(one / folder), Run(other / folder)
        assert [line.rsplit(",", 1)[0] for line in first.metric_lines()] == [
            line.rsplit(",", 1)[0] for line in second.metric_lines()
        ]
        assert first.status == second.status
        for which in ("last", "best"):
            mine, theirs = first.weights(which), second.weights(which)
            assert all(torch.equal(tensor, theirs[name]) for name, tensor in mine.items())


def assert_same_sweeps(one, other):
    assert json.dumps(record(one), indent=1) == json.dumps(record(other), indent=1)
    assert_same_runs(one, other)


def when_runs(folder, ended, then):
    """Call `then` in a thread as soon as that many runs have ended."""

    def watch():
        while sum("finished" in path.read_text() for path in Path(folder).glob("*/status.toml")) < ended:
            time.sleep(0.02)
        then()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("storage", [None, "driver", "s3://bucket/runs"])
def test_a_sweep_that_loses_a_node_ends_like_one_here(cluster, plain, tmp_path, storage):
    """24 points on three nodes, one of which is killed in the middle."""
    folder = tmp_path / "sweep"
    cluster.have(2, cores=1)
    with OnRay(storage=storage) as place:
        thread = when_runs(folder, 6, cluster.lose_a_busy_one)
        found = points(folder, place)
        thread.join()
    assert found.finished
    assert len(found.standings) == 24
    assert_same_sweeps(plain, folder)
    assert not list(folder.glob(".writing-*"))


@pytest.mark.parametrize("storage", [None, "driver", "s3://bucket/lost"])
def test_a_run_whose_node_is_lost_goes_on_from_its_last_checkpoint(cluster, tmp_path, storage):
    """The node on which it trains is killed after some checkpoints; the other one that has two cores takes over."""
    training = TRAINING | {"steps": 1500, "checkpoint_every": 25, "validate_every": 500, "lr": 0.01}
    systems = [{"name": "rnn", "hidden_size": 8}]
    compare(TASK, systems, training, [0.01], tmp_path / "plain", progress=False)
    said: list[str] = []
    run = tmp_path / "runs" / "rnn-0.01"
    store = RunStore("/" if storage in (None, "driver") else storage)

    def lose() -> None:
        while (store.read(str(run).lstrip("/"), "checkpoint/latest") or b"") < b"step-000000050":
            time.sleep(0.02)
        if storage is None:
            os.utime(run / "config.toml", (0, 0))
        cluster.lose_a_busy_one()

    cluster.have(2, cores=2)
    with OnRay(cores_each=2, storage=storage, announce=said.append) as place:
        thread = threading.Thread(target=lose, daemon=True)
        thread.start()
        compare(TASK, systems, training, [0.01], tmp_path / "runs", place=place, progress=False)
        thread.join()
    assert "A worker was lost, its runs go on from their last checkpoints: 1 of 1: rnn, lr 0.01" in said
    if storage is None:
        assert (run / "config.toml").stat().st_mtime == 0  # the run was not made again
    assert_same_runs(tmp_path / "plain", tmp_path / "runs")


def test_an_error_of_a_launch_is_that_of_a_launch_here(cluster, tmp_path):
    def refuses(folders, progress):
        raise ValueError(f"no {folders[0].name}")

    launches = [Launch(refuses, (tmp_path / "a",), "a", 1), Launch(refuses, (tmp_path / "b",), "b", 1)]
    with OnRay() as place, pytest.raises(ValueError, match=r"^no [ab]$"):
        place.run(launches)


def test_a_launch_that_loses_every_worker_is_given_up(cluster, tmp_path):
    def dies(folders, progress):
        import os

        os._exit(1)

    said: list[str] = []
    with (
        OnRay(announce=said.append) as place,
        pytest.raises(RuntimeError, match=r"^4 workers in a row were lost with a, without a new checkpoint: "),
    ):
        place.run([Launch(dies, (tmp_path / "a",), "a", 1)])
    assert said == ["A worker was lost, its runs go on from their last checkpoints: a"] * 3


def test_launches_follow_from_others(cluster, tmp_path):
    def makes(folders, progress):
        folders[0].mkdir()

    def launch(name):
        return Launch(makes, (tmp_path / name,), name, 1)

    seen = []

    def ended(each):
        seen.append(each.title)
        return [launch(each.title + "b")] if len(each.title) < 3 else []

    with OnRay() as place:
        place.run([launch("a"), launch("c")], ended=ended, progress=False)
    assert sorted(seen) == ["a", "ab", "abb", "c", "cb", "cbb"]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(seen)


QUICK = ["--hidden", "8", "--batch-size", "8", "--validation-batches", "1", "-t", "length=30", "--device", "cpu", "-q"]


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as left:
        cli.main([str(a) for a in arguments])
    return left.value.code


COMMANDS = {
    "compare": ["compare", "adding", "rnn", "lstm", "--lrs", "1e-2,1e-3", "--seeds", "2", "--steps", "30", *QUICK],
    "until solved": ["compare", "adding", "rnn", "--lrs", "1e-2,1e-3", "--until-solved", "--steps", "30", *QUICK],
    "seeds": ["train", "adding", "rnn", "--seeds", "4", "--side-by-side", "2", "--steps", "30", *QUICK],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_end_as_they_do_here(cluster, tmp_path, name, capsys):
    assert run(*COMMANDS[name], "--folder", tmp_path / "here") == 0
    here = capsys.readouterr().out.splitlines()
    assert run(*COMMANDS[name], "--folder", tmp_path / "ray", "--on", "ray") == 0
    assert_same_runs(tmp_path / "here", tmp_path / "ray")
    assert [line for line in here if line.startswith("Mean")] == [
        line for line in capsys.readouterr().out.splitlines() if line.startswith("Mean")
    ]


def test_a_recipe_ends_as_it_does_here(cluster, tmp_path):
    recipe = parse(
        {
            "document": "made",
            "name": "table-1",
            "title": "A made table",
            "measures": "Nothing of interest.",
            "seeds": [1, 2],
            "lrs": [0.1, 0.01],
            "columns": [{"name": "error", "measure": "best_loss", "better": "lower", "tolerance": 10.0}],
            "rows": [
                {"label": name, "system": {"name": name}, "published": {"error": 0.2}} for name in ("rnn", "urnn")
            ],
            "task": {"name": "adding", "length": 10},
            "system": {"hidden_size": 8},
            "training": {"steps": 30, "batch_size": 8, "validate_every": 10, "validation_batches": 1},
            "quick": {"training": {"steps": 20}, "note": "Quick: 20 updates."},
        }
    )
    here = reproduce(recipe, folder=tmp_path / "here", progress=False, device="cpu")
    with OnRay() as place:
        there = reproduce(recipe, folder=tmp_path / "ray", progress=False, device="cpu", place=place)
    assert {key: cell.values for key, cell in here.cells.items()} == {k: c.values for k, c in there.cells.items()}
    assert_same_runs(tmp_path / "here", tmp_path / "ray")


SWEEP = ["sweep", "adding", *QUICK, "--maps", "exponential,free", "--cells", "elman", "--activations", "relu,abs"]
SWEEP += ["--updates", "2400", "--first", "100", "--lrs", "1e-2,1e-3", "--log-every", "5"]


def start(folder: Path, *options: str, **variables: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "evenflow", *SWEEP, "--folder", str(folder), "--on", "ray", *options]
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | variables
    return subprocess.Popen(
        command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )


def wait_for_runs(folder: Path, driver: subprocess.Popen[str]) -> None:
    """Wait until runs are under way."""
    while not any(b"\n30," in path.read_bytes() for path in folder.glob("*/metrics.csv")):
        assert driver.poll() is None, driver.communicate()[1]
        time.sleep(0.05)


@pytest.fixture(scope="module")
def plain_command(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain") / "sweep"
    torch.set_num_threads(1)
    assert run(*SWEEP, "--folder", folder) == 0
    return folder


@pytest.mark.parametrize("storage", [(), ("--storage", "driver"), ("--storage", "s3://bucket/killed")])
def test_a_killed_driver_goes_on_with_the_sweep(cluster, plain_command, tmp_path, storage):
    folder = tmp_path / "sweep"
    with start(folder, "--address", cluster.address, *storage) as driver:
        if "s3" in str(storage):
            store = RunStore(storage[1])
            while not any(name.endswith("latest") for name in store.names("")):
                time.sleep(0.05)
        else:
            wait_for_runs(folder, driver)
        driver.kill()
    assert json.loads((folder / "sweep.json").read_text())["state"] == "running"
    with start(folder, "--address", cluster.address, *storage) as driver:
        _said, errors = driver.communicate(timeout=PATIENCE)
    assert driver.returncode == 0, errors
    assert_same_sweeps(plain_command, folder)


def processes(mark: str) -> list[int]:
    """The processes that have a variable of this value in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            found += [int(path.parent.name)] if mark.encode() in path.read_bytes() else []
        except OSError:
            continue
    return found


def left_after_a_while(mark: str) -> list[int]:
    """The processes that do not end."""
    end = time.monotonic() + PATIENCE
    while processes(mark) and time.monotonic() < end:
        time.sleep(0.1)
    return processes(mark)


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="reads /proc")
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_interrupted_all_runs_save_and_no_process_stays(plain_command, tmp_path, signum):
    """On a Ray of its own, which gets the signal too, as from a terminal."""
    folder, mark = tmp_path / "sweep", str(tmp_path)
    with start(folder, "--cores-each", "0.5", EVENFLOW_MARK=mark) as driver:
        wait_for_runs(folder, driver)
        (os.killpg if signum == signal.SIGINT else os.kill)(driver.pid, signum)
        _said, errors = driver.communicate(timeout=PATIENCE)
    assert driver.returncode == 1
    assert errors == "evenflow: interrupted; the same command goes on where it was\n"
    states = [Run(path.parent).status["state"] for path in folder.glob("*/config.toml")]
    assert "interrupted" in states
    assert "running" not in states
    assert left_after_a_while(mark) == []
    with start(folder, "--cores-each", "0.5", EVENFLOW_MARK=mark) as driver:
        _said, errors = driver.communicate(timeout=PATIENCE)
    assert driver.returncode == 0, errors
    assert left_after_a_while(mark) == []
    assert_same_sweeps(plain_command, folder)
