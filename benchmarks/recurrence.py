"""Forward + backward of the recurrence, every activation, beside torch.nn.RNN and a per-step autograd loop.

    python benchmarks/recurrence.py            # H=128, B=50, T=784 on the CPU
    python benchmarks/recurrence.py --quick    # a few seconds

All times come from one run, interleaved round by round so that a noisy machine is noisy for everyone; the medians and
their ratios are printed and written to benchmarks/results/. Denormals are flushed for all: a vanishing gradient
is full of them.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from evenflow import LSTM, RNN, ScalarGatedRNN
from evenflow.activations import ACTIVATIONS

RESULTS = Path(__file__).parent / "results"


def training_pass(layer: nn.Module, x: torch.Tensor) -> Callable[[], None]:
    def run() -> None:
        layer.zero_grad(set_to_none=True)
        output, _ = layer(x)
        output[-1].sum().backward()

    return run


def autograd_loop(layer: nn.RNN, x: torch.Tensor) -> Callable[[], None]:
    """What a user writes by hand: one autograd graph per step, the input split once by unbind."""

    def run() -> None:
        layer.zero_grad(set_to_none=True)
        a = nn.functional.linear(x, layer.weight_ih_l0, layer.bias_ih_l0 + layer.bias_hh_l0)
        h = x.new_zeros(x.shape[1], layer.hidden_size)
        states = []
        for a_t in a.unbind(0):
            h = torch.relu(a_t + h @ layer.weight_hh_l0.mT)
            states.append(h)
        torch.stack(states)[-1].sum().backward()

    return run


def medians(cases: dict[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    for run in cases.values():
        run()
    times: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, run in cases.items():
            start = time.perf_counter()
            run()
            times[name].append(1e3 * (time.perf_counter() - start))
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--steps", type=int, default=784)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--quick", action="store_true", help="100 steps, 3 rounds, nothing written")
    options = parser.parse_args()
    if options.quick:
        options.steps, options.rounds = 100, 3
    torch.set_flush_denormal(True)
    torch.manual_seed(0)
    x = torch.randn(options.steps, options.batch, 2)
    peer = nn.RNN(2, options.hidden, nonlinearity="relu")
    nn.init.orthogonal_(peer.weight_hh_l0)
    cases = {"torch.nn.RNN relu": training_pass(peer, x), "autograd loop relu": autograd_loop(peer, x)}
    for name in ACTIVATIONS:
        cases[f"evenflow.RNN {name}"] = training_pass(RNN(2, options.hidden, activation=name), x)
    for name in ("relu", "tanh"):
        layer = ScalarGatedRNN(2, options.hidden, activation=name)
        cases[f"evenflow.ScalarGatedRNN {name}"] = training_pass(layer, x)
    cases["evenflow.RNN abs, exponential"] = training_pass(
        RNN(2, options.hidden, map="exponential", activation="abs"), x
    )
    cases["evenflow.RNN relu, not compiled"] = training_pass(
        RNN(2, options.hidden, activation="relu", engine="torch"), x
    )
    cases["torch.nn.LSTM"] = training_pass(nn.LSTM(2, options.hidden), x)
    cases["evenflow.LSTM"] = training_pass(LSTM(2, options.hidden), x)
    result = medians(cases, options.rounds)

    base, loop = result["torch.nn.RNN relu"], result["autograd loop relu"]
    print(f"H={options.hidden} B={options.batch} T={options.steps} float32, {torch.get_num_threads()} threads")
    print(f"{'forward + backward':36}{'ms':>9}{'/ nn.RNN':>10}{'/ loop':>9}")
    for name, ms in result.items():
        print(f"{name:36}{ms:9.1f}{ms / base:10.2f}{ms / loop:9.2f}")
    print(f"evenflow.LSTM / torch.nn.LSTM: {result['evenflow.LSTM'] / result['torch.nn.LSTM']:.2f}")
    if not options.quick:
        hardware = {
            "processor": cpu_name(),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "python": platform.python_version(),
        }
        settings = {"hidden": options.hidden, "batch": options.batch, "steps": options.steps, "rounds": options.rounds}
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / "recurrence-cpu.json"
        path.write_text(json.dumps({"hardware": hardware, "settings": settings, "median_ms": result}, indent=2) + "\n")
        print(f"written to {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}")


def cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


if __name__ == "__main__":
    main()
