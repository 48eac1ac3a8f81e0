"""Time the layers beside torch's own, a loop over time in plain torch, and flashrnn if it is installed.

A case is a training pass of one layer in float32: input projection, recurrence, map, and all gradients. The cases take
turns, so that noise of the machine affects all of them alike; the results are medians and their ratios. TF32 is off,
since no layer of evenflow uses it.
"""

from __future__ import annotations

import json
import platform
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from evenflow.checks import whole_number
from evenflow.lab.bench_cases import INPUT, PEERS, Case, cases
from evenflow.runtime.cpu_info import cpu_name

if TYPE_CHECKING:
    from rich.table import Table

WARM_UP = {"cpu": 1, "cuda": 8}  # calls; on a GPU a layer is captured as a CUDA graph at its seventh call


@dataclass
class BenchResult:
    """Median milliseconds of each case, the hardware and settings, and notes on cases that did not run."""

    hardware: dict[str, Any]
    settings: dict[str, int]
    kinds: dict[str, str]
    median_ms: dict[str, float]
    notes: list[str] = field(default_factory=list)

    def ratios(self, name: str) -> dict[str, float]:
        """The time of a case divided by that of each peer that ran: ``torch``, ``loop``, ``flashrnn``."""
        kind = self.kinds[name]
        fused = f"flashrnn {kind}"
        flashrnn = fused if fused in self.median_ms else f"{fused}, step by step"
        peers = {"torch": PEERS[kind], "loop": f"loop {kind}", "flashrnn": flashrnn}
        return {
            peer: self.median_ms[name] / self.median_ms[other]
            for peer, other in peers.items()
            if other in self.median_ms
        }

    def table(self) -> Table:
        from evenflow.lab.terminal import new_table

        peers = [peer for peer in ("torch", "loop", "flashrnn") if any(peer in self.ratios(n) for n in self.median_ms)]
        columns = ["ms", *(f"/ {peer}" for peer in peers)]
        table = new_table("forward + backward", *columns, right=columns)
        last = None
        for name, ms in self.median_ms.items():
            if last not in (None, self.kinds[name]):
                table.add_section()
            last = self.kinds[name]
            ratios = self.ratios(name)
            table.add_row(name, f"{ms:.2f}", *(f"{ratios[peer]:.2f}" if peer in ratios else "" for peer in peers))
        return table

    def write(self, path: Path) -> None:
        """Write the results as JSON."""
        from evenflow.lab.training import atomic

        content = {
            "hardware": self.hardware,
            "settings": self.settings,
            "median_ms": self.median_ms,
            "ratios": {name: self.ratios(name) for name in self.median_ms},
            "notes": self.notes,
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic.write(path, (json.dumps(content, indent=2) + "\n").encode())


def bench(
    device: str = "auto",
    hidden: int = 128,
    batch: int = 50,
    length: int = 784,
    repeats: int = 10,
    progress: bool = False,
) -> BenchResult:
    """Time every case `repeats` times.

    Args:
        device: ``"cpu"``, ``"cuda"``, or ``"auto"`` (a GPU if there is one).
        hidden: units; an even number, since some activations and maps pair units.
        batch: sequences.
        length: time steps.
        repeats: how often each case is timed.
        progress: show a progress bar.

    >>> result = bench(hidden=32, batch=8, length=100, repeats=3)
    >>> result.ratios("evenflow RNN relu")["torch"]
    """
    for name, value in (("hidden", hidden), ("batch", batch), ("length", length), ("repeats", repeats)):
        whole_number(name, value, 1)
    if hidden % 2:
        raise ValueError(f"hidden must be even, since some activations and maps pair units, got {hidden}")
    where = find_device(device)
    result = BenchResult(
        hardware(where), {"hidden": hidden, "batch": batch, "length": length, "repeats": repeats}, {}, {}
    )
    x = torch.randn(length, batch, INPUT, generator=torch.Generator().manual_seed(0)).to(where)
    with _without_tf32(), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)  # torch's own layers take no other generator
        ready = [case for case in _in_turn(cases(x, hidden), 1, progress) if _warm(case, where, result)]
        times: dict[str, list[float]] = {case.name: [] for case in ready}
        for case in _in_turn(ready, repeats, progress):
            start = time.perf_counter()
            case.run()
            _finish(where)
            times[case.name].append(1e3 * (time.perf_counter() - start))
    result.kinds = {case.name: case.kind for case in ready}
    result.median_ms = {name: statistics.median(values) for name, values in times.items()}
    return result


def hardware(device: torch.device) -> dict[str, Any]:
    """The device that times belong to, and the versions of torch and Python."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_name()
    versions = {"torch": torch.__version__, "python": platform.python_version()}
    return {"device": device.type, "name": name, "threads": torch.get_num_threads()} | versions


def find_device(device: str) -> torch.device:
    """The device called "cpu", "cuda" or "auto" (a GPU if there is one)."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device not in ("cpu", "cuda"):
        raise ValueError(f"device must be one of auto, cpu, cuda, got {device!r}")
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device must be cpu on this machine, where torch finds no GPU, got 'cuda'")
    return torch.device(device)


def _warm(case: Case, device: torch.device, result: BenchResult) -> bool:
    """Warm a case up, and return whether it runs. If a case of flashrnn does not, a note says why."""
    try:
        for _ in range(WARM_UP[device.type]):
            case.run()
        _finish(device)
    except Exception as error:
        if not case.name.startswith("flashrnn"):
            raise
        result.notes.append(f"{case.name} did not run: {str(error).splitlines()[0]}")
        return False
    return True


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextmanager
def _without_tf32() -> Iterator[None]:
    backends: list[Any] = [torch.backends.cuda.matmul, torch.backends.cudnn.rnn]
    before = [backend.fp32_precision for backend in backends]
    for backend in backends:
        backend.fp32_precision = "ieee"
    try:
        yield
    finally:
        for backend, precision in zip(backends, before, strict=True):
            backend.fp32_precision = precision


def _in_turn(ready: list[Case], repeats: int, progress: bool) -> Iterator[Case]:
    from rich.console import Console
    from rich.progress import Progress

    with Progress(transient=True, disable=not progress, console=Console(stderr=True)) as bar:
        task = bar.add_task("rounds", total=repeats * len(ready))
        for _ in range(repeats):
            for case in ready:
                yield case
                bar.advance(task)
