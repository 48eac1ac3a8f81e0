"""How an object was made, as JSON values: recorded when it is made, so that it can be made again from a file."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from torch import nn

from evenflow.activations import ACTIVATIONS, Activation

CALL, NAME, MAPPING, OBSTACLE = "call", "name", "mapping", "obstacle"
NOT_KEPT = ("generator", "device", "dtype")  # weights are loaded afterwards, in their own dtype
TORCH_LAYERS = (nn.RNN, nn.GRU, nn.LSTM)
TORCH_OPTIONS = ("num_layers", "bias", "dropout", "bidirectional")


class Described:
    """Base of classes whose objects remember the call that made them, in `made_by`.

    A call is ``{"call": "evenflow:RNN", "arguments": [...], "options": {...}}``. Arguments are JSON values, calls,
    ``{"name": "module:name"}`` of a function or class, ``{"mapping": ...}``, or ``{"obstacle": why}`` for a value that
    cannot be written down. `evenflow.models.rebuild` makes the object again.
    """

    @property
    def made_by(self) -> dict[str, Any] | None:
        """The call that made this object; None for an object pickled by an early version."""
        return self.__dict__.get("_made_by")

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__init__" in vars(cls):
            cls.__init__ = _recording(vars(cls)["__init__"])  # type: ignore[method-assign]


def _recording(init: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(init)
    def __init__(self: Any, *arguments: Any, **options: Any) -> None:
        if "_made_by" not in self.__dict__:  # the outermost constructor, not that of a base class
            self.__dict__["_made_by"] = _call(type(self), arguments, options)
        init(self, *arguments, **options)

    return __init__


Described.__init__ = _recording(Described.__init__)  # type: ignore[method-assign]  # for classes without their own


def _call(kind: type, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **_named(kind, CALL),
        "arguments": [describe(value) for value in arguments],
        "options": {name: describe(value) for name, value in options.items() if name not in NOT_KEPT},
    }


def describe(value: Any) -> Any:
    """A value as JSON can hold it, see `Described`."""
    if value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, np.generic):
        return describe(value.item())
    if isinstance(value, list | tuple):
        return [describe(each) for each in value]
    if isinstance(value, Mapping):
        return {MAPPING: {str(key): describe(each) for key, each in value.items()}}
    if isinstance(value, TORCH_LAYERS):
        options = {name: getattr(value, name) for name in TORCH_OPTIONS}
        options |= {"nonlinearity": value.nonlinearity} if isinstance(value, nn.RNN) else {}
        options |= {"proj_size": value.proj_size} if isinstance(value, nn.LSTM) else {}
        return _call(type(value), (value.input_size, value.hidden_size), options)
    if isinstance(value, Activation) and (listed := ACTIVATIONS.get(value.name)) and listed.function is value.function:
        return value.key
    if isinstance(made_by := getattr(value, "made_by", None), dict):
        return made_by
    if not hasattr(value, "__qualname__") or (isinstance(value, Activation) and not _is_found(value)):
        return {OBSTACLE: f"{str(value)[:60]!r} (a {type(value).__name__})"}
    return _named(value, NAME)


def _is_found(value: Any) -> bool:
    """Whether the module of an object has this very object under its name: not one with other constants."""
    return getattr(sys.modules.get(value.__module__), value.__qualname__, None) is value


def _named(value: Any, key: str) -> dict[str, Any]:
    """The import path of a function or class, the shortest that leads to it."""
    module, name = str(value.__module__), str(value.__qualname__)
    last = getattr(value, "__name__", name)  # of a function of torch, whose qualified name is that of a hidden class
    if "<" in name:  # <locals>, <lambda>
        return {OBSTACLE: f"{name} of {module}, which cannot be imported because it is defined inside a function"}
    parts = module.split(".")
    for count in range(1, len(parts) + 1):
        shorter = ".".join(parts[:count])
        if getattr(sys.modules.get(shorter), last, None) is value:
            return {key: f"{shorter}:{last}"}
    return {key: f"{module}:{name}"}
