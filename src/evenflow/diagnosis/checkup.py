"""What ``evenflow doctor`` looks at: a run folder, a file of weights, or a fresh layer of a named system."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from evenflow.checks import one_of, unknown, whole_number
from evenflow.diagnosis.examination import doctor
from evenflow.diagnosis.finding import Diagnosis
from evenflow.systems import SYSTEMS, create

WEIGHTS = ("best", "last")
SEQUENCES = 4
KINDS: dict[int, Callable[..., nn.Module]] = {1: nn.RNN, 3: nn.GRU, 4: nn.LSTM}  # by rows of weight_hh for each unit


def checkup(
    target: str,
    *,
    hidden: int | None = None,
    input: int | None = None,
    length: int | None = None,
    weights: str | None = None,
    trusted: bool = False,
) -> Diagnosis:
    """The diagnosis of what `target` names.

    Args:
        target: a run folder, looked at with its weights and a batch its training never saw; a file of weights; or the
            name of a system, for a fresh layer. The last two are given random inputs, N(0, 1).
        hidden: units of a fresh layer, 128 by default. input: its input's width, 2. length: steps of the random inputs,
            200.
        weights: of a run, ``"best"`` or ``"last"``; the best there are, by default.
        trusted: whether a file may hold a whole pickled module. Reading one runs the code in it, so it is refused
            unless you trust where it came from.
    """
    path = Path(target)
    given = {"hidden": hidden, "input": input, "length": length}
    unused = given if path.is_dir() else {"hidden": hidden, "input": input} if path.is_file() else {}
    for name, value in unused.items():
        if value is not None:
            raise ValueError(f"{name} must be left out for {target!r}, which has its own, got {value!r}")
    if path.is_dir():
        return _run(path, weights)
    if weights is not None:
        raise ValueError(f"weights goes with a run folder, got {weights!r} for {target!r}")
    hidden, input, length = (default if v is None else v for v, default in ((hidden, 128), (input, 2), (length, 200)))
    whole_number("length", length, 2)  # a gradient over time needs two steps
    if path.is_file():
        model, width = _file(path, trusted)
    elif target in SYSTEMS:
        whole_number("hidden", hidden, 1)
        whole_number("input", input, 1)
        model, width = create(target, input, hidden, generator=torch.Generator().manual_seed(0)), input
    else:
        raise ValueError(f"{target!r} is no run folder and no file: {unknown('system', target, SYSTEMS)}")
    x = torch.randn(length, SEQUENCES, width, generator=torch.Generator().manual_seed(1))
    like = next(iter(model.state_dict().values()))
    return doctor(model, (x.transpose(0, 1) if getattr(model, "batch_first", False) else x).to(like), steps=length)


def _run(folder: Path, which: str | None) -> Diagnosis:
    from evenflow.training import Run, build, read_config
    from evenflow.training.checkpoint import load_weights
    from evenflow.training.seeds import derive

    if which is not None:
        one_of("weights", which, WEIGHTS)
    run = Run(folder)
    if "system" not in run.config:
        raise ValueError(
            f"run {str(folder)!r} was made by fit with a model of its own: call evenflow.doctor(model, batch) with it"
        )
    task, system, settings = read_config(run.config)
    model = build(task, system, settings.seed)
    load_weights(model, _weights(run, which), folder)
    generator = torch.Generator().manual_seed(derive(settings.seed, "probe"))
    batch = task.held_out().batch(min(settings.batch_size, 2 * SEQUENCES), generator)
    return doctor(model, batch, task.loss)


def _weights(run: Any, which: str | None) -> dict[str, Tensor]:
    if which is not None:
        return run.weights(which)
    from evenflow.training.checkpoint import BEST

    validated = (run.folder / "checkpoint" / BEST).exists()
    return run.weights("best" if validated else "last")


def _file(path: Path, trusted: bool) -> tuple[nn.Module, int]:
    """The recurrent layer that a file holds, and its input's width."""
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            found = load_file(path)
        else:
            found = torch.load(path, map_location="cpu", weights_only=not trusted)
    except pickle.UnpicklingError:
        raise ValueError(
            f"file {str(path)!r} holds more than weights, and reading it could run any code: save state_dict() "
            "instead, or say --trusted if you know where it comes from"
        ) from None
    except Exception as error:
        raise ValueError(
            f"file {str(path)!r} cannot be read as weights of torch.save or safetensors ({type(error).__name__})"
        ) from error
    if isinstance(found, nn.Module):
        from evenflow.probes.recurrence import find_layer

        layer = find_layer(found)
        return layer, layer.input_size
    if not isinstance(found, Mapping):
        raise ValueError(f"file {str(path)!r} must hold a state_dict, got {type(found).__name__}")
    return _from_weights(path, found)


def _from_weights(path: Path, table: Mapping[str, Any]) -> tuple[nn.Module, int]:
    """torch's RNN, GRU or LSTM from the tensors of one, wherever in a model it stood; a plain one is taken as tanh."""
    places = [name.removesuffix("weight_hh_l0") for name in table if name.endswith("weight_hh_l0")]
    if len(places) != 1 or f"{places[0]}weight_ih_l0" not in table:
        raise ValueError(
            f"file {str(path)!r} must hold the weights of one recurrent module of torch (weight_ih_l0, weight_hh_l0); "
            "a layer of evenflow with a map is looked at through its run folder, or evenflow.doctor(model, batch)"
        )
    own = {name.removeprefix(places[0]): value for name, value in table.items() if name.startswith(places[0])}
    rows, units = own["weight_hh_l0"].shape
    kind = KINDS.get(rows // units) if rows % units == 0 else None
    width = own["weight_ih_l0"].shape[-1]
    module: nn.Module | None = None
    if kind is not None:
        layers = sum(f"weight_hh_l{index}" in own for index in range(len(own)))
        both = "weight_hh_l0_reverse" in own
        module = kind(width, units, layers, bias="bias_ih_l0" in own, bidirectional=both)
    if module is None or {name: own[name].shape for name in module.state_dict() if name in own} != {
        name: value.shape for name, value in module.state_dict().items()
    }:
        raise ValueError(f"file {str(path)!r} must hold a whole RNN, GRU or LSTM of torch, got other weights")
    module.load_state_dict({name: own[name] for name in module.state_dict()})
    return module.to(own["weight_hh_l0"].dtype), width
