"""Make a model again from the description of the call that made it; see `runtime.constructor_call.Described`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from evenflow.maps.attach import attach_fitted, detach
from evenflow.maps.map import Map
from evenflow.runtime.constructor_call import CALL, MAPPING, NAME, OBSTACLE, TORCH_LAYERS, Described, describe
from evenflow.runtime.import_path import find

LARGEST_SIZE = 1 << 20  # of a layer whose weights are not at hand yet
DEEPEST = 20  # calls and lists inside each other
MAPS = "weight maps"
SIZES = (
    "input_size", "hidden_size", "output_size", "num_layers", "proj_size", "context_size", "vocabulary",
    "readout_units", "width", "depth",
)  # fmt: skip


def rebuild(description: Mapping[str, Any], most: int) -> nn.Module:
    """The model that a description is of, with new weights.

    Args:
        description: what `Described.made_by` holds.
        most: the largest size that can be right, so that a damaged description does not ask for all memory.

    Raises:
        ValueError: the description is damaged, or names what cannot be imported here.
    """
    with torch.random.fork_rng([]), torch.device("cpu"):  # the new weights are replaced
        made = _made(description, most, 0)
        if not isinstance(made, nn.Module):
            raise ValueError(f"the model must be described by a call, got {str(description)[:60]}")
        if MAPS in description:
            _restore_maps(made, description[MAPS], most)
    return made


def describe_model(model: nn.Module) -> dict[str, Any] | None:
    """The call that made a model, and the maps of its weights; None if it does not know the call."""
    if (made_by := describe(model)).get(CALL) is None:
        return None
    return made_by | {MAPS: _describe_maps(model)}


def obstacle(description: Any) -> str | None:
    """What keeps a described model from being made again, in words; None if nothing does."""
    if isinstance(description, Mapping):
        if OBSTACLE in description:
            return str(description[OBSTACLE])
        # A map that the constructor makes needs no description; `_restore_maps` says which others need one.
        description = [value for key, value in description.items() if key != MAPS]
    if isinstance(description, list):
        return next((problem for each in description if (problem := obstacle(each)) is not None), None)
    return None


def difference(model: nn.Module, description: Mapping[str, Any]) -> str | None:
    """Why the model made again would not be this one, in words; None if it would."""
    shapes = {name: weight.shape for name, weight in model.state_dict().items()}
    largest = max([len(shapes), *(size for shape in shapes.values() for size in shape)])
    try:
        again = rebuild(description, largest)
    except ValueError as error:
        return f"a part that cannot be made again ({error})"
    same = shapes == {name: weight.shape for name, weight in again.state_dict().items()}
    return None if same else "weights that were added or replaced later"


def layer_to_json(layer: nn.Module) -> dict[str, Any]:
    """The description of a layer, with its dtype; with an obstacle in its place if it cannot be made again."""
    description = describe_model(layer) or describe(layer)
    if (reason := obstacle(description) or difference(layer, description)) is not None:
        return {OBSTACLE: reason}
    types = [weight.dtype for weight in layer.state_dict().values() if weight.is_floating_point()]
    return description | {"dtype": str(types[0]).removeprefix("torch.")}


def layer_from_json(description: Mapping[str, Any]) -> nn.Module:
    """A layer with new weights from what `layer_to_json` returned."""
    if (reason := obstacle(description)) is not None:
        raise ValueError(f"layer must be given: the saved one cannot be made again, it was made with {reason}")
    dtype = getattr(torch, str(description.get("dtype", "float32")), None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise ValueError(f"dtype of the layer must be a floating-point type of torch, got {description['dtype']!r}")
    return rebuild(description, LARGEST_SIZE).to(dtype)


def _describe_maps(model: nn.Module) -> dict[str, Any]:
    """The call that made the map of each mapped weight, such as ``layer.weight_hh_l0``; or an obstacle in its place."""
    calls: dict[str, Any] = {}
    for path, module in model.named_modules():
        if not parametrize.is_parametrized(module):
            continue
        for name, chain in module.parametrizations.items():
            kinds = " and ".join(type(each).__name__ for each in chain)
            single = len(chain) == 1 and isinstance(chain[0], Map)
            calls[f"{path}.{name}"] = describe(chain[0]) if single else {OBSTACLE: kinds}
    return calls


def _restore_maps(model: nn.Module, maps: Any, most: int) -> None:
    """Give the weights of a model that was made again the maps that they had when it was described."""
    if not isinstance(maps, Mapping):
        raise ValueError(f"the maps of the weights must be a table, got {str(maps)[:60]!r}")
    present = _describe_maps(model)
    for place in [*maps, *(each for each in present if each not in maps)]:
        if place in maps and present.get(place) == maps[place]:
            continue
        path, _, name = place.rpartition(".")
        if place not in maps:
            detach(model.get_submodule(path), name)
            continue
        if (reason := obstacle(maps[place])) is not None:
            raise ValueError(
                f"{place.removeprefix('.')} is parametrized by {reason}, and only maps of `attach` are saved; "
                "torch.nn.utils.parametrize.remove_parametrizations leaves a plain weight"
            )
        made = _made(maps[place], most, 0)
        try:
            module = model.get_submodule(path)
            weight = getattr(module, name)
            size = weight.shape[0], weight[0].numel()
        except (AttributeError, IndexError, TypeError):
            raise ValueError(f"the model has no weight {place[:60]!r} for a map") from None
        if not isinstance(made, Map) or (made.rows, made.columns) != size:
            raise ValueError(f"the map of {place} does not fit this weight")
        if place in present:
            detach(module, name)
        attach_fitted(module, name, made, made.start())


def _made(value: Any, most: int, depth: int) -> Any:
    if depth > DEEPEST:
        raise ValueError("the description of the model is nested too deeply")
    if isinstance(value, list):
        return [_made(each, most, depth + 1) for each in value]
    if not isinstance(value, Mapping):
        return value
    if isinstance(value.get(MAPPING), Mapping):
        return {name: _made(each, most, depth + 1) for name, each in value[MAPPING].items()}
    if NAME in value:
        return _imported(value[NAME])
    if CALL not in value:
        raise ValueError(f"the description of the model holds {str(dict(value))[:60]}, which is no call")
    kind, arguments, options = _imported(value[CALL]), value.get("arguments"), value.get("options")
    if not isinstance(kind, type) or not issubclass(kind, (Described, *TORCH_LAYERS)):
        raise ValueError(f"the description of the model calls {value[CALL]}, which is no model, layer or cell")
    if not isinstance(arguments, list) or not isinstance(options, Mapping):
        raise ValueError(f"the description of {value[CALL]} must have a list of arguments and a table of options")
    numbers = {f"argument {place}": each for place, each in enumerate(arguments, 1)}
    tables = options.get("column_embeddings") or ()
    sizes = [each for table in tables if isinstance(table, list) for each in table]
    numbers |= {f"column_embeddings {place}": each for place, each in enumerate(sizes)}
    for name, size in {**numbers, **{name: options[name] for name in SIZES if name in options}}.items():
        if isinstance(size, int) and size > most:
            raise ValueError(f"{name} of {value[CALL]} is {size}, and no weight is larger than {most}")
    made_arguments = [_made(each, most, depth + 1) for each in arguments]
    made_options = {str(name): _made(each, most, depth + 1) for name, each in options.items()}
    try:
        return kind(*made_arguments, **made_options)
    except (TypeError, ValueError, AttributeError, RuntimeError, ArithmeticError, LookupError) as error:
        raise ValueError(f"{value[CALL]} cannot be made as described: {str(error).splitlines()[0]}") from error


def _imported(path: Any) -> Any:
    """The object at ``module:name``."""
    module, colon, name = str(path).partition(":")
    if not colon or not name or not module:
        raise ValueError(f"{str(path)[:60]!r} is no import path of the form module:name")
    try:
        return find(str(path))
    except (ImportError, AttributeError, ValueError) as error:
        if module == "__main__":
            raise ValueError(
                f"the model needs {name!r}, which was defined in the script that trained it: define it before loading, "
                "or put it in a module of its own and save the model again"
            ) from error
        raise ValueError(
            f"the model needs {name!r} of the module {module!r}, which cannot be imported here ({error})"
        ) from error
