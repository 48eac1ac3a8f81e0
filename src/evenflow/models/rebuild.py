"""Make a model again from the description of the call that made it; see `runtime.constructor_call.Described`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from evenflow.runtime.constructor_call import CALL, MAPPING, NAME, OBSTACLE, TORCH_LAYERS, Described, describe

LARGEST_SIZE = 1 << 20  # of a layer whose weights are not at hand yet
DEEPEST = 20  # calls and lists inside each other
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
    return made


def obstacle(description: Any) -> str | None:
    """What keeps a described model from being made again, in words; None if nothing does."""
    if isinstance(description, Mapping):
        if OBSTACLE in description:
            return str(description[OBSTACLE])
        description = list(description.values())
    if isinstance(description, list):
        return next((found for each in description if (found := obstacle(each)) is not None), None)
    return None


def difference(model: nn.Module, description: Mapping[str, Any]) -> str | None:
    """Why the model made again would not be this one, in words; None if it would."""
    shapes = {name: weight.shape for name, weight in model.state_dict().items()}
    largest = max([len(shapes), *(size for shape in shapes.values() for size in shape)])
    try:
        again = rebuild(description, largest)
    except ValueError as error:
        return f"what cannot be made from its description ({error})"
    same = shapes == {name: weight.shape for name, weight in again.state_dict().items()}
    return None if same else "weights that were added or replaced later, as `attach` and `detach` do"


def layer_to_json(layer: nn.Module) -> dict[str, Any]:
    """The description of a layer, with its dtype; with an obstacle in its place if it cannot be made again."""
    description: dict[str, Any] = describe(layer)
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
        found: Any = sys.modules[module] if module == "__main__" else importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        if module == "__main__":
            raise ValueError(
                f"the model needs {name!r}, which was defined in the script that trained it: define it before loading, "
                "or put it in a module of its own and save the model again"
            ) from error
        raise ValueError(
            f"the model needs {name!r} of the module {module!r}, which cannot be imported here ({error})"
        ) from error
    return found
