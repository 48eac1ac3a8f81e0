"""Replay whole updates of the weights on a GPU from captured CUDA graphs: one launch instead of hundreds."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import increment_version
from torch.utils import _pytree as tree

from evenflow.maps import Map
from evenflow.runtime.captured_function import CapturedFunction
from evenflow.runtime.cuda_graphs import GraphCache

WARM_UP = 5  # calls, in which libraries allocate workspaces and optimisers their state; a short run is not captured
LIMIT = 8  # captures of one update


class CapturedUpdate:
    """A function of nested tensors to nested tensors that changes weights in place.

    Args:
        work: called with the arguments of `__call__`; must not read a number on the host.
        model: whose weights it changes, and whose maps it computes: a capture is valid for a range of their numbers.
        generators: those it draws from, besides torch's global one.

    The next call with the same shapes overwrites the results.
    """

    def __init__(self, work: Callable[..., Any], model: nn.Module, generators: Sequence[torch.Generator] = ()) -> None:
        self._work, self._weights, self._generators = work, list(model.parameters()), generators
        self._maps = [part for part in model.modules() if isinstance(part, Map)]
        self.graphs: GraphCache[CapturedFunction] = GraphCache("updates run", WARM_UP, LIMIT)

    def __call__(self, key: Hashable, *arguments: Any) -> Any:
        """Do the work once. `key` is what it depends on besides the arguments: tensors in tuples and lists."""
        if any(map.needs_recapture() for map in self._maps):
            self.graphs.clear()  # the plain call prepares each map for a larger range
            return self._work(key, *arguments)
        leaves, form = tree.tree_flatten(arguments)

        def capture() -> CapturedFunction:
            return CapturedFunction(
                lambda *own: self._work(key, *tree.tree_unflatten(own, form)),
                leaves,
                warm_up=0,
                generators=self._generators,
            )

        captured = self.graphs.get(
            (key, form, *((v.shape, v.dtype) for v in leaves)),
            torch.device("cuda"),
            capture,
            lambda: tuple(map.captured_range for map in self._maps),
        )
        if captured is None:
            return self._work(key, *arguments)
        result = captured.replay(leaves)
        increment_version(self._weights)  # a replay changes tensors without their version counters
        return result
