"""Kill every kind of run, resume it, and compare it with one left alone."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from harden.run_kinds import KINDS, RunKind
from harden.same_runs import assert_same_folders
from harden.sittings import killed_before, recorded, sit
from harden.trials import Attack, Trials

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
HALVES = 0.5  # share of the moments at a write that are in its middle
AGAIN = 0.3  # chance that a run is killed once more before it may end
MOST = 30  # sittings of one run


@dataclass(frozen=True)
class Undisturbed:
    """A run left alone: its folder, its duration, and the kinds of its changes of files in order."""

    kind: RunKind
    folder: Path
    seconds: float
    operations: list[str]


class LeftAlone:
    """Runs that nothing disturbs, made when they are first asked for.

    The first of a kind is made in this process, so that forked ones find everything imported and compiled.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._runs: dict[str, Undisturbed] = {}

    def __call__(self, kind: RunKind) -> Undisturbed:
        if kind.name not in self._runs:
            place = self.folder / kind.name.replace(" ", "-").replace(",", "")
            place.mkdir(parents=True)
            kind.sitting(place / "first")
            alone = sit(kind, place / "alone", recorded(place / "operations"))
            assert alone.done
            assert_same_folders(place / "first", place / "alone")
            operations = (place / "operations").read_text().split()
            self._runs[kind.name] = Undisturbed(kind, place / "alone", alone.seconds, operations)
        return self._runs[kind.name]


def kill_at_operations(trials: Trials) -> None:
    """Kill before, or in the middle of, changes of files: every kind in turn, at moments that are drawn."""
    alone = LeftAlone(trials.folder)
    while trials.running:
        for kind in KINDS.values():
            with trials.trial(f"{kind.name}, killed at a change of a file"):
                kill_at_operation(alone(kind), trials.folder / "killed", trials.chance)
            if not trials.running:
                break


def kill_at_operation(run: Undisturbed, folder: Path, chance: random.Random) -> None:
    """Kill a new run at a change of a file, and maybe once more in its second sitting; resume and compare."""
    number = chance.randrange(len(run.operations))
    halves = run.operations[number] == "write" and chance.random() < HALVES
    try:
        kill_once(run, folder, number, halves, chance.random() < AGAIN)
    except AssertionError as error:
        raise AssertionError(f"{'within' if halves else 'before'} change {number}, {error}") from error


def kill_once(run: Undisturbed, folder: Path, number: int, halves: bool, again: bool) -> None:
    """Kill a new run at a moment and, if `again`, after as many changes of its second sitting; resume and compare."""
    shutil.rmtree(folder, ignore_errors=True)
    ended = sit(run.kind, folder, killed_before(number, halves))
    assert ended.code == -signal.SIGKILL, f"the moment was not reached: {ended}"
    if again:
        sit(run.kind, folder, killed_before(number // 2, halves=False))
    last = sit(run.kind, folder)
    assert last.done, last.said
    assert_same_folders(run.folder, folder)


def kill_at_times(trials: Trials) -> None:
    """Send SIGKILL, SIGTERM or SIGINT at random times, until the run ends by itself or has been stopped often."""
    alone = LeftAlone(trials.folder)
    while trials.running:
        for kind in KINDS.values():
            with trials.trial(f"{kind.name}, stopped at random times"):
                trials.tried += kill_at_random(alone(kind), trials.folder / "killed", trials.chance) - 1
            if not trials.running:
                break


def kill_at_random(run: Undisturbed, folder: Path, chance: random.Random) -> int:
    """Stop a run again and again; the number of signals that were sent."""
    shutil.rmtree(folder, ignore_errors=True)
    kills = 0
    while True:
        number, delay = chance.choice(SIGNALS), chance.uniform(0, run.seconds)

        def strike(child: int, number: int = number, delay: float = delay) -> None:
            time.sleep(delay)
            os.kill(child, number)  # it has not been waited for, so its id is still its own

        stop = kills == 0 or (kills < MOST and chance.random() < AGAIN)
        ended = sit(run.kind, folder, meanwhile=strike if stop else None)
        kills += stop
        if ended.done:
            break
        assert kills <= MOST
    assert_same_folders(run.folder, folder)
    return kills


ATTACKS = (
    Attack(
        "kill-operations", "runs of every kind killed at changes of files, resumed, compared", kill_at_operations, 3
    ),
    Attack("kill-times", "runs of every kind stopped by SIGKILL, SIGTERM or SIGINT at random times", kill_at_times, 2),
)
