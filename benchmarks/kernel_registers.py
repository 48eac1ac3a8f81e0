"""Registers, spills and shared memory of the recurrence kernels, as the compiler reports them; needs NVRTC, no GPU:
`pip install nvidia-cuda-nvrtc`.

    python benchmarks/kernel_registers.py [--cells "elman tanh" lem] [--sizes 128 256] [--rows 50]
    python benchmarks/kernel_registers.py --gradient

A kernel that spills keeps part of its weights in device memory and is slow:
`launch_plan.py` must choose tiles that do not.
Every cell and way of a layer, to kernel-registers.json; spilled bytes are those of all stores and loads.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import layers_by_name
import torch

from evenflow.runtime import compile_cuda as build
from evenflow.runtime import cuda_libraries as libraries
from evenflow.scan.cuda import gemm_tiles, step_kernels
from evenflow.scan.cuda.kernels import GemmKernel, RecurrenceKernel

SIZES = (64, 128, 256, 512, 1024)


def report(kernel: build.Kernel, nvrtc: ctypes.CDLL, architecture: str) -> dict[str, Any]:
    """Registers per thread and bytes spilled, by the compiler's own account, and how long it took."""
    options = [o.encode() for o in (*libraries.OPTIONS, f"--gpu-architecture={architecture}", "--ptxas-options=-v")]
    program, size, begin = ctypes.c_void_p(), ctypes.c_size_t(), time.perf_counter()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), kernel.source().encode(), b"kernel.cu", 0, None, None)
    status = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    seconds = time.perf_counter() - begin
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    said = log.value.decode()
    registers = re.search(r"Used (\d+) registers", said)
    if status or registers is None:
        raise SystemExit(said)
    spilled = sum(map(int, re.findall(r"(\d+) bytes spill (?:stores|loads)", said)))
    return {"registers": int(registers[1]), "spilled_bytes": spilled, "seconds": round(seconds, 2)}


def gradients(nvrtc: ctypes.CDLL, architecture: str) -> None:
    """The weight gradient's kernel, for each tile, with copies of four numbers and of one."""
    print("| tile | warps | together | copies | registers | spilled bytes | shared KB |", flush=True)
    print("|---|---|---|---|---|---|---|", flush=True)
    for p in gemm_tiles.GEMM_TILES:
        for by_4 in (True, False):
            found = report(GemmKernel(p, by_4, by_4), nvrtc, architecture)
            numbers = (p.blocks_per_sm, 4 if by_4 else 1, found["registers"], found["spilled_bytes"], p.memory // 1024)
            print(
                f"| {p.block_m} x {p.block_n} | {p.warps_m} x {p.warps_n} |",
                " | ".join(map(str, numbers)),
                "|",
                flush=True,
            )


def kernels(cells: list[str], sizes: list[int], rows: int) -> Iterator[tuple[str, str, int, RecurrenceKernel | None]]:
    """By cell, way and H: those of the plan for an H200; None where no tile runs as many units."""
    for hidden in sizes:
        for cell in cells:
            step = layers_by_name.step_of(layers_by_name.made(cell, hidden))
            for way in ("forward", "backward"):
                found = step_kernels.kernels(step, way == "backward", 1, rows, torch.device("cpu"))
                yield cell, way, hidden, found[0][1] if found else None


def row(
    cell: str,
    way: str,
    hidden: int,
    kernel: RecurrenceKernel | None,
    nvrtc: ctypes.CDLL,
    architecture: str,
) -> dict[str, Any]:
    """One line of the results."""
    about: dict[str, Any] = {"cell": cell, "way": way, "hidden": hidden}
    if kernel is None:
        return about | {"failed": "no tile runs as many units"}
    tile = {name: value for name, value in asdict(kernel.step_tile.tile).items() if name != "held"}
    about |= {
        "shapes": [s._asdict() for s in kernel.shapes],
        "streams": kernel.streams,
        "tile": tile,
        "held": kernel.step_tile.held,
    }
    pairs = [(t, s) for t, s in zip(kernel.step_tile.tiles(), kernel.shapes, strict=True) if s.weighted]
    about |= {"threads": kernel.threads, "shared_bytes": kernel.memory}
    about["weights"] = sum(t.weights(kernel.hidden, shape) for t, shape in pairs)
    about["in_registers"] = sum(t.in_registers(kernel.hidden, shape) for t, shape in pairs)
    return about | report(kernel, nvrtc, architecture)


def shown(found: dict[str, Any]) -> str:
    head = f"| {found['cell']} {found['way']} | {found['hidden']} |"
    if "failed" in found:
        return f"{head} {found['failed']} | | | | | | |"
    tile = found["tile"]
    kinds = "".join(f" {kind}" for kind in ("tensor_cores", "scatter", "prefetch_slots") if tile[kind])
    shape = f"{tile['blocks']} {tile['lanes']} {tile['units']} {tile['rows']}{kinds}"
    names = ("threads", "weights", "in_registers", "registers", "spilled_bytes")
    return f"{head} {shape} | " + " | ".join(str(found[n]) for n in names) + f" | {found['shared_bytes'] // 1024} |"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--cells", nargs="+", default=list(layers_by_name.ALL), choices=list(layers_by_name.ALL))
    options.add_argument("--sizes", nargs="+", type=int, default=list(SIZES))
    options.add_argument("--rows", type=int, default=50)
    options.add_argument("--architecture", default="sm_90")
    options.add_argument("--gradient", action="store_true", help="the weight gradient's kernel alone")
    options.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    options.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    given = options.parse_args()
    nvrtc = libraries._nvrtc()
    if given.gradient:
        gradients(nvrtc, given.architecture)
        return
    version = ctypes.c_int(), ctypes.c_int()
    nvrtc.nvrtcVersion(*map(ctypes.byref, version))
    print("| | H | C KS JT R | threads | weights | in registers | registers | spilled bytes | shared KB |", flush=True)
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    about = {"nvrtc": ".".join(str(n.value) for n in version), "architecture": given.architecture, "rows": given.rows}
    rows = []
    with ThreadPoolExecutor(given.threads) as pool:
        listed = kernels(given.cells, given.sizes, given.rows)
        for found in pool.map(lambda each: row(*each, nvrtc, given.architecture), listed):
            rows.append(found)
            print(shown(found), flush=True)
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "kernel-registers.json").write_text(json.dumps(about | {"results": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
