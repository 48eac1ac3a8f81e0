"""How fast the kernels that are generated from a step run on a GPU: beside another version of evenflow, and cuDNN.

    git worktree add ../before 0c991b1
    python benchmarks/cells_cuda.py --before ../before/src [--seconds 480] [--parts compile own errors before]
    python benchmarks/cells_cuda.py --tiles lem 128 50

Parts: "compile", the first compile time of each kernel and the time until it is ready from the disk; "own", cells that
nobody wrote by hand beside cuDNN's GRU, and gated feedback beside the version before; "errors" of outputs and gradients
over 784 steps against double precision; "before", all hand-written kernels beside those that took their place.

A pass is that of one layer in training, input projection of width 2 and all gradients included; T = 784, float32, TF32
off. Versions run in processes of their own, which take turns round by round, so that a noisy machine is noisy for both;
a ratio is that of the medians over all rounds. "graph": recorded as a whole; "eager": called from Python, where a layer
replays what it has recorded of itself. One line of output a row, and cells-cuda.json is written after every row: a run
that is cut short has shown something. With --tiles, one cell's tiles, see `cuda_tiles.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import layers_by_name

STEPS = 784
SIZES, BATCHES = (128, 256, 512, 1024), (50, 256)
HAND_WRITTEN = (*layers_by_name.ELMAN, "gated relu", "gated tanh", "gru", "lstm", "lstm peephole")
OWN, STACKS = layers_by_name.OWN, layers_by_name.STACKS
COMPILED = ("elman tanh", "gated relu", "gru", "lstm", "lstm peephole", *OWN)
GOALS = {"before": 1.03, "own": 0.6, "layer-norm gru": 1.0, "stack": 2.0, "error": 1e-5, "compile": 5.0, "disk": 0.05}
SUM = 1e-4  # goal of gradients by numbers that are summed over all steps and rows, whose parts largely cancel
PARTS = ("compile", "own", "errors", "before")
ANSWER_SECONDS = 120  # for one line; a worker that takes longer hangs
SLOW_MS = 100  # a pass that takes longer runs without kernels: it is timed a few times, and not recorded
ROUND_MS, ROUNDS = 25, 7
HELPERS = min(12, os.cpu_count() or 4)  # processes that compile ahead


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", help="the src folder of another version")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--seconds", type=float, default=480.0)
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)
    parser.add_argument("--only", default="", help="cells whose name has this in it")
    parser.add_argument("--sizes", nargs="+", type=int, default=list(SIZES))
    parser.add_argument("--batches", nargs="+", type=int, default=list(BATCHES))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--tiles", nargs=3, metavar=("CELL", "H", "B"), help="the tiles of one cell instead")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker()
        return
    if options.tiles:
        import cuda_tiles

        cell, hidden, batch = options.tiles
        cuda_tiles.measure(cell, int(hidden), int(batch), options.out, options.seconds)
        return
    session = Session(options)
    try:
        for part in options.parts:
            getattr(session, part)()
    finally:
        session.close()
    session.summary()


class Session:
    """All rows so far, the workers, and the time."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.rows, self.end = options, [], time.monotonic() + options.seconds
        options.out.mkdir(parents=True, exist_ok=True)
        self.path = options.out / "cells-cuda.json"
        self.now = Worker(str(Path(__file__).parents[1] / "src"))
        self.before_it = Worker(options.before) if options.before else None
        self.about = self.now.ask({"do": "about"}) | {"steps": STEPS, "rounds": options.rounds}
        print(f"{self.about}, {options.seconds:.0f} s", flush=True)

    def close(self) -> None:
        for each in (self.now, self.before_it):
            if each is not None:
                each.close()

    def over(self) -> bool:
        return time.monotonic() > self.end

    def wanted(self, names: tuple[str, ...]) -> list[str]:
        return [name for name in names if self.options.only in name]

    def note(self, row: dict[str, Any], said: str) -> None:
        """One row: printed, and on disk."""
        self.rows.append(row)
        self.path.write_text(json.dumps(self.about | {"rows": self.rows}, indent=1) + "\n")
        value, goal = row.get("ratio", row.get("value")), row["goal"]
        verdict = "" if value is None else "reached" if value <= goal else "MISSED"
        print(f"{row['part']:8s} {row['name']:42s} {said} (goal {goal:g}) {verdict}", flush=True)

    def failed(self, part: str, name: str, goal: float, why: Exception) -> None:
        self.note({"part": part, "name": name, "goal": goal, "failed": str(why)[:300]}, f"failed: {str(why)[:160]}")

    def summary(self) -> None:
        for part in self.options.parts:
            rows = [row for row in self.rows if row["part"] == part]
            judged = [row for row in rows if row.get("ratio", row.get("value")) is not None]
            missed = [row["name"] for row in judged if row.get("ratio", row.get("value")) > row["goal"]]
            print(f"{part}: {len(judged) - len(missed)} of {len(judged)} reached, {len(rows) - len(judged)} failed; "
                  f"missed: {', '.join(missed) or 'none'}", flush=True)  # fmt: skip

    def prepare(self, source: str | None, cases: list[tuple[str, int, int]]) -> None:
        """Compile what the cases need into the cache, in processes side by side."""
        if source is None or not cases:
            return
        begin = time.monotonic()
        count = min(HELPERS, len(cases))
        helpers = [Worker(source) for _ in range(count)]
        for n, helper in enumerate(helpers):
            helper.send({"do": "prepare", "cases": cases[n::count]})
        for helper in helpers:
            try:
                helper.receive(max(10.0, min(300.0, self.end - time.monotonic())))
            except RuntimeError as why:
                print(f"not all compiled ahead: {why}", flush=True)
            helper.close()
        print(f"compiled {len(cases)} layers ahead in {time.monotonic() - begin:.0f} s", flush=True)

    def compared(
        self, part: str, name: str, goal: float, mine: dict[str, Any], other: Worker, theirs: dict[str, Any]
    ) -> None:
        """Both in turns."""
        try:
            for process in {self.now, other}:
                process.ask({"do": "forget"})
            first = [process.ask({"do": "make"} | of)["ms"] for process, of in ((self.now, mine), (other, theirs))]
            rounds = self.options.rounds if max(first) < SLOW_MS else 2
            times: list[list[float]] = [[], []]
            for place in range(rounds):
                pair = [(self.now, mine, 0), (other, theirs, 1)]
                for process, of, n in pair if place % 2 else reversed(pair):
                    times[n].append(process.ask({"do": "time"} | of)["ms"])
        except RuntimeError as why:
            self.failed(part, name, goal, why)
            return
        ms, other_ms = (statistics.median(t) for t in times)
        row = {"part": part, "name": name, "ms": ms, "other_ms": other_ms, "ratio": ms / other_ms, "goal": goal}
        row |= {"of": mine, "beside": theirs["name"], "all_ms": times}
        self.note(row, f"{ms:9.3f} ms beside {other_ms:9.3f}: {ms / other_ms:.3f}")

    def before(self) -> None:
        if self.before_it is None:
            return
        names = self.wanted(HAND_WRITTEN)
        sizes = [(h, b) for b in self.options.batches for h in self.options.sizes]
        cases = [(name, h, b) for h, b in sizes for name in names]
        for source in (self.now.source, self.before_it.source):
            self.prepare(source, cases)
        for hidden, batch in sizes:
            for name in names:
                for mode in ("graph", "eager"):
                    if self.over():
                        print("no time for the other cells", flush=True)
                        return
                    of = {"name": name, "hidden": hidden, "batch": batch, "mode": mode}
                    label = f"{name} H={hidden} B={batch} {mode}"
                    self.compared("before", label, GOALS["before"], of, self.before_it, of)

    def own(self) -> None:
        sizes = [h for h in self.options.sizes if h <= 256]
        names, stacks = self.wanted(OWN), self.wanted(STACKS)
        self.prepare(self.now.source, [(name, h, 50) for h in sizes for name in (*names, *stacks)])
        if self.before_it is not None:
            self.prepare(self.before_it.source, [(name, h, 50) for h in sizes for name in stacks])
        for hidden in sizes:
            for mode in ("graph", "eager"):
                for name in (*names, *stacks):
                    if self.over():
                        print("no time for the other cells", flush=True)
                        return
                    of = {"name": name, "hidden": hidden, "batch": 50, "mode": mode}
                    label = f"{name} H={hidden} B=50 {mode}"
                    if name in OWN:
                        self.compared(
                            "own", label, GOALS.get(name, GOALS["own"]), of, self.now, of | {"name": "torch gru"}
                        )
                    elif self.before_it is not None:
                        self.compared("own", label, GOALS["stack"], of, self.before_it, of)

    def errors(self) -> None:
        for hidden in [h for h in self.options.sizes if h <= 256]:
            for name in self.wanted((*HAND_WRITTEN, "scrn", *OWN, *STACKS)):
                if self.over():
                    print("no time for the other cells", flush=True)
                    return
                label = f"{name} H={hidden} B=50"
                try:
                    found = self.now.ask({"do": "error", "name": name, "hidden": hidden, "batch": 50})
                except RuntimeError as why:
                    self.failed("errors", label, GOALS["error"], why)
                    continue
                said = f"outputs {found['outputs']:.1e} gradients {found['gradients']:.1e} sums {found['sums']:.1e}"
                # A sum's error counts a tenth, as its goal is ten times as large.
                worst = max(found["outputs"], found["gradients"], found["sums"] * GOALS["error"] / SUM)
                self.note({"part": "errors", "name": label, "value": worst, "goal": GOALS["error"]} | found, said)

    def compile(self) -> None:
        cases = [(name, 128) for name in self.wanted(COMPILED)]
        cases += [(name, 1024) for name in self.wanted(("elman tanh", "gru", "lstm")) if 1024 in self.options.sizes]
        for name, hidden in cases:
            if self.over():
                return
            try:
                found = self.now.ask({"do": "compile", "name": name, "hidden": hidden, "batch": 50})
            except RuntimeError as why:
                self.failed("compile", f"{name} H={hidden}", GOALS["compile"], why)
                continue
            for way, each in found.items():
                for kind, goal in (("compile", GOALS["compile"]), ("disk", GOALS["disk"])):
                    row = {"part": "compile", "name": f"{name} H={hidden} {way}, {kind}", "value": each[kind]}
                    self.note(row | {"goal": goal, "unit": "s"}, f"{each[kind]:7.3f} s")


