"""Damage the files of a run: it must resume to the same bits, say what is lost, or be refused in one line."""

from __future__ import annotations

import random
import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evenflow.lab.cli import main
from evenflow.lab.training import Run, checkpoint
from evenflow.lab.training.run_folder import ANSWERS, METRICS, PROBES
from harden.kills import LeftAlone, Undisturbed
from harden.mutants import changed_bytes, changed_value, mutant
from harden.run_kinds import KINDS, RunKind
from harden.same_runs import assert_same_folders, assert_same_run
from harden.sittings import Sitting, killed_before, sit
from harden.trials import Attack, Trials

RUNS = ("dropout", "patience", "bases sgd", "seeds, probes", "sweep", "compare")  # the kinds that are damaged
MOMENTS = 4  # interrupted states of each kind, and the finished one
# Records for people, which nothing is computed from: a changed digit in the text, or the file of another run, is not
# noticed.
UNCHECKED = (METRICS, PROBES, ANSWERS)


@dataclass(frozen=True)
class Stopped:
    """A run that was killed once, or has ended, with the same run left alone."""

    alone: Undisturbed
    folder: Path


def damage_runs(trials: Trials) -> None:
    """Damage one file, or put another in its place, and go on with the run or show it."""
    warnings.simplefilter("ignore")  # of the comparison; what runs say is in their processes
    alone, stopped = LeftAlone(trials.folder), dict[str, list[Stopped]]()
    kinds = [KINDS[name] for name in RUNS if name in KINDS]
    while trials.running:
        for kind in kinds:
            with trials.trial(f"{kind.name}, stopped at a moment"):
                if kind.name not in stopped:
                    stopped[kind.name] = _stopped(alone(kind), trials)
                trials.tried -= 1
            for _ in range(3):
                damage(trials, trials.chance.choice(stopped[kind.name]))


def damage(trials: Trials, run: Stopped) -> None:
    """One trial."""
    folder, chance = trials.folder / "damaged", trials.chance
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(run.folder, folder)
    path = chance.choice([each for each in sorted(folder.rglob("*")) if each.is_file() and each.suffix != ".log"])
    how = chance.choice(sorted(DAMAGES))
    DAMAGES[how](chance, path, folder)
    command = chance.choice(("resume", "resume", "resume", "report", "doctor"))
    where = f"{run.alone.kind.name}, {run.folder.name}, {command}, {path.relative_to(folder)} {how}"
    content = path.read_bytes() if path.is_file() else b""
    failed = len(trials.failures)
    with trials.trial(where):
        ended = go_on(run, folder, command)
        if ended and how != HARM:
            said = difference(run, folder, path)
            named = path.name in ended.said or path.parent.name in ended.said  # the file, or its checkpoint
            assert not said or named, f"{said}; it said {ended.said[-300:]!r}"
    if len(trials.failures) > failed:
        trials.keep(f"{how.replace(' ', '-')}-{path.name}", content)


def go_on(run: Stopped, folder: Path, command: str) -> Sitting | None:
    """Resume the damaged run, or show it; a trace is an AssertionError, and None means that it was refused."""
    kind = run.alone.kind
    of_command = any((run.alone.folder / name).exists() for name in ("config.toml", "seeds.toml"))
    if of_command:
        ended = sit(RunKind(kind.name, lambda place: _command(command, place)), folder, prepare=_shell_warnings)
    else:
        ended = sit(kind, folder, prepare=_plain_warnings)
    assert "Traceback" not in ended.said, ended.said[-1500:]
    assert ended.said.strip() or not ended.refused, "refused without a word"
    assert ended.done or ended.refused, ended.said
    return ended if ended.done and (command == "resume" or not of_command) else None


