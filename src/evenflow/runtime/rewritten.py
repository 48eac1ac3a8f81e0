"""What tools that rewrite models find in a layer: `torch.fx` one operation, quantisation nothing to replace."""

from __future__ import annotations

import warnings
from typing import Any

from torch import nn
from torch.fx import Proxy
from torch.nn.utils import parametrize


def traced_call(layer: nn.Module, input: Proxy, *arguments: Any) -> Proxy:
    """Return the call of a layer as one node of the graph that `torch.fx` is recording.

    torch does so for its own layers only; the forward pass of any other is recorded operation by operation.

    Args:
        layer: a part of the traced model.
        input: what stands for the input while the graph is recorded.
        arguments: the others, in the order of the layer's forward.
    """
    path = input.tracer.path_of_module(layer)  # type: ignore[attr-defined]
    if not path:
        raise ValueError(
            f"torch.fx keeps a layer as one operation of a model: trace a model that holds this "
            f"{parametrize.type_before_parametrizations(layer).__name__}, such as torch.nn.Sequential(layer)"
        )
    return input.tracer.create_proxy("call_module", path, (input, *arguments), {})


class NotQuantized(nn.Module):
    """Base class of layers that say that quantisation leaves them as they are.

    `torch.ao.quantization` looks up the type of each module in a list of torch's own and passes over others silently.
    Before, it writes an attribute `qconfig` into every module.
    """

    @property
    def qconfig(self) -> Any:
        """The setting that torch's quantisation has written into this module."""
        if "_qconfig" not in self.__dict__:
            raise AttributeError("qconfig")
        return self._qconfig

    @qconfig.setter
    def qconfig(self, value: Any) -> None:
        self._qconfig = value
        kind = parametrize.type_before_parametrizations(self).__name__
        warnings.warn(
            f"torch.ao.quantization leaves evenflow's {kind} in floating point: it knows layers of torch alone, to "
            f"which evenflow.to_torch converts a GRU or LSTM",
            UserWarning,
            stacklevel=2,
        )

    @qconfig.deleter
    def qconfig(self) -> None:
        del self._qconfig
