"""A launch, the interface of the places where launches run, and the place that is this process."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

from evenflow.lab.training.launch import check_device, hardware, uses_gpu
from evenflow.lab.training.stopping import check_stop

Work = Callable[[Sequence[Path], bool], object]


@dataclass(frozen=True)
class Launch:
    """One or several runs that train in one process.

    Args:
        work: called as ``work(folders, progress)``: trains the runs from where their folders stand, so that a second
            call after an interruption continues. The folders hold the outcome. To run elsewhere it must be a function
            of a module, or a `functools.partial` of one.
        folders: the run folders.
        title: what the launch trains, in words.
        updates: the updates of all its runs together, for progress bars.
    """

    work: Work
    folders: tuple[Path, ...]
    title: str
    updates: int


Started = Callable[[Launch], object]
Ended = Callable[[Launch], Iterable[Launch]]


def nothing(launch: Launch) -> tuple[()]:
    """The default of the callbacks of `LaunchPlace.run`: does nothing, and no launch follows."""
    return ()


class LaunchPlace(Protocol):
    """Where launches run.

    Attributes:
        note: what is running at present, for a progress bar.
    """

    note: str

    def run(
        self, launches: Sequence[Launch], *, started: Started = nothing, ended: Ended = nothing, progress: bool = True
    ) -> None:
        """Run launches, and those that follow from them, to their end.

        Args:
            launches: in the order in which they start.
            started: called before a launch starts, where the place can tell.
            ended: called after each launch; returns launches that follow from it.
            progress: show a progress bar on a terminal.

        An error of a launch stops the others, which save, and is raised. So are Ctrl-C and the end of a time limit.
        """

    def populations(self, device: str) -> bool:
        """Whether runs with this setting of `device` should train as populations; on a CPU that is not faster."""

    def check_device(self, device: str) -> None:
        """Raise a ValueError if the place does not have the device."""

    def hardware(self, device: str) -> str:
        """Name of the hardware of runs with this setting of `device`."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...


class Here:
    """Runs launches in this process, one after the other.

    >>> Here().run([Launch(work, (Path("runs/a"),), "a", 1000)])
    """

    def __init__(self) -> None:
        self.note = ""

    def run(
        self, launches: Sequence[Launch], *, started: Started = nothing, ended: Ended = nothing, progress: bool = True
    ) -> None:
        """See `LaunchPlace.run`."""
        waiting = deque(launches)
        while waiting:
            check_stop()
            launch = waiting.popleft()
            self.note = launch.title
            started(launch)
            launch.work(launch.folders, progress)
            waiting.extendleft(reversed(list(ended(launch))))

    def populations(self, device: str) -> bool:
        return uses_gpu(device)

    def check_device(self, device: str) -> None:
        check_device(device)

    def hardware(self, device: str) -> str:
        return hardware(device)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass
