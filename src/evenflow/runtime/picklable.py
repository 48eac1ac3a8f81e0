"""`Picklable`: modules that can be pickled with maps on their weights, which torch's parametrized modules cannot."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize


class Picklable(nn.Module):
    """Base class of modules that can be pickled and copied with the maps on their weights."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        if not parametrize.is_parametrized(self):
            return super().__reduce_ex__(protocol)
        contents = self.__dict__ | {"_modules": dict(self._modules), "_parameters": dict(self._parameters)}
        maps = contents["_modules"].pop("parametrizations")
        return _unpickle, (parametrize.type_before_parametrizations(self), contents, dict(maps.items()))


def _unpickle(kind: type[nn.Module], contents: dict[str, Any], maps: dict[str, nn.Module]) -> nn.Module:
    """Rebuild a module. A placeholder creates the property of each mapped weight, then the pickled map replaces it."""
    module = kind.__new__(kind)
    module.__dict__.update(contents)
    for name, pickled in maps.items():
        module.register_parameter(name, nn.Parameter(torch.empty(0)))
        parametrize.register_parametrization(module, name, nn.Identity(), unsafe=True)
        module.parametrizations[name] = pickled  # type: ignore[index,operator,assignment]
    return module
