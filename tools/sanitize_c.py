"""Run the C of every cell with gcc's sanitizers; leave with 1 on a finding.

    python tools/sanitize_c.py [--only NAME] [--sanitizer address|thread]

The named systems and benchmarks/own_cells.py, forward and backward, with ragged lengths, several models and threads, in
both precisions: at odd sizes with AddressSanitizer and UndefinedBehaviorSanitizer, and at sizes that are worth several
threads with ThreadSanitizer. Each cell runs in a process of its own, with the sanitizer loaded before Python; code is
compiled into a folder that goes afterwards. Needs gcc.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
# Input, hidden size, batch and steps.
Sizes = tuple[tuple[int, int, int, int], ...]


@dataclass(frozen=True)
class Sanitizer:
    """What gcc is given in place of -O3, the libraries that come before Python, and where the code runs.

    Attributes:
        options: environment variables.
        wrapper: a command in front of Python.
    """

    flags: str
    libraries: tuple[str, ...]
    options: dict[str, str]
    sizes: Sizes
    threads: tuple[int, ...]
    wrapper: tuple[str, ...] = ()


SANITIZERS = {
    "address": Sanitizer(
        "-O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=undefined",
        ("libasan.so", "libubsan.so"),
        # Python itself lets go of its memory by ending; what torch's threads share is not ours.
        {
            "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0:exitcode=99:detect_stack_use_after_return=0",
            "UBSAN_OPTIONS": "print_stacktrace=1",
        },
        # Below a panel and above it, one of each, and enough work for several threads.
        ((3, 1, 1, 1), (1, 7, 5, 4), (3, 17, 2, 3), (2, 33, 6, 40), (5, 20, 13, 30)),
        (1, 3),
    ),
    "thread": Sanitizer(
        # Without __linux__ the scans start threads of their own, which the sanitizer sees, and not those of OpenMP.
        "-O1 -g -fno-omit-frame-pointer -fsanitize=thread -U__linux__",
        ("libtsan.so",),
        {"TSAN_OPTIONS": "exitcode=99:halt_on_error=0:report_signal_unsafe=0:ignore_noninstrumented_modules=1"},
        ((2, 33, 7, 40), (5, 48, 13, 30)),
        (3, 4),
        ("setarch", "-R"),  # it needs addresses where it expects them
    ),
}
ACTIVATIONS = ("relu", "abs", "leaky", "prelu", "tanh", "oplu", "modrelu", "identity")
SECONDS = 600


def cases() -> list[str]:
    """Names of all layers, see `layers`."""
    from evenflow.systems import SYSTEMS

    sys.path.append(str(ROOT / "benchmarks"))
    from own_cells import CELLS

    units = [f"gated-feedback {unit}" for unit in ("gru", "lstm")]
    return [*SYSTEMS, *units, *(f"rnn {name}" for name in ACTIVATIONS), *(f"own {name}" for name in CELLS)]


def layer(name: str, inputs: int, hidden: int, **options: Any) -> Any:
    import evenflow
    from evenflow.systems import create

    kind, _, rest = name.partition(" ")
    if kind == "own":
        from own_cells import CELLS

        return evenflow.Recurrent(CELLS[rest](), inputs, hidden, **options)
    if kind == "rnn" and rest:
        return create("rnn", inputs, hidden, activation=rest, **options)
    if rest:
        return create(kind, inputs, hidden, unit=rest, **options)
    return create(name, inputs, hidden, **options)


def passes(name: str, sanitizer: Sanitizer) -> Iterator[str]:
    """Run one layer forward and backward in every way; yields what each run was."""
    import torch
    from torch.nn.utils.rnn import pack_padded_sequence

    for inputs, hidden, batch, steps in sanitizer.sizes:
        even = "oplu" in name and hidden % 2
        for dtype in (torch.float32, torch.float64):
            try:
                made = layer(name, inputs, hidden + bool(even), dtype=dtype)
            except ValueError as why:  # a map that has no matrix of this size
                yield f"{hidden} units left out: {why}"
                continue
            for threads in sanitizer.threads:
                torch.set_num_threads(threads)
                x = torch.randn(steps, batch, inputs, dtype=dtype, requires_grad=True)
                lengths = sorted((1 + n * 7 % steps for n in range(batch)), reverse=True)
                for given in (x, pack_padded_sequence(x, lengths, enforce_sorted=False)):
                    with made.taps():
                        output, final = made(given)
                    output = output if isinstance(output, torch.Tensor) else output.data
                    ends = final if isinstance(final, tuple) else (final,)
                    (output.square().sum() + sum(end.sum() for end in ends)).backward()
        yield f"{hidden} units"


def models(name: str) -> None:
    """Several models in one call, as a population has them."""
    import torch

    from evenflow.models.population import Population
    from evenflow.models.sequence_model import SequenceModel

    several = [SequenceModel(layer(name, 2, 6), 3) for _ in range(3)]
    outputs, _ = Population(several)(torch.randn(3, 9, 5, 2))
    outputs.square().sum().backward()


def worker(name: str, sanitizer: Sanitizer) -> None:
    import warnings

    from evenflow.runtime import compile_c
    from evenflow.scan import cpu

    compile_c.FLAGS = compile_c.FLAGS.replace("-O3", sanitizer.flags)
    cases()  # finds own_cells
    if cpu.library() is None:
        sys.exit("there is no library")
    ran: list[str] = []
    kept = cpu.run
    cpu.run = lambda loaded, function, job: (ran.append(function), kept(loaded, function, job))[1]
    warnings.simplefilter("ignore")
    for _ in passes(name, sanitizer):
        pass
    if name not in ("esn",) and not name.startswith("gated-feedback"):
        models(name)
    if "forward_double" not in ran:
        sys.exit(f"{name} did not run compiled code")


def environment(sanitizer: Sanitizer, folder: str) -> dict[str, str]:
    loaded = [
        subprocess.run(
            ["gcc", f"-print-file-name={library}"], capture_output=True, text=True, check=True
        ).stdout.strip()
        for library in sanitizer.libraries
    ]
    found = {"LD_PRELOAD": " ".join(loaded), **sanitizer.options}
    found |= {"XDG_CACHE_HOME": folder, "CC": "gcc", "OMP_NUM_THREADS": "3", "PYTHONMALLOC": "malloc"}
    return {**os.environ, **found}


def run_all(chosen: str, names: list[str]) -> int:
    """Run the layers with one sanitizer; returns how many have findings."""
    sanitizer, failed = SANITIZERS[chosen], 0
    with tempfile.TemporaryDirectory(prefix="evenflow-sanitized-") as folder:
        around = environment(sanitizer, folder)

        def run(name: str) -> tuple[str, int, str]:
            command = [*sanitizer.wrapper, sys.executable, __file__, "--worker", name, "--sanitizer", chosen]
            done = subprocess.run(command, env=around, capture_output=True, text=True, timeout=SECONDS)
            return name, done.returncode, done.stderr

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for name, code, said in pool.map(run, names):
                failed += code != 0
                print(f"{chosen:8s} {name:20s} {'clean' if code == 0 else f'exit code {code}'}", flush=True)
                if code:
                    print("\n".join(said.splitlines()[:60]), flush=True)
    print(f"{chosen}: {len(names) - failed} of {len(names)} clean")
    return failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="layers whose name has this in it")
    parser.add_argument("--sanitizer", choices=SANITIZERS, help="default: all of them")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options.worker, SANITIZERS[options.sanitizer])
        return
    names = [name for name in cases() if options.only in name]
    failed = sum(run_all(chosen, names) for chosen in ([options.sanitizer] if options.sanitizer else SANITIZERS))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