def difference(run: Stopped, folder: Path, path: Path) -> str:
    """How a resumed run differs from the one left alone; "" if it does not, but for what nobody could notice."""
    inside = path.relative_to(folder).parts
    name = next((part for part in (inside[0], ".") if (run.folder / part / "config.toml").exists()), "")
    try:
        if name and path.name in UNCHECKED:
            assert_same_run(run.alone.folder / name, folder / name, but=path.name)
        elif name and Run(run.folder / name).ended:  # it is read and not run again, so its files stay as they are
            assert_same_folders(run.alone.folder, folder, but=name)
        else:
            assert_same_folders(run.alone.folder, folder)
    except (AssertionError, ValueError) as error:
        return str(error)
    return ""


def _command(command: str, folder: Path) -> None:
    """A command as the shell runs it, but that exit code 2 is a ValueError."""
    try:
        main([command, str(folder), *([] if command != "report" else ["--out", str(folder.with_suffix(".html"))])])
    except SystemExit as left:
        if left.code == 2:
            raise ValueError("") from None  # the command has said why
        if left.code:
            raise


def _shell_warnings() -> None:
    """Let a command show warnings as in a shell, although this process ignores those of the comparison."""
    warnings.simplefilter("default")


def _plain_warnings() -> None:
    """Let every warning be a line."""
    warnings.simplefilter("always")

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        print(f"warning: {message}", flush=True)

    warnings.showwarning = show


def _stopped(alone: Undisturbed, trials: Trials) -> list[Stopped]:
    """The run in states between its first checkpoint and its end."""
    states = [Stopped(alone, alone.folder)]
    total = len(alone.operations)
    for number in range(MOMENTS):
        folder = alone.folder.parent / f"stopped-{number}"
        moment = trials.chance.randrange(total // 3, total)
        sit(alone.kind, folder, killed_before(moment))
        states.append(Stopped(alone, folder))
    return states


def _empty(chance: random.Random, path: Path, folder: Path) -> None:
    path.write_bytes(b"")


def _truncate(chance: random.Random, path: Path, folder: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: chance.randrange(max(len(content), 1))])


def _flip(chance: random.Random, path: Path, folder: Path) -> None:
    content = bytearray(path.read_bytes())
    if content:
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    path.write_bytes(content)


def _mutate(chance: random.Random, path: Path, folder: Path) -> None:
    content = path.read_bytes()
    try:
        path.write_bytes(mutant(chance, path, content))
    except (ValueError, KeyError, IndexError):  # no file of its format: a lock, an empty log
        path.write_bytes(changed_bytes(chance, content))


def _zeros(chance: random.Random, path: Path, folder: Path) -> None:
    """As file systems leave a file whose size was written before its content."""
    path.write_bytes(bytes(path.stat().st_size))


def _remove(chance: random.Random, path: Path, folder: Path) -> None:
    path.unlink()


def _swap(chance: random.Random, path: Path, folder: Path) -> None:
    """Another file of the run in its place, of the same name if there is one."""
    others = [each for each in sorted(folder.rglob("*")) if each.is_file() and each != path]
    alike = [each for each in others if each.name == path.name]
    path.write_bytes(chance.choice(alike or others).read_bytes())


def _rehash(chance: random.Random, path: Path, folder: Path) -> None:
    """A checkpoint with a changed state and right checksums, as somebody who means harm would write."""
    places = sorted(place for place in folder.rglob("checkpoint") if place.is_dir() and checkpoint.versions(place))
    if not places:
        return
    place = chance.choice(places)
    name = checkpoint.versions(place)[0]
    try:
        saved = checkpoint.load(place, name)
        shutil.rmtree(place / name)
        checkpoint.save(place, checkpoint.Checkpoint(saved.step, saved.weights, changed_value(chance, saved.state)))
    except Exception:  # a value that no checkpoint can hold
        return


HARM = "beside a state changed with right checksums"
DAMAGES: dict[str, Callable[[random.Random, Path, Path], None]] = {
    "emptied": _empty,
    "truncated": _truncate,
    "with a flipped bit": _flip,
    "mutated": _mutate,
    "full of zeros": _zeros,
    "removed": _remove,
    "swapped": _swap,
    HARM: _rehash,
}

ATTACKS = (
    Attack("damage", "files of runs damaged, swapped or removed, then resumed, compared, shown", damage_runs, 3),
)
