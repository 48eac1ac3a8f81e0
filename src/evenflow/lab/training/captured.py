"""An update on a GPU as one launch: recorded once its shapes have come up a few times, and replayed from then on.

An update is hundreds of small kernels, and handing each to the GPU from Python takes longer than running it. A CUDA
graph hands over all of them at once. The recording runs the same code, so there is no second update to keep in step.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as tree

from evenflow.maps import Map
from evenflow.runtime.recorded import Moves, attempt, familiar, take, uncollected, watched

CALLS_BEFORE = 5  # so that libraries have their workspaces and optimisers their state, and a short run is not recorded
BRANCHES = 8  # of a recording that run beside each other
MOST = 8  # recordings of one update; shapes and settings beyond these run kernel by kernel

Work = Callable[..., Any]
R = TypeVar("R")


class Captured:
    """`work`, a function of nested tensors to nested tensors that changes weights in place.

    Args:
        work: called with the arguments of this; must not look at a number.
        maps: those it runs, which a recording is made for as far as they reach.

    What it returns is written over by the next call with the same shapes.
    """

    def __init__(self, work: Work, maps: Sequence[Map] = ()) -> None:
        self._work, self._maps = work, maps
        self._known: dict[Hashable, Any] = {}
        self._recorded_for: Hashable = None  # by the maps; where it changes, what was recorded is of no use any more

    def __call__(self, key: Hashable, *given: Any) -> Any:
        """The work done once. `key` is what it depends on besides `given`, which is tensors in tuples and lists."""
        if any(map.outgrown() for map in self._maps):  # done plainly, each of them prepares for more
            self._known.clear()
            return self._work(key, *given)
        recorded_for = tuple(map.recorded_for for map in self._maps)
        if recorded_for != self._recorded_for:
            self._known.clear()
            self._recorded_for = recorded_for
        leaves, form = tree.tree_flatten(given)
        full = (key, form, *((v.shape, v.dtype) for v in leaves))
        found = familiar(self._known, full, CALLS_BEFORE, MOST, lambda: _record(self._work, key, given))
        return self._work(key, *given) if found is None else found.replay(leaves)


class _Recording:
    def __init__(self, work: Work, key: Hashable, given: tuple[Any, ...]) -> None:
        self._graph = torch.cuda.CUDAGraph()
        own = tree.tree_map(torch.clone, given)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with uncollected(), watched(), torch.cuda.graph(self._graph, stream=stream, capture_error_mode="thread_local"):
            self._result = work(key, *own)
        torch.cuda.current_stream().wait_stream(stream)
        self._leaves: list[Tensor] = tree.tree_leaves(own)

    def replay(self, leaves: list[Tensor]) -> Any:
        take(self._leaves, leaves)
        self._graph.replay()
        Moves.count += 1
        return self._result


def _record(work: Work, key: Hashable, given: tuple[Any, ...]) -> _Recording | None:
    return attempt(lambda: _Recording(work, key, given), torch.device("cuda"), "updates run")


def side_by_side(works: Sequence[Callable[[], R]]) -> list[R]:
    """Do pieces of work that do not touch each other's numbers; in a recording they become branches of it.

    A hundred kernels that each leave the GPU idle then take as long as a few.
    """
    if len(works) < 2 or not torch.cuda.is_available() or not torch.cuda.is_current_stream_capturing():
        return [work() for work in works]
    main = torch.cuda.current_stream()
    streams = [torch.cuda.Stream() for _ in range(min(BRANCHES, len(works)))]
    for stream in streams:
        stream.wait_stream(main)
    found = []
    for i, work in enumerate(works):
        with torch.cuda.stream(streams[i % len(streams)]):
            found.append(work())
    # What a branch has allocated is free again only for that branch, and nothing follows in it.
    for stream in streams:
        main.wait_stream(stream)
    return found
