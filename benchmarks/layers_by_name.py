"""Layers by the names that the benchmarks of kernels call them by; also of versions that have fewer of them."""

from __future__ import annotations

from typing import Any

ACTIVATIONS = ("identity", "relu", "leaky", "prelu", "tanh", "abs", "oplu", "modrelu", "complex_modrelu")
ELMAN = tuple(f"elman {name}" for name in ACTIVATIONS)
GATED = tuple(f"gated {name}" for name in ACTIVATIONS)
NEWER = ("sigmoid", "hardtanh", "softsign", "sin", "saturated")  # activations without kernels by hand
OWN = ("cornn", "lem", "mgu", "ugrnn", "fastgrnn", "gru u(r h)", "layer-norm gru")
STACKS = tuple(f"gated feedback {unit}" for unit in ("tanh", "gru", "lstm"))
NAMED = ("gru", "lstm", "lstm peephole", "lstm 1997", "lstm 1997, full", "scrn")
ALL = (*ELMAN, *GATED, *(f"{kind} {name}" for kind in ("elman", "gated") for name in NEWER), *NAMED, *OWN, *STACKS)
TORCHS = ("torch rnn", "torch gru", "torch lstm")


def made(name: str, hidden: int, inputs: int = 2) -> Any:
    """The layer of a name, on the CPU."""
    import torch

    import evenflow

    if name in OWN:
        from own_cells import CELLS  # beside this file; the versions before have no cells of one's own

        return evenflow.Recurrent(CELLS[name](), inputs, hidden)
    kind, _, option = name.partition(" ")
    if kind == "torch":
        return {"rnn": torch.nn.RNN, "gru": torch.nn.GRU, "lstm": torch.nn.LSTM}[option](inputs, hidden)
    if name in STACKS:
        return evenflow.GatedFeedbackRNN(inputs, hidden, unit=name.split()[-1])
    if kind == "elman":
        return evenflow.RNN(inputs, hidden, activation=option)
    if kind == "gated":
        return evenflow.ScalarGatedRNN(inputs, hidden, activation=option)
    if option == "1997, full":
        from evenflow.cells import LSTM1997

        return evenflow.Recurrent(LSTM1997("full"), inputs, hidden)
    if kind == "lstm":
        return evenflow.LSTM(inputs, hidden, form=option or "standard")
    return {"gru": evenflow.GRU, "scrn": evenflow.SCRN}[kind](inputs, hidden)


def step_of(layer: Any) -> Any:
    """The compiled step of a layer, which runs once, on the CPU, for it to be known."""
    import torch

    from evenflow.scan.compiled_step import CompiledStep

    layer.cell.programs.clear()
    engine, layer.engine = layer.engine, "torch"
    with torch.no_grad():
        layer(torch.zeros(1, 1, layer.input_size))
    layer.engine = engine
    (found,) = layer.cell.programs.values()
    if not isinstance(found, str):
        raise found
    return CompiledStep(found)
