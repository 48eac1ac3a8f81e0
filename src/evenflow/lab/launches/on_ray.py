"""The place that runs launches as tasks of Ray, on the cores and GPUs of this machine or of a cluster."""

from __future__ import annotations

import importlib.util
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch

from evenflow.checks import number
from evenflow.lab.training.launch import hardware
from evenflow.lab.training.stopping import check_stop, signal_handlers

from .here import Ended, Launch, Started, nothing
from .ray_tasks import RayTasks, launch_token
from .ray_worker import WorkerSetup, run_launch
from .run_store import RunStore, Store

DRIVER = "driver"
AUTHENTICATION = "RAY_AUTH_MODE"  # which Ray sets when it starts
GIGABYTE = 1 << 30


class OnRay:
    """Runs launches as tasks of Ray. Ray starts with the first launch and ends with the block.

    Each task gets `gpus_each` GPUs, `cores_each` cores and, if it is given, `memory_each`, and uses as many threads as
    it has cores. The results are those of `Here` with as many threads, bit for bit. If a worker or a node is lost, its
    runs start again from their last checkpoints somewhere else.

    Args:
        address: "auto" for the cluster that this machine belongs to, or the host:port of a cluster. Default: start Ray
            on this machine.
        gpus_each: GPUs of a launch; with 0.25 four launches share a GPU, with 0 they run on CPUs.
        cores_each: cores of a launch.
        memory_each: gigabytes that are set aside for a launch; None for none.
        storage: where workers keep the run folders: an address of fsspec such as ``"s3://bucket/runs"``, or "driver":
            they send them to this machine. Default: in the folders themselves if the worker sees them, else "driver".
        announce: called with a sentence when a launch has ended or lost its worker.

    >>> with OnRay(gpus_each=0.25) as ray:
    ...     sweep({"name": "digits"}, Axes(hidden=[32]), Rules(updates=20000, first=100), "runs/digits", place=ray)

    Reference: Moritz et al. 2018, Ray: a distributed framework for emerging AI applications.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        gpus_each: float = 0.0,
        cores_each: float = 1.0,
        memory_each: float | None = None,
        storage: str | None = None,
        announce: Callable[[str], object] = lambda _: None,
    ) -> None:
        number("gpus_each", gpus_each, least=0)
        number("cores_each", cores_each, above=0)
        if memory_each is not None:
            number("memory_each", memory_each, above=0)
        if gpus_each > 1 and gpus_each != int(gpus_each):
            raise ValueError(f"gpus_each must be a whole number or below 1, got {gpus_each:g}")
        if address is not None and address.startswith("ray://"):
            raise ValueError(
                f"address must be auto or the host:port of a cluster that this machine belongs to, got {address!r}"
            )
        if importlib.util.find_spec("ray") is None:
            raise ValueError('runs on Ray need the package ray: pip install "evenflow[ray]"')
        self.address, self.gpus_each, self.cores_each, self.memory_each = address, gpus_each, cores_each, memory_each
        self.storage, self.announce, self.note = storage, announce, ""
        self.store: Store | None = None
        if storage is not None and storage != DRIVER:
            self.store = RunStore(storage)
            self.store.check()
        self._ray: Any = None
        self._task: Any = None
        self._own = False
        self._authentication: str | None = None
        self.machines: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._own:
            self._ray.shutdown()
            _set_environment({AUTHENTICATION: self._authentication})
        self._ray, self._own = None, False
        if isinstance(self.store, DriverStore):
            self.store = None  # its process has ended

    def populations(self, device: str) -> bool:
        return self.gpus_each > 0 and device.startswith(("auto", "cuda"))

    def check_device(self, device: str) -> None:
        if device not in ("auto", "cpu", "cuda"):
            raise ValueError(f"device must be auto, cpu or cuda on Ray, which chooses the GPU, got {device!r}")
        if device == "cuda" and not self.gpus_each:
            raise ValueError("device cuda needs gpus_each above 0 on Ray, got 0")

    def hardware(self, device: str) -> str:
        return "; ".join(sorted(self.machines)) or hardware("cpu")

    def run(
        self, launches: Sequence[Launch], *, started: Started = nothing, ended: Ended = nothing, progress: bool = True
    ) -> None:
        """See `LaunchPlace.run`. Launches start in an order that Ray chooses, so `started` is not called."""
        if not launches:
            return
        self._start()
        with launch_token(launches if self.storage is None else ()) as token, signal_handlers():
            tasks = RayTasks(self, token, progress)
            with tasks.watched(progress):
                try:
                    tasks.add(launches)
                    while tasks.running:
                        check_stop()
                        for launch in tasks.wait():
                            tasks.add(ended(launch))
                except BaseException:
                    tasks.stop()
                    raise

    def submit(self, launch: Launch, token: Path | None) -> Any:
        """Hand a launch to Ray, and return the reference to its report."""
        setup = WorkerSetup(
            folder=os.getcwd(),
            paths=tuple(os.path.abspath(path) for path in sys.path if os.path.exists(path or ".")),
            flush_denormal=not float(torch.tensor(1e-38) * 1e-2),
            threads=max(1, int(self.cores_each)),
            on_gpu=self.gpus_each > 0,
            token=None if token is None else str(token),
        )
        needs: dict[str, Any] = {"num_cpus": self.cores_each, "num_gpus": self.gpus_each, "max_retries": 0}
        if self.memory_each is not None:
            needs["memory"] = int(self.memory_each * GIGABYTE)
        folders = {self.key(folder): folder.absolute() for folder in launch.folders}
        return self._task.options(**needs).remote(launch.work, folders, self.store, setup)

    def key(self, folder: Path) -> str:
        """The name of a run folder in the store: its path, seen from the current folder if it lies there."""
        path = Path(os.path.normpath(folder.absolute()))
        if self.storage != DRIVER and self.storage is not None and path.is_relative_to(Path.cwd()):
            path = path.relative_to(Path.cwd())
        return path.as_posix().lstrip("/")

    def _start(self) -> None:
        """Connect to Ray, or start it."""
        if self._ray is not None:
            return
        import ray

        self._ray = ray
        self._task = ray.remote(run_launch)  # one for all launches, so that a worker takes one after the other
        if ray.is_initialized():
            return
        options: dict[str, Any] = {"address": "local", "include_dashboard": False}
        if self.address is not None:
            options = {"address": self.address}
        main = threading.current_thread() is threading.main_thread()
        self._authentication = os.environ.get(AUTHENTICATION)
        before = signal.getsignal(signal.SIGTERM)
        try:
            with _environment(RAY_USAGE_STATS_ENABLED="0"):  # Ray must not report its use
                ray.init(**options, log_to_driver=False, logging_level=logging.ERROR)
        except ConnectionError as error:
            self._ray = None
            raise ValueError(f"no cluster of Ray answers at address {self.address!r}: see `ray start`") from error
        self._own = True
        if main:
            signal.signal(signal.SIGTERM, before)  # Ray's own would end the process without saving
        self._check_resources()
        if self.storage == DRIVER:
            self.use_driver()

    def _check_resources(self) -> None:
        """Say so if no node has what a launch needs; a cluster may still get one that has."""
        needs = {"GPU": self.gpus_each, "CPU": self.cores_each, "memory": (self.memory_each or 0) * GIGABYTE}
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        if any(all(node.get(name, 0) >= amount for name, amount in needs.items()) for node in nodes):
            return
        asked = f"{self.gpus_each:g} GPUs and {self.cores_each:g} cores"
        asked += "" if self.memory_each is None else f" and {self.memory_each:g} gigabytes"
        if self.address is None:
            raise ValueError(f"a launch needs {asked}, and this machine has not as many: ask for less")
        self.announce(f"No node of the cluster has {asked}: the launches wait for one.")

    def use_driver(self) -> None:
        """Let the workers keep the run folders on this machine, whose files an actor of Ray reads and writes."""
        if self.store is None:
            from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

            node = self._ray.get_runtime_context().get_node_id()
            beside = NodeAffinitySchedulingStrategy(node, soft=False)
            actor = self._ray.remote(RunStore).options(num_cpus=0, scheduling_strategy=beside)
            self.store = DriverStore(actor.remote("/"))


@contextmanager
def _environment(**variables: str) -> Iterator[None]:
    """Set variables of the environment, which processes started in the block inherit."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        _set_environment(before)


def _set_environment(variables: Mapping[str, str | None]) -> None:
    """Set variables of the environment, or remove those that are None."""
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@dataclass
class DriverStore:
    """A store on the machine of the driver, which an actor there reads and writes."""

    actor: Any

    def names(self, key: str) -> list[str]:
        return list(self._get(self.actor.names.remote(key)))

    def read(self, key: str, name: str) -> bytes | None:
        content: bytes | None = self._get(self.actor.read.remote(key, name))
        return content

    def write(self, key: str, name: str, content: bytes) -> None:
        self._get(self.actor.write.remote(key, name, content))

    def remove(self, key: str, names: Sequence[str]) -> None:
        self._get(self.actor.remove.remote(key, names))

    def _get(self, result: Any) -> Any:
        import ray

        return ray.get(result)
