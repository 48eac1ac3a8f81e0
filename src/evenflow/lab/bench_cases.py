"""The cases that `bench` times: layers of evenflow and of torch, a loop over time in plain torch, and flashrnn."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from evenflow.activations import ACTIVATIONS
from evenflow.layers.named import GRU, LSTM, RNN
from evenflow.systems import create

INPUT = 2  # input size
PEERS = {"rnn": "torch.nn.RNN relu", "gru": "torch.nn.GRU", "lstm": "torch.nn.LSTM"}
SYSTEMS = ("urnn", "ornn", "spectral", "full-urnn", "arjovsky-urnn", "fastrnn", "sgornn")


@dataclass(frozen=True)
class Case:
    """One training pass, and the kind of torch's layer (a key of `PEERS`) that it is compared with."""

    name: str
    kind: str
    run: Callable[[], object]


def cases(x: Tensor, hidden: int) -> list[Case]:
    """All cases; in each kind torch's own layer comes first."""

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
    all_cases = []
    for kind, module in modules.items():
        module.to(x.device)
        all_cases += [
            Case(PEERS[kind], kind, _training_pass(module, x)),
            Case(f"loop {kind}", kind, _loop(kind, module, x)),
        ]
        if x.device.type == "cuda" and importlib.util.find_spec("flashrnn") is not None:
            all_cases += _flashrnn_cases(kind, module, x)
        all_cases += [ours(name, kind, layer) for name, layer in layers[kind].items()]
    return all_cases


def _training_pass(layer: nn.Module, x: Tensor) -> Callable[[], object]:
    def run() -> None:
        layer.zero_grad(set_to_none=True)
        output, _ = layer(x)
        output[-1].sum().backward()

    return run


def _weights(layer: nn.Module) -> list[Tensor]:
    return [getattr(layer, name) for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")]


def _loop(kind: str, layer: nn.Module, x: Tensor) -> Callable[[], object]:
    """The loop that a user would write; only the input projection is done for all steps at once."""

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


def _flashrnn_cases(kind: str, layer: nn.Module, x: Tensor) -> list[Case]:
    stepped = Case(f"flashrnn {kind}, step by step", kind, _flashrnn(kind, layer, x, "cuda"))
    # flashrnn has no fused GRU.
    return [stepped] if kind == "gru" else [Case(f"flashrnn {kind}", kind, _flashrnn(kind, layer, x)), stepped]


def _flashrnn(kind: str, layer: nn.Module, x: Tensor, backend: str = "cuda_fused") -> Callable[[], object]:
    """flashrnn with one head: its backend "cuda_fused", or "cuda", which launches a product per step."""
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
        states, _ = fused(a, R, b, function=function, backend=backend, dtype="float32")
        states[0][:, -1].sum().backward()

    return run