class Worker:
    """A process that answers lines of JSON, with one version of evenflow."""

    def __init__(self, source: str) -> None:
        self.source = source
        self._process: subprocess.Popen[bytes] | None = None
        self._rest = b""

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            environment = {**os.environ, "PYTHONPATH": f"{self.source}{os.pathsep}{Path(__file__).parent}"}
            command = [sys.executable, str(Path(__file__).resolve()), "--worker"]
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, bufsize=0
            )
        return self._process

    def send(self, order: dict[str, Any]) -> None:
        stdin = self._started().stdin
        assert stdin is not None
        try:
            stdin.write((json.dumps(order) + "\n").encode())
        except OSError as why:
            self.close()
            raise RuntimeError(f"the worker has ended: {why}") from why

    def receive(self, seconds: float = ANSWER_SECONDS) -> dict[str, Any]:
        """The next answer; a worker that has none in time is ended, and started anew for the next order."""
        stdout, end = self._started().stdout, time.monotonic() + seconds
        assert stdout is not None
        while b"\n" not in self._rest:
            if not select.select([stdout], [], [], max(0.0, end - time.monotonic()))[0]:
                self.close()
                raise RuntimeError(f"no answer in {seconds:.0f} s")
            some = os.read(stdout.fileno(), 1 << 16)
            if not some:
                self.close()
                raise RuntimeError("the worker has ended")
            self._rest += some
        line, self._rest = self._rest.split(b"\n", 1)
        answer = json.loads(line)
        if "failed" in answer:
            raise RuntimeError(answer["failed"])
        return answer

    def ask(self, order: dict[str, Any]) -> dict[str, Any]:
        self.send(order)
        return self.receive()

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._process, self._rest = None, b""


