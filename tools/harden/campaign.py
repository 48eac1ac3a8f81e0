"""Run attacks, each in a process of its own forked from one that has imported torch, and collect what they tried."""

from __future__ import annotations

import multiprocessing
import random
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from harden.trials import Attack, Trials

GRACE = 900.0  # seconds that an attack may take beyond its share before it counts as hung


@dataclass(frozen=True)
class Outcome:
    """What an attack tried, which trials failed, and how long it took."""

    attack: Attack
    tried: int
    failures: list[str]
    notes: list[str]
    seconds: float


def run_attacks(
    attacks: Sequence[Attack],
    seed: int,
    minutes: float,
    jobs: int,
    announce: Callable[[str], None],
    kept: Path | None = None,
    corpus: Path | None = None,
) -> list[Outcome]:
    """Run attacks in their shares of `minutes` on `jobs` processes; the outcomes are in the order of the attacks.

    A process that dies counts as a failure of its attack. The caller must not have used OpenMP, whose threads a forked
    process does not have. Inputs that failed are written to the folder `kept`, inputs that reach new code to `corpus`.
    """
    total = sum(attack.share for attack in attacks)
    waiting, outcomes = list(attacks), dict[str, Outcome]()
    under_way: dict[Connection, tuple[Attack, Any, float, float]] = {}
    context = multiprocessing.get_context("fork")
    while waiting or under_way:
        while waiting and len(under_way) < jobs:
            attack = waiting.pop(0)
            seconds = 60 * minutes * jobs * attack.share / total
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=_attack, args=(attack, seed, seconds, sender, kept, corpus))
            process.start()
            sender.close()
            under_way[receiver] = (attack, process, time.monotonic(), seconds)
            announce(f"{attack.name}: {attack.what} ({seconds:.0f} s)")
        for receiver in _ended(under_way):
            attack, process, start, _ = under_way.pop(receiver)
            outcomes[attack.name] = _outcome(attack, process, receiver, time.monotonic() - start)
            announce(f"{attack.name}: {len(outcomes[attack.name].failures)} of {outcomes[attack.name].tried} failed")
    return [outcomes[attack.name] for attack in attacks]


def _ended(under_way: dict[Connection, tuple[Attack, Any, float, float]]) -> list[Any]:
    ready = list(wait(list(under_way), timeout=1))
    for receiver, (_, process, start, seconds) in under_way.items():
        if receiver not in ready and time.monotonic() - start > seconds + GRACE:
            process.kill()
            ready.append(receiver)
    return ready


def _outcome(attack: Attack, process: Any, receiver: Connection, seconds: float) -> Outcome:
    try:
        tried, failures, notes = receiver.recv()
    except EOFError:
        process.join()
        tried, failures, notes = 1, [f"{attack.name}: its process ended with {process.exitcode}"], []
    process.join()
    receiver.close()
    return Outcome(attack, tried, failures, notes, seconds)


def _attack(
    attack: Attack, seed: int, seconds: float, sender: Connection, kept: Path | None, corpus: Path | None
) -> None:
    with tempfile.TemporaryDirectory(prefix=f"harden-{attack.name}-") as folder:
        trials = Trials(random.Random(f"{seed}/{attack.name}"), Path(folder), seconds)
        trials.kept = None if kept is None else kept / attack.name
        trials.corpus = corpus
        try:
            attack.run(trials)
        except BaseException:
            trials.tried += 1
            trials.failures.append(f"{attack.name} broke off: {traceback.format_exc()[-2000:]}")
        sender.send((trials.tried, trials.failures, trials.notes))
    sender.close()
