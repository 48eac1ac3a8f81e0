"""What ``evenflow doctor`` looks at: a run folder, a file of weights, or a fresh layer of a named system."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from evenflow.checks import one_of, unknown, whole_number
from evenflow.lab.diagnosis.examination import doctor
from evenflow.lab.diagnosis.finding import Diagnosis
from evenflow.layers.named import GRU, LSTM
from evenflow.systems import SYSTEMS, create

WEIGHTS = ("best", "last")
SEQUENCES = 4
SHOWN = 6  # names of weights in a message
# Layers that their weights tell, with the rows of weight_hh for each unit. The first that fits is taken: without a bias
# the form of 1997 looks like a GRU of torch, and an LSTM like torch's, which is the same. evenflow's plain and
# scalar-gated layers are not among them: nothing in a file says what their activation is.
KINDS: tuple[tuple[int, Callable[..., nn.Module]], ...] = (
    (1, nn.RNN),
    (3, nn.GRU),
    (4, nn.LSTM),
    (2, GRU),
    (4, LSTM),
    (4, partial(LSTM, form="peephole")),
    (3, partial(LSTM, form="1997")),
)
ELSEWHERE = "its run folder, or evenflow.doctor(model, batch)"


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
    from evenflow.lab.training import Run, build, read_config
    from evenflow.lab.training.checkpoint import load_weights
    from evenflow.lab.training.seeds import derive

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
    from evenflow.lab.training.checkpoint import BEST

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
        from evenflow.probes.model_layer import find_layer

        layer = find_layer(found)
        return layer, layer.input_size
    if not isinstance(found, Mapping):
        raise ValueError(f"file {str(path)!r} must hold a state_dict, got {type(found).__name__}")
    return _from_weights(path, found)


def _from_weights(path: Path, table: Mapping[str, Any]) -> tuple[nn.Module, int]:
    """The layer whose tensors these are, all of them, wherever in a model it stood; a plain one of torch has tanh."""
    places = [name.removesuffix("weight_hh_l0") for name in table if name.endswith("weight_hh_l0")]
    if len(places) != 1 or f"{places[0]}weight_ih_l0" not in table:
        raise ValueError(
            f"file {str(path)!r} must hold the weights of one recurrent module of torch (weight_ih_l0, weight_hh_l0); "
            f"a layer of evenflow with a map is looked at through {ELSEWHERE}"
        )
    # What stands beside the layer in a model is none of its own; what a map makes a matrix from is.
    names = {name: name.removeprefix(places[0]) for name in table if name.startswith(places[0])}
    own = {n: table[name] for name, n in names.items() if "." not in n or n.startswith("parametrizations.")}
    if "weight_hr_l0" in own:
        raise ValueError(
            f"file {str(path)!r} must hold a layer without proj_size, which no probe knows, got weight_hr_l0"
        )
    for rows, make in KINDS:
        module = _made(rows, make, own)
        if module is not None:
            module.load_state_dict(own)
            return module.to(own["weight_hh_l0"].dtype), own["weight_ih_l0"].shape[-1]
    shown = ", ".join(list(own)[:SHOWN]) + (f" and {len(own) - SHOWN} more" if len(own) > SHOWN else "")
    raise ValueError(
        f"file {str(path)!r} must hold a whole RNN, GRU or LSTM of torch, or a GRU or LSTM of evenflow without a map, "
        f"got {shown}, which do not tell what layer they are of: it is looked at through {ELSEWHERE}"
    )


def _made(rows: int, make: Callable[..., nn.Module], own: Mapping[str, Any]) -> nn.Module | None:
    """A layer of this kind for these tensors; None where its own have other names or shapes."""
    shapes = {name: tuple(getattr(value, "shape", ())) for name, value in own.items()}
    width, units = shapes["weight_ih_l0"][-1:], shapes["weight_hh_l0"][-1:]
    if not width or not units or 0 in width + units or shapes["weight_hh_l0"] != (rows * sum(units), *units):
        return None
    options: dict[str, Any] = {
        "num_layers": sum(f"weight_hh_l{index}" in own for index in range(len(own))),
        "bias": not {"bias_ih_l0", "bias_l0"}.isdisjoint(own),
        "bidirectional": "weight_hh_l0_reverse" in own,
    }
    if make not in (nn.RNN, nn.GRU, nn.LSTM):
        options["initial_state"] = "learned" if "h0_l0" in own else "zero"
        options["generator"] = torch.Generator()  # torch's global one is left alone; every weight is written over
    with torch.device("meta"):
        module = make(*width, *units, **options)
    if shapes != {name: tuple(value.shape) for name, value in module.state_dict().items()}:
        return None
    return module.to_empty(device="cpu")
