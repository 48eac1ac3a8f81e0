"""What benchmarks of kernels on a GPU share: times, results on disk after every row, tiles other than the plan's."""

from __future__ import annotations

import json
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from evenflow.runtime import compile_cuda as build
from evenflow.runtime import cuda_libraries as libraries
from evenflow.scan.cuda import step_kernels
from evenflow.scan.cuda.launch_plan import StepTile

ROUNDS, WARM = 12, 3
HANG_SECONDS = 60
COMPILERS = os.cpu_count() or 8


def milliseconds(run: Callable[[], Any], rounds: int = ROUNDS) -> float:
    """The median over rounds, all handed over before the first is waited for, so that the GPU never idles."""
    for _ in range(WARM):
        run()
    torch.cuda.synchronize()
    marks = []
    for _ in range(rounds):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        run()
        end.record()
        marks.append((begin, end))
    torch.cuda.synchronize()
    return statistics.median(begin.elapsed_time(end) for begin, end in marks)


class Run:
    """What has been measured so far, and how long it may go on."""

    def __init__(self, folder: Path, seconds: float, name: str) -> None:
        self.path, self.start, self.seconds = folder / f"{name}.json", time.monotonic(), seconds
        self.beat = self.start
        self.rows: list[dict[str, Any]] = []
        self.doing = "starting"
        folder.mkdir(parents=True, exist_ok=True)
        threading.Thread(target=self.watch, daemon=True).start()

    def watch(self) -> None:
        """End the process when a kernel does not come back; what was written stays."""
        while time.monotonic() - self.beat < HANG_SECONDS:
            time.sleep(1)
        print(f"nothing for {HANG_SECONDS} s while {self.doing}: giving up", flush=True)
        self.rows.append({"hung": self.doing})
        self.write()
        os._exit(3)

    def over(self) -> bool:
        return time.monotonic() > self.start + self.seconds

    def alive(self, doing: str) -> None:
        self.beat, self.doing = time.monotonic(), doing

    def write(self) -> None:
        about = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "nvrtc": libraries.nvrtc_version()}
        self.path.write_text(json.dumps(about | {"results": self.rows}, indent=1) + "\n")

    def prepare(self, kernels: Sequence[build.Kernel]) -> None:
        """Compile side by side, into the cache."""
        with ThreadPoolExecutor(COMPILERS) as pool:
            for kernel, done in [(k, pool.submit(build.machine_code, k, 0)) for k in dict.fromkeys(kernels)]:
                done.result()
                self.alive(f"compiling a {kernel.function} kernel")


@contextmanager
def on(choice: StepTile | None) -> Iterator[None]:
    """Kernels take this tile in one launch, instead of the plan's."""
    planned = step_kernels.plan_launches
    if choice is not None:
        step_kernels.plan_launches = lambda shapes, streams, hidden, batch, *_: ((batch, choice),)
    try:
        yield
    finally:
        step_kernels.plan_launches = planned


def with_tile(choice: StepTile, **change: Any) -> StepTile:
    """A choice with another tile; what is held stays."""
    return replace(choice, tile=replace(choice.tile, **change))
