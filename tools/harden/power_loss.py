"""Simulated power failures: of what a run wrote, the disk has what was flushed, and of the rest whatever it likes.

The changes of files of a run are recorded. A failure after any of them leaves a state of the disk in which

- the content of a file is what was written before its last fsync, and a beginning of what came after;
- files and folders are there, named and removed as at some moment after the last fsync of a folder, all in the order of
  the changes, as file systems with a journal keep it. The content of a file may be older than its name.

This is the model of Pillai et al. 2014 ("All file systems are not created equal") without reordered changes of folders.
"""

from __future__ import annotations

import base64
import json
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from harden.file_operations import Operation, watch_files
from harden.kills import LeftAlone, Undisturbed
from harden.run_kinds import KINDS
from harden.same_runs import assert_same_folders
from harden.sittings import sit
from harden.trials import Attack, Trials

# The kinds that come first: together they make every change of files that there is.
FIRST = ("dropout", "patience", "bases sgd", "seeds, dropout", "seeds, probes", "sweep", "compare", "reproduce")
TURN = 5  # failures of one kind before the next has its turn
NAMES = ("create", "rename", "unlink", "mkdir", "rmdir")  # changes of folders; the others are of contents


@dataclass
class Recorded:
    """A run left alone, its changes of files, and the failures that are still to be tried: a moment and a part."""

    alone: Undisturbed
    operations: list[Operation]
    failures: list[tuple[int, float | None]]


def lose_power(trials: Trials) -> None:
    """A failure before and after every fsync, with nothing, everything and some of the rest on the disk."""
    alone, recorded, failures = LeftAlone(trials.folder), dict[str, Recorded](), 0
    rest = sorted(set(KINDS) - set(FIRST))
    trials.chance.shuffle(rest)
    waiting = [*FIRST, *rest]
    while waiting and trials.running:
        name = waiting.pop(0)
        if name not in recorded:
            with trials.trial(f"{name}, recorded"):
                recorded[name] = record(alone(KINDS[name]), trials)
                failures += len(recorded[name].failures)
            if name not in recorded:
                continue
        run = recorded[name]
        for _ in range(min(TURN, len(run.failures))):
            if not trials.running:
                break
            moment, part = run.failures.pop()
            how = {0.0: "nothing", 1.0: "all", None: "some"}[part]
            what = f"{name}, before change {moment} of {len(run.operations)}, {how} of the rest kept"
            with trials.trial(what):
                fail(run, moment, part, trials)
        if run.failures:
            waiting.append(name)
    tried = failures - sum(len(run.failures) for run in recorded.values())
    trials.notes.append(
        f"Power failures: {tried:,} of the {failures:,} that {len(recorded)} of the {len(KINDS)} kinds of runs have."
    )


def record(alone: Undisturbed, trials: Trials) -> Recorded:
    """Make a run once more and note its changes of files."""
    place, log = trials.folder / "run", trials.folder / "log"
    shutil.rmtree(place, ignore_errors=True)
    log.unlink(missing_ok=True)
    assert sit(alone.kind, place, written(log)).done
    operations = read_log(log)
    flushes = [number for number, each in enumerate(operations) if each.kind == "fsync"]
    failures = [(number + after, part) for number in flushes for after in (0, 1) for part in (0.0, 1.0, None)]
    trials.chance.shuffle(failures)
    return Recorded(alone, operations, failures)


def fail(run: Recorded, moment: int, part: float | None, trials: Trials) -> None:
    """Restore what the disk has, resume and compare."""
    place = trials.folder / "run"
    shutil.rmtree(place, ignore_errors=True)
    restore(run.operations[:moment], place, trials.chance, part)
    ended = sit(run.alone.kind, place)
    assert ended.done, ended.said[-500:]
    assert_same_folders(run.alone.folder, place)


def written(path: Path) -> Callable[[], None]:
    """For `sit`: write every change of a file to `path`, one a line."""

    def prepare() -> None:
        log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

        def before(operation: Operation, _: Callable[[bytes], object]) -> None:
            line = {**vars(operation), "data": base64.b64encode(operation.data).decode()}
            os.write(log, json.dumps(line).encode() + b"\n")

        watch_files(before)

    return prepare


