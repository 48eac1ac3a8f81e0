"""How fast the layers train: beside torch's own, a loop over time in plain torch, and flashrnn where it is installed.

Each case is a training pass of one layer in float32: input projection, recurrence, map, and all gradients. All times
come from one run, interleaved round by round so that a noisy machine is noisy for everyone; medians are reported, and
their ratios. TF32 is off while it runs, since nothing here uses it.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from evenflow.activations import ACTIVATIONS
from evenflow.checks import whole_number
from evenflow.layers import GRU, LSTM, RNN
from evenflow.systems import create

if TYPE_CHECKING:
    from rich.table import Table

INPUT = 2  # the input's width
PEERS = {"rnn": "torch.nn.RNN relu", "gru": "torch.nn.GRU", "lstm": "torch.nn.LSTM"}
SYSTEMS = ("urnn", "ornn", "spectral", "fastrnn", "sgornn")
WARM_UP = {"cpu": 1, "cuda": 5}  # on a GPU a map is recorded at its fourth call


@dataclass(frozen=True)
class Case:
    """One training pass, and which of torch's layers (a key of `PEERS`) it is measured against."""

    name: str
    kind: str
    run: Callable[[], object]


@dataclass
class Result:
    """Median milliseconds by case, what they were measured on and with, and what could not be measured and why."""

    hardware: dict[str, Any]
    settings: dict[str, int]
    kinds: dict[str, str]
    median_ms: dict[str, float]
    notes: list[str] = field(default_factory=list)

    def ratios(self, name: str) -> dict[str, float]:
        """The case's time over that of each peer there is: ``torch``, ``loop`` and ``flashrnn``."""
        kind = self.kinds[name]
        peers = {"torch": PEERS[kind], "loop": f"loop {kind}", "flashrnn": f"flashrnn {kind}"}
        return {
            peer: self.median_ms[name] / self.median_ms[other]
            for peer, other in peers.items()
            if other in self.median_ms
        }

    def table(self) -> Table:
        from evenflow.terminal import new_table

        peers = [peer for peer in ("torch", "loop", "flashrnn") if any(peer in self.ratios(n) for n in self.median_ms)]
        table = new_table("forward + backward", "ms", *(f"/ {peer}" for peer in peers))
        for column in table.columns[1:]:
            column.justify = "right"
        last = None
        for name, ms in self.median_ms.items():
            if last not in (None, self.kinds[name]):
                table.add_section()
            last = self.kinds[name]
            ratios = self.ratios(name)
            table.add_row(name, f"{ms:.2f}", *(f"{ratios[peer]:.2f}" if peer in ratios else "" for peer in peers))
        return table

    def write(self, path: Path) -> None:
        """All of it as JSON."""
        content = {
            "hardware": self.hardware,
            "settings": self.settings,
            "median_ms": self.median_ms,
            "ratios": {name: self.ratios(name) for name in self.median_ms},
            "notes": self.notes,
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=2) + "\n")


def bench(
    device: str = "auto",
    hidden: int = 128,
    batch: int = 50,
    length: int = 784,
    repeats: int = 10,
    progress: bool = False,
) -> Result:
    """Time every case `repeats` times, all in turn.

    Args:
        device: ``"cpu"``, ``"cuda"``, or ``"auto"`` for a GPU where there is one.
        hidden, batch, length: units (even: some activations pair them), sequences and time steps.

    >>> result = bench(hidden=32, batch=8, length=100, repeats=3)
    >>> result.ratios("evenflow RNN relu")["torch"]
    """
    for name, value in (("hidden", hidden), ("batch", batch), ("length", length), ("repeats", repeats)):
        whole_number(name, value, 1)
    if hidden % 2:
        raise ValueError(f"hidden must be even, since some activations and maps pair units, got {hidden}")
    where = find_device(device)
    result = Result(hardware(where), {"hidden": hidden, "batch": batch, "length": length, "repeats": repeats}, {}, {})
    x = torch.randn(length, batch, INPUT, generator=torch.Generator().manual_seed(0)).to(where)
    with _without_tf32(), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)  # torch's own layers draw from it and no other
        ready = [case for case in _in_turn(cases(x, hidden), 1, progress) if _warm(case, where, result)]
        times: dict[str, list[float]] = {case.name: [] for case in ready}
        for case in _in_turn(ready, repeats, progress):
            start = time.perf_counter()
            case.run()
            _finish(where)
            times[case.name].append(1e3 * (time.perf_counter() - start))
    result.kinds = {case.name: case.kind for case in ready}
    result.median_ms = {name: statistics.median(values) for name, values in times.items()}
    return result


