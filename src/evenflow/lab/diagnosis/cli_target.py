"""The target of ``evenflow doctor``: a run folder, a trained model, a file of weights, or a new layer of a system."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn

from evenflow.checks import one_of, whole_number
from evenflow.lab.data.torch_file import MoreThanWeights, TooLarge, read_torch_file
from evenflow.lab.diagnosis.diagnose import doctor
from evenflow.lab.diagnosis.diagnosis import Diagnosis
from evenflow.lab.diagnosis.run_limits import affordable_sequences, check_sizes
from evenflow.lab.tasks.own_data import OwnData
from evenflow.lab.training import Run, build, read_config
from evenflow.lab.training.checkpoint import BEST
from evenflow.lab.training.run_folder import CONFIG
from evenflow.lab.training.seeds import derive
from evenflow.layers.named import GRU, LSTM
from evenflow.models import Predictor, load, pretrained
from evenflow.models.bundle import BUNDLE
from evenflow.models.model_weights import load_weights
from evenflow.models.pretrained_bundles import bundle_folder
from evenflow.probes.model_layer import find_layer
from evenflow.systems import create, find_system

WEIGHTS = ("best", "last")
SEQUENCES, LENGTH = 4, 200
SHOWN = 6  # names of weights in a message
# Layers that are recognised by their weights, with the rows of weight_hh for each unit. The first match is used:
# without a bias the LSTM of 1997 has the weights of torch's GRU, and evenflow's LSTM those of torch's, which computes
# the same. evenflow's plain and scalar-gated layers cannot be recognised: a file does not contain their activation.
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


def diagnose_target(
    target: str,
    *,
    hidden: int | None = None,
    input: int | None = None,
    length: int | None = None,
    weights: str | None = None,
    trusted: bool = False,
) -> Diagnosis:
    """Diagnose the model that `target` names.

    Args:
        target: a run folder, whose model is diagnosed on a batch that its training did not use; a folder of
            `evenflow.save`; the name of a trained model that ships with evenflow; a file of weights; or the name or
            import path of a system, for a new layer. The last four get random inputs, N(0, 1), and so does a run whose
            data are gone.
        hidden: units of a new layer, 128 by default.
        input: input width of a new layer, 2 by default.
        length: steps of the random inputs, 200 by default.
        weights: the weights of a run, ``"best"`` or ``"last"``; the best ones by default, if the run has any.
        trusted: whether a file may contain a whole pickled module. Reading one runs the code in it, so it is refused
            unless you trust its origin.
    """
    path = bundle_folder(target) if target in pretrained() else Path(target)
    options = {"hidden": hidden, "input": input, "length": length}
    unused = options if path.is_dir() else {"hidden": hidden, "input": input} if path.is_file() else {}
    for name, value in unused.items():
        if value is not None:
            raise ValueError(f"{name} must be left out for {target!r}, which has its own, got {value!r}")
    if path.is_dir():
        return _run(path, weights)
    if weights is not None:
        raise ValueError(f"weights goes with a run folder, got {weights!r} for {target!r}")
    hidden, input, length = (
        default if v is None else v for v, default in ((hidden, 128), (input, 2), (length, LENGTH))
    )
    whole_number("length", length, 2)  # a gradient over time needs two steps
    if path.is_file():
        model, width = _file(path, trusted)
    else:
        model, width = _system(target, input, hidden), input
    x = torch.randn(length, SEQUENCES, width, generator=torch.Generator().manual_seed(1))
    like = next(iter(model.state_dict().values()))
    return doctor(model, (x.transpose(0, 1) if getattr(model, "batch_first", False) else x).to(like), steps=length)


def _system(name: str, input: int, hidden: int) -> nn.Module:
    """A new layer of a named system, or of one of the user's own."""
    whole_number("hidden", hidden, 1)
    whole_number("input", input, 1)
    try:
        find_system(name)
    except ValueError as error:
        raise ValueError(f"{name!r} is no run folder and no file: {error}") from None
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        return create(name, input, hidden)


def _run(folder: Path, which: str | None) -> Diagnosis:
    if which is not None:
        one_of("weights", which, WEIGHTS)
    if not (folder / CONFIG).exists() and (folder / BUNDLE).exists():
        return _random(load(folder))
    run = Run(folder)
    if "system" not in run.config:
        raise ValueError(
            f"run {str(folder)!r} was made by fit with a model of its own: call evenflow.doctor(model, batch) with it"
        )
    task, system, settings = read_config(run.config)
    found = which or ("best" if (run.folder / "checkpoint" / BEST).exists() else "last")
    weights = run.weights(found)
    check_sizes(folder, task, system, weights)
    try:
        model = build(task, system, settings.seed)
    except ValueError as error:
        if not isinstance(task, OwnData) or not (folder / BUNDLE).exists() or which == "last":
            raise
        warnings.warn(f"the inputs are random, since the data of the run are gone: {error}", stacklevel=2)
        return _random(load(folder))
    load_weights(model, weights, folder)
    generator = torch.Generator().manual_seed(derive(settings.seed, "probe"))
    layer = find_layer(model)
    most = min(settings.batch_size, 2 * SEQUENCES)
    count = affordable_sequences(folder, task.held_out(), layer.num_layers * layer.hidden_size, most)
    batch = task.held_out().batch(count, generator)
    return doctor(model, batch, task.loss)


