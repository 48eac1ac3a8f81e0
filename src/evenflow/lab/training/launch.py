"""The device, the precision and the processes of a run, on Lightning Fabric."""

from __future__ import annotations

import atexit
import gc
import inspect
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from .settings import Settings

TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


def launch(settings: Settings) -> Fabric:
    """A Fabric for these settings: one device, or distributed data parallel when `torchrun` started this process.

    Under `torchrun` every process draws batches of its own and gradients are averaged, with gloo on CPUs and nccl on
    GPUs; the processes on one machine take one GPU each.
    """
    check_device(settings.device)
    from lightning_fabric import Fabric
    from lightning_fabric.strategies import DDPStrategy

    kind, _, index = settings.device.partition(":")
    options: dict[str, Any] = {
        "accelerator": kind,
        "precision": "32-true" if settings.precision == "tf32" else settings.precision,
    }
    if all(name in os.environ for name in TORCHRUN) and int(os.environ["WORLD_SIZE"]) > 1:
        if index:
            raise ValueError(f"device must not name one GPU under torchrun, got {settings.device!r}")
        local = int(os.environ["LOCAL_WORLD_SIZE"])
        strategy = DDPStrategy(**_without_broadcasts())  # type: ignore[arg-type]
        options |= {"strategy": strategy, "devices": local, "num_nodes": int(os.environ["WORLD_SIZE"]) // local}
    else:
        options["devices"] = [int(index)] if index else 1
    logging.getLogger("lightning_fabric.utilities.rank_zero").addFilter(_no_advice)
    fabric = Fabric(**options)
    fabric.launch()
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        atexit.unregister(leave)
        atexit.register(leave)
    return fabric


def _no_advice(record: logging.LogRecord) -> bool:
    """Whether a line of Fabric's is no advice to multiply in TF32, which here is ``precision="tf32"``."""
    return "set_float32_matmul_precision" not in record.getMessage()


class _Allowed:
    """How many open runs multiply in TF32, and what was set before the first of them: the setting is the process's."""

    lock, runs, before = threading.Lock(), 0, "none"


@contextmanager
def products(precision: str) -> Iterator[None]:
    """With ``"tf32"``, products of float32 matrices on a GPU's tensor cores; the setting is put back after.

    Ten bits of mantissa instead of 23, for what an embedding or another wide input brings in and for the readout, where
    thousands of words make it most of the work. The kernels that run states do not look at the setting, and maps and
    geodesic steps put it off for themselves, so that orthogonal matrices stay so. Cells that have no kernel run in
    products of torch's, and so in TF32.

    It holds for the process: other runs of it that are open at the same time multiply likewise, and torch's older
    ``get_float32_matmul_precision`` has no answer meanwhile.
    """
    if precision != "tf32":
        yield
        return
    backend = torch.backends.cuda.matmul
    with _Allowed.lock:
        if _Allowed.runs == 0:
            _Allowed.before = backend.fp32_precision
            backend.fp32_precision = "tf32"
        _Allowed.runs += 1
    try:
        yield
    finally:
        with _Allowed.lock:
            _Allowed.runs -= 1
            if _Allowed.runs == 0:
                backend.fp32_precision = _Allowed.before


def _without_broadcasts() -> dict[str, bool]:
    """Buffers never change here; a broadcast per forward pass would also make every process take as many of them."""
    from torch.nn.parallel import DistributedDataParallel

    known = inspect.signature(DistributedDataParallel).parameters
    return {next(name for name in ("forward_sync_buffers", "broadcast_buffers") if name in known): False}


def leave() -> None:
    """Leave the group of processes at exit, before the interpreter goes down.

    A thread of gloo that lets go of its last tensor while the interpreter goes down aborts the process, its work done.
    The group's end waits for its threads, and comes when nothing refers to the group any more, old models included.
    """
    gc.collect()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    gc.collect()


def check_device(device: str) -> None:
    """A ValueError if this machine has no such device."""
    kind, _, index = device.partition(":")
    count = torch.cuda.device_count() if kind == "cuda" else 0
    if kind == "cuda" and count <= int(index or 0):
        raise ValueError(f"device {device!r} is not there: this machine offers {count} CUDA devices")
    if kind == "mps" and not torch.backends.mps.is_available():
        raise ValueError(f"device {device!r} is not there: this machine offers no MPS device")
