"""The C compilers that layers can be compiled with: gcc, and the zig of the package ziglang.

    python benchmarks/compilers.py [--out benchmarks/results] [--rounds 15]

For each compiler: the first forward and backward pass in an empty cache, with the compilation; the first pass of a new
process that finds its code in the cache; then passes of both compilers in turn, forward and backward, float32, H = 128,
B = 50, T = 784, one thread. All times are CPU seconds of the process and of the compilers that it started, which other
programs on the machine change little. To compilers-cpu.json.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import statistics
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path

import torch

import evenflow
from evenflow.lab.bench import hardware
from evenflow.runtime import compile_c

LAYERS = {"RNN": evenflow.RNN, "GRU": evenflow.GRU, "LSTM": evenflow.LSTM}
COMPILERS = ("gcc", "zig")


def spent() -> float:
    """CPU seconds of this process and of those that it waited for."""
    return sum(
        r.ru_utime + r.ru_stime for r in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def work(compiler: str, cache: str, pipe: Connection) -> None:
    """Answer each name of a layer with the seconds of one pass."""
    os.environ["XDG_CACHE_HOME"] = cache
    os.environ.pop("CC", None)
    if compiler == "zig":
        os.environ["PATH"] = str(Path(cache, "nothing"))  # as on a machine without a compiler
    else:
        os.environ["CC"] = compiler
    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers = {name: make(2, 128) for name, make in LAYERS.items()}
    x = torch.randn(784, 50, 2)
    pipe.send(Path(compile_c.find_compiler()[0]).stem)
    while name := pipe.recv():
        layers[name].zero_grad()
        began = spent()
        layers[name](x)[0].square().mean().backward()
        pipe.send(spent() - began)


class Worker:
    """A process of its own for each compiler."""

    def __init__(self, compiler: str, cache: str) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=work, args=(compiler, cache, other), daemon=True)
        self.process.start()
        assert self.pipe.recv() == compiler

    def seconds(self, layer: str) -> float:
        self.pipe.send(layer)
        return self.pipe.recv()

    def end(self) -> None:
        self.pipe.send("")
        self.process.join()


def measure(rounds: int) -> dict[str, dict[str, dict[str, float]]]:
    found: dict[str, dict[str, dict[str, float]]] = {name: {compiler: {} for compiler in COMPILERS} for name in LAYERS}
    with tempfile.TemporaryDirectory() as folder:
        for moment in ("first call, s", "first call, compiled before, s"):
            workers = {compiler: Worker(compiler, str(Path(folder, compiler))) for compiler in COMPILERS}
            for name in LAYERS:
                for compiler, worker in workers.items():
                    found[name][compiler][moment] = worker.seconds(name)
            if moment == "first call, s":
                for worker in workers.values():
                    worker.end()
        for name in LAYERS:
            times = [{compiler: worker.seconds(name) for compiler, worker in workers.items()} for _ in range(rounds)]
            for compiler in COMPILERS:
                found[name][compiler]["pass, ms"] = 1e3 * statistics.median(each[compiler] for each in times)
        for worker in workers.values():
            worker.end()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    found = {"hardware": hardware(torch.device("cpu")), "threads": 1, "layers": measure(options.rounds)}
    print(json.dumps(found, indent=1))
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "compilers-cpu.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
