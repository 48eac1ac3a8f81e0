"""Pickling of modules with maps on their weights, which torch refuses for any module with parametrizations."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize


class Pickled(nn.Module):
    """A module that pickles and copies whole, maps and all; to be inherited from."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        if not parametrize.is_parametrized(self):
            return super().__reduce_ex__(protocol)
        contents = self.__dict__ | {"_modules": dict(self._modules), "_parameters": dict(self._parameters)}
        mapped = contents["_modules"].pop("parametrizations")
        return _unpickled, (parametrize.type_before_parametrizations(self), contents, dict(mapped.items()))


def _unpickled(kind: type[nn.Module], contents: dict[str, Any], mapped: dict[str, nn.Module]) -> nn.Module:
    """The module again: a placeholder makes the property of each mapped weight, then gives way to the saved map."""
    module = kind.__new__(kind)
    module.__dict__.update(contents)
    for name, saved in mapped.items():
        module.register_parameter(name, nn.Parameter(torch.empty(0)))
        parametrize.register_parametrization(module, name, nn.Identity(), unsafe=True)
        module.parametrizations[name] = saved  # type: ignore[index,operator,assignment]
    return module