def cases(x: Tensor, hidden: int) -> list[Case]:
    """Everything that is timed, torch's own first in each kind."""

    def ours(name: str, kind: str, layer: nn.Module) -> Case:
        return Case(f"evenflow {name}", kind, _training_pass(layer.to(x.device), x))

    modules: dict[str, nn.RNNBase] = {"rnn": nn.RNN(INPUT, hidden, nonlinearity="relu"), "gru": nn.GRU(INPUT, hidden)}
    modules["lstm"] = nn.LSTM(INPUT, hidden)
    nn.init.orthogonal_(_weights(modules["rnn"])[1])
    layers: dict[str, dict[str, nn.Module]] = {
        "rnn": {f"RNN {name}": RNN(INPUT, hidden, activation=name) for name in ACTIVATIONS}
        | {name: create(name, INPUT, hidden) for name in SYSTEMS},
        "gru": {"GRU": GRU(INPUT, hidden), "ugru": create("ugru", INPUT, hidden)},
        "lstm": {
            "LSTM": LSTM(INPUT, hidden),
            "LSTM, peephole": LSTM(INPUT, hidden, form="peephole"),
            "LSTM, 1997": LSTM(INPUT, hidden, form="1997"),
        },
    }
    if x.device.type == "cpu":
        layers["rnn"]["RNN relu, not compiled"] = RNN(INPUT, hidden, activation="relu", engine="torch")
        layers["gru"]["GRU, not compiled"] = GRU(INPUT, hidden, engine="torch")
        layers["lstm"]["LSTM, not compiled"] = LSTM(INPUT, hidden, engine="torch")
    found = []
    for kind, module in modules.items():
        module.to(x.device)
        found += [
            Case(PEERS[kind], kind, _training_pass(module, x)),
            Case(f"loop {kind}", kind, _loop(kind, module, x)),
        ]
        if x.device.type == "cuda" and importlib.util.find_spec("flashrnn") is not None:
            found.append(Case(f"flashrnn {kind}", kind, _flashrnn(kind, module, x)))
        found += [ours(name, kind, layer) for name, layer in layers[kind].items()]
    return found


def hardware(device: torch.device) -> dict[str, Any]:
    """What the times belong to."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else processor()
    versions = {"torch": torch.__version__, "python": platform.python_version()}
    return {"device": device.type, "name": name, "threads": torch.get_num_threads()} | versions


def processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    named = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


def find_device(device: str) -> torch.device:
    """The device of that name; a GPU where there is one for ``"auto"``."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device not in ("cpu", "cuda"):
        raise ValueError(f"device must be one of auto, cpu, cuda, got {device!r}")
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device must be cpu on this machine, where torch finds no GPU, got 'cuda'")
    return torch.device(device)


def _training_pass(layer: nn.Module, x: Tensor) -> Callable[[], object]:
    def run() -> None:
        layer.zero_grad(set_to_none=True)
        output, _ = layer(x)
        output[-1].sum().backward()

    return run


def _weights(layer: nn.Module) -> list[Tensor]:
    return [getattr(layer, name) for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")]


def _loop(kind: str, layer: nn.Module, x: Tensor) -> Callable[[], object]:
    """What a user writes by hand: one autograd graph per step, the input projected for all steps and split once."""

    def run() -> None:
        layer.zero_grad(set_to_none=True)
        W, U, b, c = _weights(layer)
        h = memory = x.new_zeros(x.shape[1], U.shape[-1])
        states = []
        for a in linear(x, W, b if kind == "gru" else b + c).unbind(0):
            if kind == "rnn":
                h = torch.relu(a + h @ U.mT)
            elif kind == "gru":
                (a_r, a_z, a_n), (u_r, u_z, u_n) = a.chunk(3, -1), linear(h, U, c).chunk(3, -1)
                r, z = (a_r + u_r).sigmoid(), (a_z + u_z).sigmoid()
                h = torch.lerp((a_n + r * u_n).tanh(), h, z)
            else:
                i, f, g, o = (a + h @ U.mT).chunk(4, -1)
                memory = f.sigmoid() * memory + i.sigmoid() * g.tanh()
                h = o.sigmoid() * memory.tanh()
            states.append(h)
        torch.stack(states)[-1].sum().backward()

    return run


def _flashrnn(kind: str, layer: nn.Module, x: Tensor) -> Callable[[], object]:
    """One head of the fused CUDA version, with the input projected before it."""
    W, U, bias, _ = _weights(layer)
    size = U.shape[-1]
    gates = len(U) // size
    function = "elman" if kind == "rnn" else kind
    R = U.detach().view(gates, 1, size, size).clone().requires_grad_()
    b = x.new_zeros(4 if kind == "gru" else gates, 1, size, requires_grad=True)

    def run() -> None:
        layer.zero_grad(set_to_none=True)
        R.grad = b.grad = None
        a = linear(x.transpose(0, 1), W, bias).unflatten(-1, (gates, 1, size))
        fused = importlib.import_module("flashrnn").flashrnn
        states, _ = fused(a, R, b, function=function, backend="cuda_fused")
        states[0][:, -1].sum().backward()

    return run


def _warm(case: Case, device: torch.device, result: Result) -> bool:
    """Run a case until it is as fast as it gets; one that is not ours and does not run becomes a note."""
    try:
        for _ in range(WARM_UP[device.type]):
            case.run()
        _finish(device)
    except Exception as error:
        if not case.name.startswith("flashrnn"):
            raise
        result.notes.append(f"{case.name} did not run: {str(error).splitlines()[0]}")
        return False
    return True


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextmanager
def _without_tf32() -> Iterator[None]:
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before


def _in_turn(ready: list[Case], repeats: int, progress: bool) -> Iterator[Case]:
    from rich.console import Console
    from rich.progress import Progress

    with Progress(transient=True, disable=not progress, console=Console(stderr=True)) as bar:
        task = bar.add_task("rounds", total=repeats * len(ready))
        for _ in range(repeats):
            for case in ready:
                yield case
                bar.advance(task)