def _random(predictor: Predictor) -> Diagnosis:
    """Diagnose a saved model on random inputs as they are after scaling."""
    schema, steps = predictor.schema, predictor.schema.length or LENGTH
    generator = torch.Generator().manual_seed(1)
    if schema.vocabulary is not None:
        x = torch.randint(schema.vocabulary, (steps, SEQUENCES), generator=generator)
    else:
        x = torch.randn(steps, SEQUENCES, schema.width, generator=generator)
        for place, values, _ in schema.embedded:
            x[..., place] = torch.randint(values, x.shape[:2], generator=generator).float()
        x = x.to(next(predictor.model.parameters()).dtype)
    return doctor(predictor.model, x, steps=steps)


def _file(path: Path, trusted: bool) -> tuple[nn.Module, int]:
    """The recurrent layer in a file, and its input width."""
    try:
        if path.suffix == ".safetensors":
            content = load_file(path)
        else:
            content = torch.load(path, map_location="cpu", weights_only=False) if trusted else read_torch_file(path)
    except MoreThanWeights:
        raise ValueError(
            f"file {str(path)!r} holds more than weights, and reading it could run any code: save state_dict() "
            "instead, or say --trusted if you know where it comes from"
        ) from None
    except TooLarge as error:
        raise ValueError(f"{error}: say --trusted if you know where it comes from") from None
    except Exception as error:
        raise ValueError(
            f"file {str(path)!r} cannot be read as weights of torch.save or safetensors ({type(error).__name__})"
        ) from error
    if isinstance(content, nn.Module):
        layer = find_layer(content)
        return layer, layer.input_size
    if not isinstance(content, Mapping):
        raise ValueError(f"file {str(path)!r} must hold a state_dict, got {type(content).__name__}")
    return _from_weights(path, content)


def _from_weights(path: Path, table: Mapping[str, Any]) -> tuple[nn.Module, int]:
    """The layer in a state_dict of a layer or of a model around it; torch's plain RNN is taken to have tanh."""
    prefixes = [name.removesuffix("weight_hh_l0") for name in table if name.endswith("weight_hh_l0")]
    if len(prefixes) != 1 or f"{prefixes[0]}weight_ih_l0" not in table:
        raise ValueError(
            f"file {str(path)!r} must hold the weights of one recurrent module of torch (weight_ih_l0, weight_hh_l0); "
            f"a layer of evenflow with a map is looked at through {ELSEWHERE}"
        )
    # Other modules of the model are left out; the parameters of the layer's maps are not.
    names = {name: name.removeprefix(prefixes[0]) for name in table if name.startswith(prefixes[0])}
    own = {n: table[name] for name, n in names.items() if "." not in n or n.startswith("parametrizations.")}
    if "weight_hr_l0" in own:
        raise ValueError(
            f"file {str(path)!r} must hold a layer without proj_size, which no probe knows, got weight_hr_l0"
        )
    for rows, make in KINDS:
        module = _build(rows, make, own)
        if module is not None:
            module.load_state_dict(own)
            return module.to(own["weight_hh_l0"].dtype), own["weight_ih_l0"].shape[-1]
    shown = ", ".join(list(own)[:SHOWN]) + (f" and {len(own) - SHOWN} more" if len(own) > SHOWN else "")
    raise ValueError(
        f"file {str(path)!r} must hold a whole RNN, GRU or LSTM of torch, or a GRU or LSTM of evenflow without a map, "
        f"got {shown}, which do not tell what layer they are of: it is looked at through {ELSEWHERE}"
    )


def _build(rows: int, make: Callable[..., nn.Module], own: Mapping[str, Any]) -> nn.Module | None:
    """A layer of this kind for these tensors; None if its weights have other names or shapes."""
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
        # With a generator of its own the layer leaves torch's alone; every weight is overwritten.
        options["generator"] = torch.Generator()
    with torch.device("meta"):
        module = make(*width, *units, **options)
    if shapes != {name: tuple(value.shape) for name, value in module.state_dict().items()}:
        return None
    return module.to_empty(device="cpu")
