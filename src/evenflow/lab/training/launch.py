"""The device, the precision and the processes of a run, on Lightning Fabric."""

from __future__ import annotations

import atexit
import functools
import gc
import inspect
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from evenflow.runtime.cpu_info import cpu_name

from .process_group import join_restarted_group

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
        join_restarted_group("cpu" if kind == "cpu" or not torch.cuda.is_available() else "cuda")
    else:
        options["devices"] = [int(index)] if index else 1
    for package in ("lightning_fabric", "pytorch_lightning"):  # whichever was imported last logs for both
        logging.getLogger(f"{package}.utilities.rank_zero").addFilter(_no_advice)
    fabric = Fabric(**options)
    fabric.launch()
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        atexit.unregister(leave)
        atexit.register(leave)
    return fabric


def _no_advice(record: logging.LogRecord) -> bool:
    """Keep a log record of Fabric unless it advises TF32, which here is ``precision="tf32"``."""
    return "set_float32_matmul_precision" not in record.getMessage()


class _Tf32:
    """Sets torch's TF32 switch, which holds for the whole process, as long as a run that wants TF32 is open."""

    def __init__(self) -> None:
        self._lock, self._runs, self._before = threading.Lock(), 0, "none"

    def start(self) -> None:
        with self._lock:
            if self._runs == 0:
                self._before = torch.backends.cuda.matmul.fp32_precision
                torch.backends.cuda.matmul.fp32_precision = "tf32"
            self._runs += 1

    def stop(self) -> None:
        with self._lock:
            self._runs -= 1
            if self._runs == 0:
                torch.backends.cuda.matmul.fp32_precision = self._before


@functools.cache
def _tf32() -> _Tf32:
    return _Tf32()


@contextmanager
def matmul_precision(precision: str) -> Iterator[None]:
    """With precision "tf32", multiply float32 matrices on a GPU's tensor cores inside the block.

    TF32 has 10 bits of mantissa instead of 23. It applies to the input of an embedding or another wide input and to the
    readout, which is most of the work with thousands of words. Fused scans ignore the setting, and maps and geodesic
    steps switch it off for themselves, so that orthogonal matrices stay orthogonal. Cells without a kernel use torch's
    matrix products, and so TF32.

    The setting holds for the process: other runs that are open at the same time use TF32 too, and torch's older
    ``get_float32_matmul_precision`` raises an error meanwhile.
    """
    if precision != "tf32":
        yield
        return
    _tf32().start()
    try:
        yield
    finally:
        _tf32().stop()


def _without_broadcasts() -> dict[str, bool]:
    """The option of DDP that turns off broadcasts of buffers, which never change here.

    A broadcast in every forward pass would also require as many forward passes on every process.
    """
    from torch.nn.parallel import DistributedDataParallel

    parameters = inspect.signature(DistributedDataParallel).parameters
    return {next(name for name in ("forward_sync_buffers", "broadcast_buffers") if name in parameters): False}


def leave() -> None:
    """Leave the process group at exit, before the interpreter shuts down.

    A gloo thread that frees its last tensor during the shutdown aborts the process after its work is done. Destroying
    the group waits for its threads, but only once nothing refers to the group any more, old models included.
    """
    gc.collect()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    gc.collect()


def check_device(device: str) -> None:
    """Raise a ValueError if this machine does not have the device."""
    kind, _, index = device.partition(":")
    count = torch.cuda.device_count() if kind == "cuda" else 0
    if kind == "cuda" and count <= int(index or 0):
        raise ValueError(f"device {device!r} is not there: this machine offers {count} CUDA devices")
    if kind == "mps" and not torch.backends.mps.is_available():
        raise ValueError(f"device {device!r} is not there: this machine offers no MPS device")


def uses_gpu(device: str) -> bool:
    """Whether a run with this setting of `device` is made on a GPU. Then a population is faster than single runs, in
    which small models wait for kernel launches; on a CPU it is not."""
    return torch.cuda.is_available() and device.startswith(("auto", "cuda"))


def hardware(device: str) -> str:
    """Name of the hardware of a run with this setting of `device`."""
    if uses_gpu(device):
        return torch.cuda.get_device_name()
    return f"{cpu_name()}, {torch.get_num_threads()} of its cores"
