"""Kill workers and drivers of runs on Ray, go on, and compare with the same commands without Ray."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evenflow.lab.launches.ray_worker import run_launch
from evenflow.lab.training.seed_folders import SEEDS
from harden.same_runs import assert_same_folders
from harden.trials import Attack, Trials

PATIENCE = 300  # seconds after which a command counts as hung
AGAIN = 0.3  # chance of one more kill
MOST = 3  # kills of a trial: a launch that loses four workers without a new checkpoint is given up
WORKER = f"ray::{run_launch.__name__}".encode()  # the title that Ray gives to a process with a task
CORES = 2  # of Ray, each with a worker
SMALL = ["--hidden", "8", "--batch-size", "8", "--validation-batches", "1", "-t", "length=20", "--device", "cpu", "-q"]
COMMANDS = {
    "sweep": [
        *("sweep", "adding", *SMALL, "--maps", "exponential,free", "--cells", "elman", "--activations", "relu,abs"),
        *("--lrs", "1e-2,1e-3", "--updates", "2400", "--first", "100"),
    ],
    "train --seeds": [
        *("train", "adding", "rnn", *SMALL, "--seeds", "4", "--side-by-side", "2", "--steps", "600"),
        *("--checkpoint-every", "50", "--validate-every", "50"),
    ],
}  # fmt: skip


@dataclass(frozen=True)
class Undisturbed:
    """A command without Ray: its folder, and the seconds that it took on Ray after it had made a folder."""

    folder: Path
    seconds: float


class LocalRay:
    """A Ray of this machine, on which commands run as on a cluster."""

    def __init__(self, cluster: Any) -> None:
        self.options = ["--on", "ray", "--address", cluster.address]
        self._raylet = cluster.head_node.all_processes["raylet"][0].process.pid

    def busy_workers(self) -> list[int]:
        """The processes that have a task."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
                title = (path / "cmdline").read_bytes()
            except OSError:
                continue  # it has ended
            if parent == self._raylet and title.startswith(WORKER):
                found.append(int(path.name))
        return found


@contextmanager
def local_ray() -> Iterator[LocalRay]:
    """Start Ray, and end all its processes after the block."""
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": CORES, "include_dashboard": False})
    try:
        yield LocalRay(cluster)
    finally:
        cluster.shutdown()


@contextmanager
def started(command: list[str], folder: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """A command of evenflow that trains in a folder, or goes on there; it is killed if it outlives the block."""
    again = [] if command[0] == "sweep" or not (folder / SEEDS).is_file() else ["resume", str(folder), "-q"]
    whole = [sys.executable, "-m", "evenflow", *(again or [*command, "--folder", str(folder)]), *options]
    with (
        folder.with_suffix(".log").open("wb") as log,
        subprocess.Popen(whole, stdout=log, stderr=log, start_new_session=True) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def ended_well(process: subprocess.Popen[bytes], folder: Path) -> None:
    """Wait until a command has ended without an error."""
    try:
        code: object = process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        code = "hung"
    said = folder.with_suffix(".log").read_text(errors="replace")
    assert code == 0, f"a command ended with {code}: {said[-1500:]}"


def wait_for(folder: Path, process: subprocess.Popen[bytes]) -> float:
    """Wait until a command has made its folder, and return the time."""
    while not folder.exists() and process.poll() is None:
        time.sleep(0.02)
    return time.monotonic()


def undisturbed(command: list[str], ray: LocalRay, folder: Path) -> Undisturbed:
    """Run a command without Ray and, to measure its duration, with it."""
    folder.mkdir(parents=True)
    with started(command, folder / "here") as process:
        ended_well(process, folder / "here")
    with started(command, folder / "there", *ray.options) as process:
        start = wait_for(folder / "there", process)
        ended_well(process, folder / "there")
    assert_same_folders(folder / "here", folder / "there")
    return Undisturbed(folder / "here", time.monotonic() - start)


def kill_drivers(command: list[str], ray: LocalRay, folder: Path, trials: Trials, seconds: float) -> int:
    """Kill the command itself at random moments, start it again, and let it end; the number of kills."""
    kills = 0
    while kills == 0 or (kills < MOST and trials.chance.random() < AGAIN):
        delay = trials.chance.uniform(0, seconds)
        with started(command, folder, *ray.options) as process:
            wait_for(folder, process)
            try:
                process.wait(delay)
            except subprocess.TimeoutExpired:
                process.kill()
                kills += 1
            else:
                break  # it was quicker this time
    with started(command, folder, *ray.options) as process:
        ended_well(process, folder)
    return kills


def kill_workers(command: list[str], ray: LocalRay, folder: Path, trials: Trials, seconds: float) -> int:
    """Kill workers at random moments while the command goes on; the number of kills."""
    kills = 0
    with started(command, folder, *ray.options) as process:
        wait_for(folder, process)
        while kills == 0 or (kills < MOST and trials.chance.random() < AGAIN):
            time.sleep(trials.chance.uniform(0, seconds))
            while not (workers := ray.busy_workers()) and process.poll() is None:
                time.sleep(0.02)
            if process.poll() is not None:
                break
            try:
                os.kill(trials.chance.choice(workers), signal.SIGKILL)
                kills += 1
            except ProcessLookupError:
                continue
        ended_well(process, folder)
    return kills


def attack_ray(trials: Trials) -> None:
    """Kill drivers and workers of each command in turn until the time is over."""
    if importlib.util.find_spec("ray") is None:
        trials.notes.append("Runs on Ray were left out: the package ray is not installed.")
        return
    if not Path("/proc/self/stat").is_file():
        trials.notes.append("Runs on Ray were left out: their workers are found in /proc, which is not there.")
        return
    folder, alone = trials.folder / "killed" / "run", dict[str, Undisturbed]()
    with local_ray() as ray:
        while trials.running:
            for name, command in COMMANDS.items():
                for kill in (kill_workers, kill_drivers):
                    if not trials.running:
                        break
                    if name not in alone:
                        alone[name] = undisturbed(command, ray, trials.folder / command[0])
                    shutil.rmtree(folder.parent, ignore_errors=True)
                    folder.parent.mkdir()
                    with trials.trial(f"{name} on Ray, {kill.__name__}"):
                        trials.tried += kill(command, ray, folder, trials, alone[name].seconds) - 1
                        assert_same_folders(alone[name].folder, folder)


ATTACKS = (
    Attack("ray", "workers and commands of runs on Ray killed at random times, gone on, compared", attack_ray, 1),
)