# What a worker does. Nothing here is imported by the process that only asks.


def worker() -> None:
    """Answer orders until there are no more; what else is printed goes to the errors."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    made: dict[str, Any] = {}
    for line in sys.stdin:
        order = json.loads(line)
        try:
            answer = ORDERS[order.pop("do")](made, **order)
        except Exception as why:
            answer = {"failed": f"{type(why).__name__}: {str(why).splitlines()[0] if str(why) else ''}"[:300]}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def about(made: dict[str, Any]) -> dict[str, Any]:
    import torch

    return {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "python": sys.version.split()[0]}


def training_pass(name: str, hidden: int, batch: int, steps: int = STEPS) -> Callable[[], None]:
    import torch

    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    layer = layers_by_name.made(name, hidden).cuda()
    x = torch.randn(steps, batch, 2, device="cuda")
    grad = torch.randn(steps, batch, hidden, device="cuda")

    def run() -> None:
        layer.zero_grad(set_to_none=True)
        layer(x)[0].backward(grad)

    return run


def prepare(made: dict[str, Any], cases: list[list[Any]]) -> dict[str, Any]:
    """A short pass of each: its kernels are compiled, and lie in the cache."""
    import torch

    for name, hidden, batch in cases:
        try:
            training_pass(name, hidden, batch, 4)()
        except Exception as why:
            print(f"{name} H={hidden}: {why}", file=sys.stderr)
        torch.cuda.empty_cache()
    torch.cuda.synchronize()
    return {"cases": len(cases)}


def timed(run: Callable[[], object], passes: int) -> float:
    """The median over passes, one after another without a wait between them."""
    import torch

    marks = []
    for _ in range(passes):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        run()
        end.record()
        marks.append((begin, end))
    torch.cuda.synchronize()
    return statistics.median(begin.elapsed_time(end) for begin, end in marks)


def make(made: dict[str, Any], name: str, hidden: int, batch: int, mode: str) -> dict[str, Any]:
    """A pass, warm or recorded, and about how long it takes."""
    import torch

    run = training_pass(name, hidden, batch)
    run()
    once = timed(run, 1)
    slow = once > SLOW_MS and timed(run, 1) > SLOW_MS
    for _ in range(0 if slow else 9):  # as often as it takes a layer to record itself
        run()
    torch.cuda.synchronize()
    ready: Callable[[], object] = run
    if mode == "graph" and not slow:
        try:
            from evenflow.runtime.captured_function import capturing
        except ModuleNotFoundError:  # the version before
            from evenflow.maps.recorded import uncollected as capturing

        stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        stream.wait_stream(torch.cuda.current_stream())
        with capturing(), torch.cuda.graph(graph, stream=stream):
            run()
        torch.cuda.current_stream().wait_stream(stream)
        graph.replay()
        ready = graph.replay
    torch.cuda.synchronize()
    ms = timed(ready, 1 if slow else 3)
    passes = 1 if slow else max(3, min(25, round(ROUND_MS / max(ms, 1e-3))))
    made[json.dumps([name, hidden, batch, mode])] = (ready, passes, run)
    return {"ms": ms}


def forget(made: dict[str, Any]) -> dict[str, Any]:
    """Make room for the next layers."""
    import gc

    import torch

    made.clear()
    gc.collect()
    torch.cuda.empty_cache()
    return {}


def time_it(made: dict[str, Any], name: str, hidden: int, batch: int, mode: str) -> dict[str, Any]:
    ready, passes, *_ = made[json.dumps([name, hidden, batch, mode])]
    ready()  # after the other version's turn
    return {"ms": timed(ready, passes)}


def error(made: dict[str, Any], name: str, hidden: int, batch: int) -> dict[str, Any]:
    """The largest of outputs and of gradients; these back from the same states, so that kinks are on the same sides."""
    import torch
    from cuda_inputs import doubled, gradients, inputs, off

    from evenflow.scan import torch_operations
    from evenflow.scan.cuda import cuda_recurrence, step_kernels
    from evenflow.scan.engine import ScanInputs, ScanOutputs, scan_gradients

    forget(made)
    step = layers_by_name.step_of(layers_by_name.made(name, hidden))
    if why := step_kernels.unsupported_step(step, torch.device("cuda", 0)):
        raise RuntimeError(why)
    given = inputs(step, name, 1, STEPS, batch)
    new, kept, marks = torch_operations.forward(ScanInputs(step, *given.double()))
    got, *_ = cuda_recurrence.forward(ScanInputs(step, *given))
    grads = [torch.randn_like(s) for s in got]
    stored = [s.float() for s in new], kept.float(), marks
    wide = doubled(stored[0]), stored[1].double(), marks
    right = gradients(
        scan_gradients(torch_operations, ScanInputs(step, *given.double()), ScanOutputs(*wide), doubled(grads), True)
    )
    found = gradients(scan_gradients(cuda_recurrence, ScanInputs(step, *given), ScanOutputs(*stored), grads, True))
    offs = {key: off(found[key], value) for key, value in right.items()}
    sums = [value for key, value in offs.items() if "parameter" in key]
    return {
        "outputs": max(off(one, other) for one, other in zip(got, new, strict=True)),
        "gradients": max(value for key, value in offs.items() if "parameter" not in key),
        "sums": max(sums, default=0.0),
    }


def compile_it(made: dict[str, Any], name: str, hidden: int, batch: int) -> dict[str, Any]:
    """Seconds from the step's text until the kernel can be launched: compiled, and then from the disk."""
    import torch

    from evenflow.runtime import compile_cuda as build
    from evenflow.scan.compiled_step import CompiledStep
    from evenflow.scan.cuda import step_kernels

    device = torch.device("cuda", 0)
    torch.zeros(1, device=device)
    text = layers_by_name.step_of(layers_by_name.made(name, hidden)).text
    step_kernels.kernels(CompiledStep(text), False, 1, batch, device)  # asks the driver for its clusters once
    found: dict[str, Any] = {}
    before = os.environ.get("XDG_CACHE_HOME")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        try:
            for way in ("forward", "backward"):
                found[way] = {}
                for kind in ("compile", "disk"):
                    step, begin = CompiledStep(text), time.perf_counter()
                    ((_, kernel), *_) = step_kernels.kernels(step, way == "backward", 1, batch, device)
                    build.loaded.__wrapped__(kernel, 0)
                    found[way][kind] = time.perf_counter() - begin
        finally:
            if before is None:
                del os.environ["XDG_CACHE_HOME"]
            else:
                os.environ["XDG_CACHE_HOME"] = before
    return found


ORDERS: dict[str, Callable[..., dict[str, Any]]] = {
    "about": about,
    "prepare": prepare,
    "make": make,
    "forget": forget,
    "time": time_it,
    "error": error,
    "compile": compile_it,
}


if __name__ == "__main__":
    main()
