"""How fast code that is generated from a step runs, beside another version of evenflow and torch's own layers.

    git worktree add ../before 0c991b1
    python benchmarks/cells.py --before ../before/src --out benchmarks/results/cells-cpu.json

Each case is a training pass of one layer in float32, input projection and all gradients included. Versions run in
processes of their own, which take turns round by round, so that a noisy machine is noisy for both; a ratio is that of
the medians over all rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SIZES = {"H=32": 32, "H=128": 128, "H=512": 512}
BATCHES = {"B=1": 1, "B=50": 50}
ACTIVATIONS = ("identity", "relu", "leaky", "prelu", "tanh", "abs", "oplu", "modrelu")
HAND_WRITTEN = (
    *(f"elman {name}" for name in ACTIVATIONS),
    "complex elman",
    "scalar-gated",
    "gru",
    "lstm",
    "lstm peephole",
    "lstm 1997",
)
OWN = ("cornn", "lem", "mgu", "ugrnn", "fastgrnn", "gru u(r h)", "layer-norm gru")
GOALS = {"hand-written": 1.03, "own": 0.8, "layer-norm gru": 0.8}


def steps_of(hidden: int) -> int:
    return 200 if hidden > 128 else 784


def hand_written(name: str, hidden: int) -> Any:
    import evenflow

    kind, _, option = name.partition(" ")
    match kind:
        case "elman":
            return evenflow.RNN(2, hidden, activation=option)
        case "complex":
            return evenflow.ComplexRNN(2, hidden)
        case "scalar-gated":
            return evenflow.ScalarGatedRNN(2, hidden)
        case "gru":
            return evenflow.GRU(2, hidden)
        case "lstm":
            return evenflow.LSTM(2, hidden, form=option or "standard")
    raise ValueError(name)


def own(name: str, hidden: int) -> Any:
    from own_cells import CELLS  # beside this file

    import evenflow

    return evenflow.Recurrent(CELLS[name](), 2, hidden)


def torchs(name: str, hidden: int) -> Any:
    import torch

    return {"rnn": torch.nn.RNN, "gru": torch.nn.GRU, "lstm": torch.nn.LSTM}[name](2, hidden)


KINDS: dict[str, Callable[[str, int], Any]] = {"evenflow": hand_written, "own": own, "torch": torchs}


def worker() -> None:
    """Answer each line ``kind|name|hidden|batch|steps|passes`` with milliseconds per pass."""
    import torch

    torch.manual_seed(0)
    torch.set_flush_denormal(True)
    made: dict[str, Callable[[], None]] = {}
    for line in sys.stdin:
        kind, name, hidden, batch, steps, passes = line.rstrip("\n").split("|")
        if line not in made:
            layer = KINDS[kind](name, int(hidden))
            x = torch.randn(int(steps), int(batch), 2)

            def run(layer: Any = layer, x: Any = x) -> None:
                for p in layer.parameters():
                    p.grad = None
                layer(x)[0].square().mean().backward()

            run()
            run()
            made[line] = run
        begin = time.perf_counter()
        for _ in range(int(passes)):
            made[line]()
        print(1e3 * (time.perf_counter() - begin) / int(passes), flush=True)


class Worker:
    def __init__(self, source: str, threads: int) -> None:
        environment = {**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{Path(__file__).parent}"}
        environment["OMP_NUM_THREADS"] = str(threads)
        command = [sys.executable, str(Path(__file__)), "--worker"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def time(self, case: str) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(case + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"no answer for {case}")
        return float(answer)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", help="the src folder of another version, for the hand-written cells")
    parser.add_argument("--out", help="a JSON file for the results")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker()
        return
    now = Worker(str(Path(__file__).parents[1] / "src"), options.threads)
    before = Worker(options.before, options.threads) if options.before else None
    rows = []
    for hidden in SIZES.values():
        for batch in BATCHES.values():
            steps = steps_of(hidden)
            cases = [("hand-written", "evenflow", name, before, "evenflow", name) for name in HAND_WRITTEN if before]
            cases += [("own", "own", name, now, "torch", "gru") for name in OWN]
            for group, kind, name, other, other_kind, other_name in cases:
                if options.only not in name:
                    continue
                rows.append(
                    compared(now, (kind, name), other, (other_kind, other_name), hidden, batch, steps, options.rounds)
                )
                rows[-1]["goal"] = GOALS.get(name, GOALS[group])
                shown = rows[-1]
                print(f"{name:18s} H={hidden:4d} B={batch:3d} {shown['ms']:8.2f} ms, of {shown['against']} "
                      f"{shown['ratio']:.2f} (goal {shown['goal']})", flush=True)  # fmt: skip
    if options.out:
        machine = {"processor": platform.processor() or platform.machine(), "threads": options.threads}
        Path(options.out).write_text(json.dumps({"machine": machine, "rounds": options.rounds, "rows": rows}, indent=1))


def compared(
    now: Worker,
    mine: tuple[str, str],
    other: Worker,
    theirs: tuple[str, str],
    hidden: int,
    batch: int,
    steps: int,
    rounds: int,
) -> dict[str, Any]:
    def line(what: tuple[str, str], passes: int) -> str:
        return "|".join([*what, str(hidden), str(batch), str(steps), str(passes)])

    once = now.time(line(mine, 1))
    passes = max(1, min(50, round(30 / once)))
    times: list[list[float]] = [[], []]
    for round_number in range(rounds):
        pair = [(now, mine, 0), (other, theirs, 1)]
        for process, what, n in pair if round_number % 2 else reversed(pair):
            times[n].append(process.time(line(what, passes)))
    medians = [statistics.median(t) for t in times]
    against = f"torch.nn.{theirs[1].upper()}" if theirs[0] == "torch" else "by hand"
    return {"cell": mine[1], "hidden": hidden, "batch": batch, "steps": steps, "ms": medians[0], "against": against,
            "other_ms": medians[1], "ratio": medians[0] / medians[1]}  # fmt: skip


if __name__ == "__main__":
    main()
