"""What happens to a run of several processes when one of them ends: the others end too, each with a sentence.

torchrun then ends, or with --max-restarts starts all processes anew, and the run resumes from its last checkpoint.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from lightning_fabric import Fabric

# What gloo and NCCL say when the process at the other end of a connection is gone; torch has no type for it.
LOST = ("by peer", "Broken pipe", "remote process exited", "Timed out waiting", "Application timeout")
ADVICE = "the same torchrun command with `evenflow resume FOLDER` continues from the last checkpoint"
TERMINATED = f"\nevenflow: another process of the run has ended, or the job was stopped: {ADVICE}\n".encode()


class ProcessLost(RuntimeError):
    """Another process of the run has ended, so that this one cannot go on."""


def restarts() -> bool:
    """Whether torchrun starts the processes anew when one of them ends (--max-restarts)."""
    return int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")) > 0


def join_restarted_group(device: str) -> None:
    """Join the process group of a restart (--max-restarts) under keys of its own; a first start is left to Fabric.

    torchrun keeps one store for all restarts. Without keys of its own a process reads from the store at which address
    another one listened before the restart, and waits there in vain. Only on one machine do all processes count their
    restarts alike.

    Raises:
        ValueError: torchrun may restart processes on several machines, and shares its store with them.
    """
    if not restarts() or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return
    if int(os.environ.get("GROUP_WORLD_SIZE", "1")) > 1:
        raise ValueError(
            "torchrun --max-restarts on several machines must not share its store with the processes: set the "
            "environment variable TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 on each of them"
        )
    attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    if attempt and not torch.distributed.is_initialized():
        store, rank, size = next(iter(torch.distributed.rendezvous("env://")))
        store = torch.distributed.PrefixStore(f"restart-{attempt}", store)
        backend = "gloo" if device == "cpu" else "nccl"
        torch.distributed.init_process_group(backend, store=store, rank=rank, world_size=size)


@contextmanager
def ends_together(fabric: Fabric, folder: str | os.PathLike[str] | None) -> Iterator[None]:
    """Around a run: if another process ends, raise a `ProcessLost` that says how the run continues.

    On CPUs a SIGTERM, by which torchrun ends the other processes on a machine, prints the same advice. On GPUs it ends
    the process at once, because a process that waits for a GPU would not get to a handler in Python.
    """
    if fabric.world_size == 1:
        yield
        return
    place = "FOLDER" if folder is None else str(Path(folder))
    with _said_at_sigterm(fabric.device, TERMINATED.replace(b"FOLDER", place.encode())):
        try:
            yield
        except RuntimeError as error:
            if not isinstance(error, torch.distributed.DistError) and not any(word in str(error) for word in LOST):
                raise
            raise ProcessLost(
                f"process {fabric.global_rank} stops, because another process of the run has ended: "
                f"{ADVICE.replace('FOLDER', place)}"
            ) from error


@contextmanager
def _said_at_sigterm(device: torch.device, sentence: bytes) -> Iterator[None]:
    """Print a sentence before SIGTERM ends the process, unless the program has a handler of its own."""
    default = signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    if device.type != "cpu" or not default or threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        os.write(2, sentence)  # print is not safe here: the signal may come in the middle of another print
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
