"""Every speed goal of the recurrence on a GPU, beside cuDNN in the same run.

    python benchmarks/goals_cuda.py [--out benchmarks/results] [--quick] [--only "lstm H=512" populations taps]

A pass is what a layer does in training: input projection (width 2), map, recurrence, and all gradients; T = 784,
float32, TF32 off. Each is timed twice: called from Python ("eager", where a layer replays what it has recorded of
itself), and recorded as a CUDA graph as a whole ("graph"), as `fit` runs it; cuDNN likewise. A ratio is a pass over
cuDNN's pass timed the same way. "alone" is the recurrence without map and projection. Medians, in milliseconds, to
goals-cuda.json.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from layers_by_name import step_of
from torch import Tensor, nn

from evenflow import SequenceModel, create
from evenflow.activations import ACTIVATIONS
from evenflow.layers.named import GRU, LSTM, RNN, ScalarGatedRNN
from evenflow.models.population import Population
from evenflow.runtime.captured_function import capturing
from evenflow.scan import recurrence
from evenflow.scan.cuda import cuda_recurrence as kernels
from evenflow.scan.engine import ScanInputs

STEPS, INPUT, ROUNDS, WARM = 784, 2, 15, 9
# Kind, H, B: the largest ratio to cuDNN's RNN, GRU or LSTM of the same size, with a map and alone.
GOALS = {
    ("rnn", 128, 50): (0.65, None),
    ("rnn", 256, 50): (0.5, None),
    ("rnn", 512, 50): (1 / 6, 1 / 9),
    ("rnn", 1024, 50): (1 / 4, 1 / 6),
    ("rnn", 128, 256): (0.45, None),
    ("rnn", 512, 256): (1 / 3, None),
    ("gru", 128, 50): (0.6, None),
    ("gru", 256, 50): (0.2, None),
    ("gru", 512, 50): (0.2, None),
    ("gru", 1024, 50): (0.2, None),
    ("lstm", 128, 50): (0.6, None),
    ("lstm", 256, 50): (0.2, None),
    ("lstm", 512, 50): (0.2, None),
    ("lstm", 1024, 50): (0.2, None),
}
POPULATIONS = {16: 2.5, 32: 4.0}
WITH: dict[str, dict[str, Any]] = {
    "exponential": {},
    "householder": {"reflectors": 16},
    "svd": {"reflectors": (16, 16)},
    "rotations": {},
}

Pass = Callable[[], object]


def milliseconds(run: Pass) -> float:
    """The median over rounds, one after another without a wait between them."""
    torch.cuda.synchronize()
    marks = []
    for _ in range(ROUNDS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        run()
        end.record()
        marks.append((begin, end))
    torch.cuda.synchronize()
    return statistics.median(begin.elapsed_time(end) for begin, end in marks)


def warm(run: Pass) -> Pass:
    """A pass after as many calls as a layer and its map need to have recorded themselves."""
    for _ in range(WARM):
        run()
    return run


def both(run: Pass) -> dict[str, float]:
    """A pass as it is, and as a CUDA graph."""
    return {"eager": milliseconds(warm(run)), "graph": recorded(run)}


def recorded(run: Pass) -> float:
    """A warm pass as a CUDA graph."""
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with capturing(), torch.cuda.graph(graph, stream=stream):
        run()
    torch.cuda.current_stream().wait_stream(stream)
    graph.replay()
    return milliseconds(graph.replay)


def training_pass(layer: nn.Module, x: Tensor, hidden: int) -> Pass:
    grad = torch.randn(*x.shape[:2], hidden, device="cuda")

    def run() -> None:
        layer.zero_grad(set_to_none=True)
        layer(x)[0].backward(grad)

    return run


def alone(hidden: int, batch: int, models: int, tap: bool = False) -> Pass:
    """The recurrence and its gradients, of given inputs."""
    shape = (models, STEPS, batch, hidden)
    a, grad = (torch.randn(shape, device="cuda") for _ in range(2))
    weight = torch.linalg.qr(torch.randn(models, hidden, hidden, device="cuda"))[0].contiguous()
    step = step_of(RNN(INPUT, hidden, activation="tanh")).text
    leaves = [a.mul_(0.3), weight, torch.zeros(models, batch, hidden, device="cuda")]
    leaves += [torch.zeros(shape, device="cuda")] if tap else []
    for leaf in leaves:
        leaf.requires_grad_()

    def run() -> None:
        states, *_ = recurrence.fused_scan(step, leaves[0], [leaves[2]], [leaves[1]], [], leaves[3] if tap else None)
        torch.autograd.grad(states, leaves, grad)

    return run


def tapped(layer: RNN, x: Tensor, hidden: int) -> Pass:
    """`training_pass` with the gradients by every state."""
    run = training_pass(layer, x, hidden)

    def listening() -> None:
        with layer.taps():
            run()

    return listening


def cases(kind: str, hidden: int, batch: int, quick: bool) -> Iterator[tuple[str, nn.Module]]:
    """Layers of this kind, by name."""
    if kind == "gru":
        yield from (("GRU", GRU(INPUT, hidden)), ("ugru", create("ugru", INPUT, hidden)))
    elif kind == "lstm":
        yield from (("LSTM", LSTM(INPUT, hidden)), ("LSTM, peephole", LSTM(INPUT, hidden, form="peephole")))
    else:
        for name, options in WITH.items():
            yield f"Elman abs, {name}", RNN(INPUT, hidden, map=name, activation="abs", **options)
            if not quick:
                gated = ScalarGatedRNN(INPUT, hidden, map=name, activation="relu", **options)
                yield f"gated relu, {name}", gated
        if (hidden, batch) == (128, 50):
            for activation in ACTIVATIONS:
                yield f"Elman {activation}", RNN(INPUT, hidden, map="householder", activation=activation)


def cudnn(kind: str, hidden: int, batch: int) -> Pass:
    layer = {"gru": nn.GRU, "lstm": nn.LSTM, "rnn": nn.RNN}[kind](INPUT, hidden)
    if kind == "rnn":
        layer = nn.RNN(INPUT, hidden, nonlinearity="relu")
    for name, weight in layer.named_parameters():
        if "weight_hh" in name:
            nn.init.orthogonal_(weight)
    return training_pass(layer.cuda(), torch.randn(STEPS, batch, INPUT, device="cuda"), hidden)


def linear(steps: int = 10_000) -> dict[str, Any]:
    """A linear recurrence over many steps, in pieces and step by step."""
    found = {}
    for batch in (1, 10, 20, 50):
        step = step_of(RNN(INPUT, 128, activation="identity"))
        a = torch.randn(1, steps, batch, 128, device="cuda")
        weight = torch.linalg.qr(torch.randn(1, 128, 128, device="cuda"))[0].contiguous()
        start, absent = torch.zeros(1, batch, 128, device="cuda"), [None for _ in step.program.parameters]
        run = partial(kernels.forward, ScanInputs(step, a, [start], [weight], absent))
        row = {"pieces": kernels._pieces(a), "plan_ms": milliseconds(warm(run))}
        with mock.patch.object(kernels, "_pieces", return_value=1):
            row["steps_ms"] = milliseconds(warm(run))
        found[f"B={batch}"] = row
    return found


def memory(steps: int = 100_000) -> dict[str, float]:
    """The most memory that training on one very long batch takes, in GB, above what was there: H = 128, B = 16."""
    found = {}
    for every in (None, 1000):
        gc.collect()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        layer = create("sgornn", INPUT, 128, checkpoint_every=every).cuda()
        x = torch.randn(steps, 16, INPUT, device="cuda")
        for _ in range(2):
            torch.cuda.reset_peak_memory_stats()
            begin = time.perf_counter()
            layer(x)[1].sum().backward()
            torch.cuda.synchronize()
        found[f"checkpoint_every {every}, GB"] = (torch.cuda.max_memory_allocated() - before) / 1e9
        found[f"checkpoint_every {every}, seconds"] = time.perf_counter() - begin
        del layer, x  # before the next one counts what is there
    return found


def population(models: int) -> Pass:
    made = Population([SequenceModel(create("sgornn", INPUT, 128), 10) for _ in range(models)]).cuda()
    x = torch.randn(models, STEPS, 50, INPUT, device="cuda")

    def run() -> None:
        made.zero_grad(set_to_none=True)
        made(x)[0].sum().backward()

    return run


class Results:
    """What has been measured so far, on disk after every number."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "goals-cuda.json"
        self.found: dict[str, Any] = json.loads(self.path.read_text()) if self.path.exists() else {}
        self.found |= {"hardware": torch.cuda.get_device_name(), "torch": torch.__version__}

    def note(self, table: str, name: str, measure: Callable[..., Any], *given: Any) -> Any:
        try:
            found = measure(*given)
        except RuntimeError as error:
            found = {"failed": str(error).splitlines()[0][:200]}
        self.found.setdefault(table, {})[name] = found
        self.path.write_text(json.dumps(self.found, indent=1) + "\n")
        return found