def read_log(path: Path) -> list[Operation]:
    """The changes that `written` has recorded."""
    tables = [json.loads(line) for line in path.read_bytes().splitlines()]
    return [Operation(**{**table, "data": base64.b64decode(table["data"])}) for table in tables]


@dataclass
class Content:
    """The changes of one file's content: those on the disk for certain, and those since its last fsync."""

    flushed: list[Operation] = field(default_factory=list)
    since: list[Operation] = field(default_factory=list)


def restore(operations: list[Operation], folder: Path, chance: random.Random, part: float | None) -> None:
    """Write a state of the disk after a power failure.

    Args:
        operations: the changes before the failure.
        folder: of the run, which is made anew.
        part: how much of what was not flushed is on the disk, from 0 to 1; None for a random part of each.
    """
    contents = _contents(operations)
    names = [number for number, each in enumerate(operations) if each.kind in NAMES]
    # An fsync of a folder flushes the changes of folders before it.
    folders = {each.path for each in operations if each.kind == "mkdir"} | {str(folder)}
    certain = max((n for n, each in enumerate(operations) if each.kind == "fsync" and each.path in folders), default=0)
    free = [number for number in names if number >= certain]
    kept = {*(number for number in names if number < certain), *free[: _some(len(free), chance, part)]}
    tree: dict[str, Content | None] = {}
    for number in sorted(kept):
        _rename(tree, operations[number], contents.get(number))
    folder.mkdir(parents=True)
    for path, content in sorted(tree.items()):
        if not Path(path).is_relative_to(folder) or path == str(folder):
            continue
        if content is None:
            os.makedirs(path, exist_ok=True)
        else:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).write_bytes(_bytes(content, chance, part))


def _contents(operations: list[Operation]) -> dict[int, Content]:
    """The content of each file by the number of the change that created it."""
    made: dict[int, Content] = {}
    now: dict[str, Content | None] = {}
    for number, each in enumerate(operations):
        if each.kind == "create":
            made[number] = Content()
        if each.kind in NAMES:
            _rename(now, each, made.get(number))
        elif (content := now.get(each.path)) is None:  # a folder, or a file that was there before
            continue
        elif each.kind == "fsync":
            content.flushed += content.since
            content.since.clear()
        else:
            content.since.append(each)
    return made


def _rename(tree: dict[str, Content | None], change: Operation, created: Content | None) -> None:
    """Apply a change of names to a tree of files, and of folders, which have no content."""
    if change.kind == "create":
        tree[change.path] = created
    elif change.kind == "mkdir":
        tree[change.path] = None
    elif change.kind in ("unlink", "rmdir"):
        tree.pop(change.path, None)
    else:
        for path in [each for each in tree if each == change.path or each.startswith(change.path + "/")]:
            tree[change.target + path.removeprefix(change.path)] = tree.pop(path)


def _bytes(content: Content, chance: random.Random, part: float | None) -> bytes:
    data = bytearray()
    more = content.since[: _some(len(content.since), chance, part)]
    for number, each in enumerate([*content.flushed, *more]):
        written = each.data
        torn = number == len(content.flushed) + len(more) - 1 and more and part is None
        if each.kind == "truncate":
            del data[each.offset :]
            data.extend(bytes(max(0, each.offset - len(data))))
            continue
        data.extend(bytes(max(0, each.offset - len(data))))
        if torn:  # its size may be on the disk before its content
            length = chance.randrange(len(written) + 1)
            written = written[:length] + bytes(len(written) - length if chance.random() < 0.5 else 0)
        data[each.offset : each.offset + len(written)] = written
    return bytes(data)


def _some(count: int, chance: random.Random, part: float | None) -> int:
    return chance.randint(0, count) if part is None else round(part * count)


ATTACKS = (Attack("power", "power lost at every fsync of a run, resumed from what the disk has", lose_power, 2),)
