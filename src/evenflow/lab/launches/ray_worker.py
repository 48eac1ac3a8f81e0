"""What a worker of Ray does with a launch: fetch the run folders, train, and send the folders back."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from evenflow.lab.training.launch import hardware
from evenflow.lab.training.run_folder import CONFIG
from evenflow.lab.training.stopping import signal_handlers
from evenflow.runtime.lock_folder import lock_folder

from .here import Work
from .run_copies import Sender, fetch
from .run_store import Store

SEND_EVERY = 3.0  # seconds between two copies of the run folders
LOCK_WAIT = 60.0  # seconds in which Ray ends a worker that it has given up


@dataclass(frozen=True)
class WorkerSetup:
    """What a worker takes over from the process that started the launch.

    Attributes:
        folder: the current folder; entered if the worker has it.
        paths: where Python looks for modules.
        flush_denormal: whether denormal numbers are flushed to zero.
        threads: of torch; None leaves them.
        on_gpu: whether Ray gave it a GPU, or a share of one.
        token: a folder that a worker sees if it shares the folders of the runs; None if they are not to be used there.
    """

    folder: str
    paths: tuple[str, ...]
    flush_denormal: bool
    threads: int | None
    on_gpu: bool
    token: str | None


@dataclass(frozen=True)
class WorkerReport:
    """How a launch ended on a worker.

    Attributes:
        hardware: what it ran on; None if it did not run, because the worker does not see the folders of the runs.
        warnings: the warnings of the package.
    """

    hardware: str | None
    warnings: tuple[str, ...] = ()


def run_launch(work: Work, folders: Mapping[str, Path], store: Store | None, setup: WorkerSetup) -> WorkerReport:
    """Run a launch on a worker.

    Args:
        work: of the `Launch`.
        folders: of the runs, where the launch was made, by their keys in the store.
        store: where the runs are if the worker does not see these folders; None if there is none.
        setup: of the process.
    """
    shared = setup.token is not None and os.path.exists(setup.token)
    if not shared and store is None:
        return WorkerReport(None)
    _prepare(setup)
    with warnings.catch_warnings(record=True) as caught, signal_handlers():
        warnings.simplefilter("default")
        with nullcontext(list(folders.values())) if shared or store is None else _brought(folders, store) as places:
            _wait_for_locks(places)
            work(places, False)
    package = str(Path(__file__).parents[2])
    said = tuple(str(each.message) for each in caught if str(each.filename).startswith(package))
    return WorkerReport(hardware("auto" if setup.on_gpu else "cpu"), said)


def _prepare(setup: WorkerSetup) -> None:
    with suppress(OSError):
        os.chdir(setup.folder)
    sys.path.extend(path for path in setup.paths if path not in sys.path)
    torch.set_flush_denormal(setup.flush_denormal)
    if setup.threads is not None:
        torch.set_num_threads(setup.threads)
    if not setup.on_gpu:  # device "auto" is then the CPU
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


@contextmanager
def _brought(folders: Mapping[str, Path], store: Store) -> Iterator[list[Path]]:
    """The run folders in a folder of this machine, fetched from the store and sent to it every few seconds."""
    with tempfile.TemporaryDirectory(prefix="evenflow-runs-") as scratch:
        places = {key: Path(scratch) / "runs" / key for key in folders}
        sender = Sender(places, store, Path(scratch) / "held")
        for key, place in places.items():
            for name in fetch(key, place, store):
                sender.received(key, name)
        over = threading.Event()
        thread = threading.Thread(target=_send_often, args=(sender, over), daemon=True)
        thread.start()
        try:
            yield list(places.values())
        finally:
            over.set()
            thread.join()
            sender.send()


def _send_often(sender: Sender, over: threading.Event) -> None:
    while not over.wait(SEND_EVERY):
        with suppress(Exception):  # the store may be away for a moment; the last copy, after the runs, must succeed
            sender.send()


def _wait_for_locks(folders: Sequence[Path]) -> None:
    """Wait until no other process trains these runs: the worker before, which Ray has given up and is ending."""
    end = time.monotonic() + LOCK_WAIT
    for folder in folders:
        while (folder / CONFIG).is_file() and time.monotonic() < end:
            try:
                descriptor = lock_folder(folder)
            except BlockingIOError:
                time.sleep(0.2)
                continue
            if descriptor is not None:
                os.close(descriptor)
            break
