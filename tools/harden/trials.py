"""What an attack is, and the count of what it has tried."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

MOST_KEPT = 5  # inputs that failed, of one kind


@dataclass
class Trials:
    """The trials of one attack: the chance they draw from, their time, and which failed.

    Attributes:
        chance: draws of the attack; the same for the same seed of the campaign.
        folder: an empty folder for its files.
        seconds: its share of the campaign's time.
        tried: trials so far.
        failures: a sentence for each that failed.
        notes: sentences for the report, such as what was left out.
        kept: where `keep` writes; None for nowhere.
        corpus: where guided fuzzing writes the inputs that reach new code; None for nowhere.
    """

    chance: random.Random
    folder: Path
    seconds: float
    tried: int = 0
    failures: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    kept: Path | None = None
    corpus: Path | None = None
    start: float = field(default_factory=time.monotonic)

    @property
    def running(self) -> bool:
        """Whether there is time for another trial."""
        return self.left > 0

    @property
    def left(self) -> float:
        """Seconds of its share that are left."""
        return self.start + self.seconds - time.monotonic()

    @contextmanager
    def trial(self, what: str) -> Iterator[None]:
        """Count a trial; an exception in the block is its failure, with `what` in front."""
        self.tried += 1
        try:
            yield
        except Exception as error:
            said = (str(error).strip() or repr(error)).splitlines()
            self.failures.append(f"{what}: {type(error).__name__}: {' | '.join(said[-3:])[:1000]}")

    def keep(self, name: str, content: bytes) -> None:
        """Keep an input that failed, for whoever mends it; the first few of a name."""
        if self.kept is None:
            return
        self.kept.mkdir(parents=True, exist_ok=True)
        stem, dot, ending = name.partition(".")
        for number in range(MOST_KEPT):
            path = self.kept / f"{stem}-{number}{dot}{ending}"
            if not path.exists():
                path.write_bytes(content)
                break


@dataclass(frozen=True)
class Attack:
    """One way to damage, interrupt or fool the program.

    Args:
        name: on the command line and in the table.
        what: the trials in words, for the table.
        run: makes trials while `Trials.running`, or until it has made all there are.
        share: of the campaign's time, beside the shares of the other attacks.
    """

    name: str
    what: str
    run: Callable[[Trials], None]
    share: float = 1.0
