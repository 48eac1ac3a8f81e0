"""Decide which calls are captured as CUDA graphs, and drop captures that are no longer valid.

Maps, layers, steps of optimisers and whole updates keep their `CapturedFunction`s in a `GraphCache`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, TypeVar

import torch

BRANCHES = 8  # the largest number of branches of a graph that run side by side

C = TypeVar("C")
R = TypeVar("R")


class GraphCache(Generic[C]):
    """Captures by key: the shapes, settings and stream on which a capture depends.

    Args:
        subject: the words of the warning for what runs without a graph if a capture fails, such as "a layer runs".
        warm_up: the number of calls with one key that run eagerly before the capture.
        limit: the largest number of captures; calls with further keys run eagerly.
        recapture: capture again at the first call after an invalidation, without another warm-up.

    A copy is empty: graphs hold memory of one process on one GPU.
    """

    def __init__(self, subject: str, warm_up: int, limit: int, recapture: bool = False) -> None:
        self.subject, self.warm_up, self.limit, self.recapture = subject, warm_up, limit, recapture
        self._calls: dict[Hashable, int] = {}
        self._captured: dict[Hashable, tuple[Hashable, C | None]] = {}  # with its assumptions; None: runs eagerly
        self._assumptions: Hashable = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_calls": {}, "_captured": {}, "_assumptions": None}

    @property
    def captured(self) -> list[C]:
        return [captured for _, captured in self._captured.values() if captured is not None]

    def __len__(self) -> int:
        return len(self._calls) + len(self._captured)

    def get(
        self,
        key: Hashable,
        device: torch.device,
        capture: Callable[[], C],
        assumptions: Callable[[], Hashable] = lambda: None,
    ) -> C | None:
        """Return what was captured for `key`, or None if the call runs eagerly.

        Args:
            assumptions: returns conditions that may change between calls. Captures made under others are dropped.
        """
        if (current := assumptions()) != self._assumptions:
            self._assumptions = current
            for stale in [k for k, (assumed, _) in self._captured.items() if assumed != current]:
                del self._captured[stale]
                if self.recapture:
                    self._calls[stale] = self.warm_up
        if key in self._captured:
            return self._captured[key][1]
        calls = self._calls.get(key, 0)
        if calls < self.warm_up:
            self._calls[key] = calls + 1
            return None
        captured = self._try(device, capture) if len(self.captured) < self.limit else None
        self._captured[key] = assumptions(), captured  # the capture may have changed them
        self._calls.pop(key, None)
        return captured

    def clear(self, ready: Hashable = None) -> None:
        """Drop all captures and counts of calls; the next call with the key `ready` is captured."""
        self._captured.clear()
        self._calls.clear()
        if ready is not None:
            self._calls[ready] = self.warm_up

    def _try(self, device: torch.device, capture: Callable[[], C]) -> C | None:
        """Return None with a warning if the capture fails."""
        try:
            with torch.cuda.device(device):
                return capture()
        except RuntimeError as error:
            with torch.cuda.device(device):
                _end_failed_capture()
            reason = str(error).split("\n")[0]
            warnings.warn(
                f"{self.subject} without a CUDA graph, kernel by kernel: {reason}", RuntimeWarning, stacklevel=4
            )
            return None


def _end_failed_capture() -> None:
    """Capture a small graph: after a failed capture torch's generator believes that a capture is still under way."""
    torch.cuda.synchronize()
    with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=torch.cuda.Stream(), capture_error_mode="thread_local"):
        torch.zeros(1, device="cuda")


def run_branches(functions: Sequence[Callable[[], R]]) -> list[R]:
    """Call functions that do not touch each other's tensors; in a capture they become branches that run side by side.

    A hundred kernels that each leave most of the GPU idle then take as long as a few.
    """
    if len(functions) < 2 or not torch.cuda.is_available() or not torch.cuda.is_current_stream_capturing():
        return [function() for function in functions]
    main = torch.cuda.current_stream()
    streams = [torch.cuda.Stream() for _ in range(min(BRANCHES, len(functions)))]
    for stream in streams:
        stream.wait_stream(main)
    results = []
    for i, function in enumerate(functions):
        with torch.cuda.stream(streams[i % len(streams)]):
            results.append(function())
    # Only the same branch can reuse the memory of a branch, and no kernel follows in it.
    for stream in streams:
        main.wait_stream(stream)
    return results