def timed(make: Callable[..., Pass], *given: Any) -> dict[str, float]:
    return both(make(*given))


def size(results: Results, kind: str, hidden: int, batch: int, quick: bool) -> None:
    """All passes of one size beside cuDNN's."""
    goal, goal_alone = GOALS[kind, hidden, batch]
    table = f"{kind} H={hidden} B={batch}"
    peer = results.note(table, "cuDNN", timed, cudnn, kind, hidden, batch)
    print(f"{table}: cuDNN {peer}, goal {goal:.3f}", flush=True)
    x = torch.randn(STEPS, batch, INPUT, device="cuda")
    rows: list[tuple[Any, ...]] = [
        (name, training_pass, layer.cuda(), x, hidden) for name, layer in cases(kind, hidden, batch, quick)
    ]
    if kind == "rnn":
        rows.append(("alone", alone, hidden, batch, 1))
    for name, *rest in rows:
        found = results.note(table, name, timed, *rest)
        if "failed" in found:
            print(f"  {name:28} {found['failed']}", flush=True)
            continue
        wanted = goal if name != "alone" else goal_alone
        ratios = {way: found[way] / peer[way] for way in ("eager", "graph")}
        verdict = "" if wanted is None else "  reached" if ratios["graph"] <= wanted else "  MISSED"
        times = "  ".join(f"{way} {found[way]:7.3f} ms = {ratios[way]:.3f}" for way in ratios)
        print(f"  {name:28} {times}{verdict}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--quick", action="store_true", help="fewer layers of each size")
    parser.add_argument("--only", nargs="+", default=[], help="tables by the beginning of their names; others are kept")
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    results = Results(options.out)

    def wanted(table: str) -> bool:
        return not options.only or any(table.startswith(word) for word in options.only)

    for kind, hidden, batch in GOALS:
        if wanted(f"{kind} H={hidden} B={batch}"):
            size(results, kind, hidden, batch, options.quick)
    if wanted("populations"):
        one = results.note("populations", "one by cuDNN", timed, cudnn, "rnn", 128, 50)
        for models, goal in POPULATIONS.items():
            for name, make, *given in (("alone", alone, 128, 50, models), ("sgornn", population, models)):
                found = results.note("populations", f"{models} models, {name}", timed, make, *given)
                print(f"{models} models, {name}: {found}, of one by cuDNN {one}, goal {goal}", flush=True)
    for hidden in (128, 512) if wanted("taps") else ():
        for tap in (False, True):
            found = results.note("taps", f"H={hidden}{', tapped' * tap}", timed, alone, hidden, 50, 1, tap)
            print(f"H={hidden}{', tapped' * tap}: {found}", flush=True)
        layer = RNN(INPUT, hidden, map="householder", activation="tanh").cuda()
        x = torch.randn(STEPS, 50, INPUT, device="cuda")
        for name, make in ((f"layer H={hidden}", training_pass), (f"layer H={hidden}, tapped", tapped)):
            print(f"{name}: {results.note('taps', name, timed, make, layer, x, hidden)}", flush=True)
    if wanted("linear"):
        print(results.note("linear T=10000", "H=128", linear))
    if wanted("memory"):
        print(results.note("memory T=100000", "H=128 B=16", memory))


if __name__ == "__main__":
    main()
