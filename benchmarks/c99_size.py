"""Exported C by system: flash and memory on a Cortex-M4, and the time of a step on this machine beside torch's.

    python benchmarks/c99_size.py --out benchmarks/results

writes c99.json.

Torch computes the matrix of a map in each call. Needs gcc. Sizes are left out without arm-none-eabi-gcc.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import torch

import evenflow
from evenflow.lab.bench import hardware
from evenflow.systems import SYSTEMS

INPUTS, UNITS, OUTPUTS = 9, 128, 2  # HAR-2
STEPS, REPEATS = 2000, 5
CORTEX = "-std=c99 -mcpu=cortex-m4 -mthumb -mfloat-abi=hard -mfpu=fpv4-sp-d16 -Os -fstack-usage -c model.c"
VARIANTS = {"float32": {}, "approximate": {"approximate": True}, "int8": {"weights": "int8"}}
MAIN = """
#define _POSIX_C_SOURCE 199309L
#include <stdio.h>
#include <time.h>
#include "model.h"

int main(void) {
    static model_state state;
    float x[MODEL_INPUTS], y[MODEL_OUTPUTS];
    struct timespec first, last;
    for (int i = 0; i < MODEL_INPUTS; i++) x[i] = (float)(i % 3 - 1);
    model_init(&state);
    clock_gettime(CLOCK_MONOTONIC, &first);
    for (int t = 0; t < STEPS; t++) model_step(&state, x);
    clock_gettime(CLOCK_MONOTONIC, &last);
    model_result(&state, y);
    printf("%.9g %.9g\\n", (last.tv_sec - first.tv_sec) + 1e-9 * (last.tv_nsec - first.tv_nsec), (double)y[0]);
    return 0;
}
"""


def run(command: str, folder: Path) -> str:
    return subprocess.run(command.split(), cwd=folder, check=True, capture_output=True, encoding="utf-8").stdout


def sizes(folder: Path) -> dict[str, int] | None:
    """Bytes of code and constants, and of memory: the state, and the stack of a step if all functions are on it."""
    if shutil.which("arm-none-eabi-gcc") is None:
        return None
    run(f"arm-none-eabi-gcc {CORTEX}", folder)
    text, data, bss = map(int, run("arm-none-eabi-size model.o", folder).splitlines()[1].split()[:3])
    stack = sum(int(line.split("\t")[1]) for line in (folder / "model.su").read_text().splitlines())
    counts = [line.split("[")[1].split("]")[0] for line in (folder / "model.h").read_text().splitlines() if "[" in line]
    return {"flash": text + data, "state": 4 * sum(map(int, counts)), "stack": stack, "static": data + bss}


def seconds_in_c(folder: Path) -> float:
    """Of one step, the fastest of several runs."""
    run(f"gcc -std=c99 -O3 -march=native -DSTEPS={STEPS} main.c model.c -o main -lm", folder)
    return min(float(run("./main", folder).split()[0]) for _ in range(REPEATS)) / STEPS


def seconds_in_torch(model: torch.nn.Module) -> float:
    """Of one step of one sequence, called step by step as a stream is."""
    x, state, best = torch.ones(1, 1, INPUTS), None, float("inf")
    with torch.no_grad():
        for _ in range(REPEATS):
            start = time.perf_counter()
            for _ in range(STEPS // 10):
                _, state = model(x, state)
            best = min(best, (time.perf_counter() - start) / (STEPS // 10))
    return best


def measure(name: str) -> dict[str, object]:
    layer = evenflow.create(name, INPUTS, UNITS, generator=torch.Generator().manual_seed(0))
    model = evenflow.SequenceModel(layer, OUTPUTS).eval()
    row: dict[str, object] = {"parameters": model.parameter_counts()["total"]}
    row["torch_step_seconds"] = seconds_in_torch(model)
    for variant, options in VARIANTS.items():
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            evenflow.export.to_c(model, folder / "model.c", **options)
            (folder / "main.c").write_text(MAIN)
            seconds = seconds_in_c(folder)
            ratio = {"step_seconds": seconds, "torch_over_c": row["torch_step_seconds"] / seconds}
            row[variant] = (sizes(folder) or {}) | ratio
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder of the result")
    out = parser.parse_args().out
    torch.set_num_threads(1)
    arm = shutil.which("arm-none-eabi-gcc")
    about = {
        "hardware": hardware(torch.device("cpu")),
        "gcc": run("gcc --version", Path()).splitlines()[0],
        "arm_gcc": run("arm-none-eabi-gcc --version", Path()).splitlines()[0] if arm else None,
        "model": {"inputs": INPUTS, "units": UNITS, "outputs": OUTPUTS},
    }
    results = {}
    for name in SYSTEMS:
        results[name] = measure(name)
        print(name, results[name], flush=True)
    if out is not None:
        (out / "c99.json").write_text(json.dumps(about | {"systems": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
