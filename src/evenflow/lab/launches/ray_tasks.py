"""The launches that Ray runs at present: waited for, started again where a worker was lost, stopped."""

from __future__ import annotations

import os
import time
import uuid
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from os.path import commonpath
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evenflow.lab.training import atomic
from evenflow.lab.training.progress import ProgressBar, can_show, progress_watcher
from evenflow.lab.training.run_folder import METRICS
from evenflow.runtime.lock_folder import lock_folder

from .here import Launch
from .ray_worker import WorkerReport
from .run_copies import NAMED, ahead_of, fetch, latest, send
from .run_store import RunStore

if TYPE_CHECKING:
    from .on_ray import OnRay

TOKEN = f"{atomic.TEMPORARY}token-"
POLL = 0.5  # seconds between two looks at the tasks
REFRESH = 3.0  # seconds between two looks at the metrics of runs in a store
MOST_LOSSES = 3  # of workers in a row that a launch survives without a new checkpoint


@dataclass
class _RunningLaunch:
    """A launch under way, the checkpoints at its start, and the workers that it has lost since the last new one."""

    launch: Launch
    reached: list[bytes | None]
    losses: int = 0


class RayTasks:
    """The tasks of one call of `OnRay.run`.

    Args:
        place: the cluster, and what a task needs.
        token: a folder that workers see which share the folders of the runs; None if they are not to be used there.
        announced: whether to announce the end of each launch.

    Attributes:
        running: the launches whose report is awaited.
    """

    def __init__(self, place: OnRay, token: Path | None, announced: bool) -> None:
        self.running: dict[Any, _RunningLaunch] = {}
        self._place, self._token, self._announced = place, token, announced
        self._folders: list[Path] = []
        self._bar = ProgressBar(0, shown=False)
        self._total = self._ended = 0
        self._refreshed = time.monotonic()

    def add(self, launches: Iterable[Launch]) -> None:
        """Hand launches to Ray."""
        for launch in launches:
            self._total += 1
            self._bar.extend(launch.updates)
            self._folders += launch.folders
            if isinstance(store := self._place.store, RunStore):
                for folder in launch.folders:
                    if ahead_of(folder, key := self._place.key(folder), store):
                        send(folder, key, store)
            self._submit(_RunningLaunch(launch, self._reached(launch)))
        self._note()

    def wait(self) -> list[Launch]:
        """Wait a moment, and return the launches that have ended; an error of a launch is raised."""
        import ray

        tasks = list(self.running)
        ray.wait(tasks, timeout=POLL)
        ready, _ = ray.wait(tasks, num_returns=len(tasks), timeout=0)
        self._refresh()
        ended = []
        for task in ready:
            attempt = self.running.pop(task)
            try:
                report: WorkerReport = ray.get(task)
            except ray.exceptions.RayTaskError as error:
                raise (error.cause if isinstance(error.cause, Exception) else error) from error
            except _losses() as error:
                self._start_again(attempt, error)
                continue
            if report.hardware is None:
                self._place.use_driver()
                self._submit(attempt)
                continue
            for text in report.warnings:
                warnings.warn(text, stacklevel=2)
            self._place.machines.add(report.hardware)
            self._fetch(attempt.launch)
            self._ended += 1
            if self._announced:
                self._place.announce(f"{self._ended} of {self._total} ended: {attempt.launch.title}")
            ended.append(attempt.launch)
        self._note()
        return ended

    def stop(self) -> None:
        """Let the runs under way save after their update, and wait for them; the others do not start."""
        import ray

        for task in self.running:
            with suppress(ray.exceptions.RayError):
                ray.cancel(task)
        while self.running:
            ready, _ = ray.wait(list(self.running), timeout=POLL)
            for task in ready:
                attempt = self.running.pop(task)
                with suppress(Exception):  # another error ended the runs and is raised after this
                    self._fetch(attempt.launch)

    @contextmanager
    def watched(self, shown: bool) -> Iterator[None]:
        """Show one bar for all launches inside the block."""
        self._bar = ProgressBar(0, shown=shown)
        try:
            with progress_watcher(self._bar, 0, self._folders, lambda: self._place.note, shown):
                yield
        finally:
            self._bar.close()

    def _submit(self, attempt: _RunningLaunch) -> None:
        self.running[self._place.submit(attempt.launch, self._token)] = attempt

    def _start_again(self, attempt: _RunningLaunch, error: Exception) -> None:
        """Hand a launch to Ray again after its worker was lost; too many losses without progress are an error."""
        reached = self._reached(attempt.launch)
        losses = 1 if reached != attempt.reached else attempt.losses + 1
        title = attempt.launch.title
        if losses > MOST_LOSSES:
            reason = str(error).strip().splitlines()[0]
            raise RuntimeError(f"{losses} workers in a row were lost with {title}, without a new checkpoint: {reason}")
        self._place.announce(f"A worker was lost, its runs go on from their last checkpoints: {title}")
        self._submit(_RunningLaunch(attempt.launch, reached, losses))

    def _reached(self, launch: Launch) -> list[bytes | None]:
        store = self._place.store
        if isinstance(store, RunStore):
            return [store.read(self._place.key(folder), NAMED) for folder in launch.folders]
        return [latest(folder) for folder in launch.folders]

    def _fetch(self, launch: Launch) -> None:
        if isinstance(store := self._place.store, RunStore):
            for folder in launch.folders:
                fetch(self._place.key(folder), folder, store)

    def _refresh(self) -> None:
        """Fetch the metrics of the runs under way for the progress bar, if somebody sees it."""
        store = self._place.store
        if not isinstance(store, RunStore) or not can_show() or time.monotonic() < self._refreshed + REFRESH:
            return
        self._refreshed = time.monotonic()
        for attempt in self.running.values():
            for folder in attempt.launch.folders:
                if (content := store.read(self._place.key(folder), METRICS)) is not None:
                    folder.mkdir(parents=True, exist_ok=True)
                    atomic.write(folder / METRICS, content)

    def _note(self) -> None:
        self._place.note = f"{self._ended} of {self._total} launches ended"


@contextmanager
def launch_token(launches: Sequence[Launch]) -> Iterator[Path | None]:
    """A folder beside the run folders, by which a worker knows that it sees them; None without launches.

    It is locked while its command goes on, so that those of killed commands can be told and removed.
    """
    if not launches:
        yield None
        return
    root = Path(commonpath([folder.absolute().parent for launch in launches for folder in launch.folders]))
    token = root / f"{TOKEN}{uuid.uuid4().hex}"
    with atomic.writable(root):
        root.mkdir(parents=True, exist_ok=True)
        _remove_tokens(root)
        token.mkdir()
        lock = lock_folder(token)
    try:
        yield token
    finally:
        with suppress(OSError):
            token.rmdir()
        if lock is not None:
            os.close(lock)


def _remove_tokens(root: Path) -> None:
    """Remove the tokens of commands that were killed."""
    for token in root.glob(f"{TOKEN}*"):
        with suppress(OSError):  # its command goes on
            if (lock := lock_folder(token)) is not None:
                try:
                    token.rmdir()
                finally:
                    os.close(lock)


def _losses() -> tuple[type[Exception], ...]:
    """The errors of Ray that mean that the process or the machine of a task is gone."""
    from ray import exceptions

    return (
        exceptions.WorkerCrashedError,
        exceptions.NodeDiedError,
        exceptions.OutOfMemoryError,
        exceptions.LocalRayletDiedError,
        exceptions.ObjectLostError,
    )
