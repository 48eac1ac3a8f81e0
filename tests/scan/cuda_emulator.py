"""Runs the CUDA kernels on the CPU: the same sources, compiled by the system's C++ compiler behind `cuda_on_cpu.h`."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from torch import Tensor

from evenflow.runtime import compile_cuda as build
from evenflow.scan.cuda.kernels import RECURRENCE_FILES, read_sources

SHIM = Path(__file__).parent / "cuda_on_cpu.h"
COMPILER = next((name for name in ("g++", "c++", "clang++") if shutil.which(name)), None)
FLAGS = ("-std=c++17", "-O0", "-fPIC", "-shared", "-ffp-contract=off", "-w")


class Emulator:
    """A stand-in for `build.launch`; knows the kernels it was made with.

    Attributes:
        order: in which order threads take turns; a correct kernel does not mind.
    """

    def __init__(self, kernels: Iterable[build.Kernel], folder: Path) -> None:
        self.names = {kernel: f"kernel_{n}" for n, kernel in enumerate(dict.fromkeys(kernels))}
        self.order = 0
        text = SHIM.read_text() + read_sources(*RECURRENCE_FILES, "gemm.cuh")
        text += "".join(kernel.entry(name) for kernel, name in self.names.items())
        source, library = folder / "kernels.cpp", folder / "kernels.so"
        source.write_text(text)
        done = subprocess.run([str(COMPILER), *FLAGS, str(source), "-o", str(library)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[:4000]
        self.library = ctypes.CDLL(str(library))

    def launch(self, kernel: build.Kernel, job: ctypes.Structure, like: Tensor, models: int, batch: int) -> None:
        run = getattr(self.library, self.names[kernel])
        run(ctypes.byref(job), kernel.blocks(batch) // kernel.cluster, models, kernel.memory, self.order)
