"""The attack campaign: ``python tools/harden --help``. It leaves with 1 if a trial failed."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"  # before torch: attacks and their trials are forked processes
sys.path.insert(0, str(Path(__file__).parents[1]))  # so that the folder can be run as it is

from harden import ATTACKS
from harden.campaign import run_attacks
from harden.corpus import FOLDER

KEPT = Path(__file__).parents[2] / "build" / "harden"  # inputs that failed
SHOWN = 20  # different failures of an attack


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python tools/harden", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="of the whole campaign (default: 30)")
    parser.add_argument("--seed", type=int, default=0, help="of all random draws (default: 0)")
    parser.add_argument("--jobs", type=int, default=2, help="attacks side by side (default: 2)")
    parser.add_argument("--only", nargs="+", choices=sorted(ATTACKS), help="these attacks alone")
    parser.add_argument("--grow-corpus", action="store_true", help="keep inputs of guided fuzzing that reach new code")
    options = parser.parse_args(arguments)
    chosen = [attack for name, attack in ATTACKS.items() if options.only is None or name in options.only]
    shutil.rmtree(KEPT, ignore_errors=True)
    outcomes = run_attacks(
        chosen,
        options.seed,
        options.minutes,
        options.jobs,
        lambda said: print(said, flush=True),
        KEPT,
        FOLDER if options.grow_corpus else None,
    )
    for outcome in outcomes:
        for sentence in outcome.notes:
            print(f"\n{sentence}")
        for sentence, times in Counter(outcome.failures).most_common(SHOWN):
            print(f"\n{sentence}" + (f" ({times} times)" if times > 1 else ""))
    if KEPT.exists():
        print(f"\nInputs that failed are in {KEPT}.")
    print("\n| attack | tried | failed | seconds |\n|---|---|---|---|")
    for outcome in outcomes:
        counts = f"{outcome.tried:,} | {len(outcome.failures):,} | {outcome.seconds:.0f}"
        print(f"| {outcome.attack.name}: {outcome.attack.what} | {counts} |")
    return int(any(outcome.failures for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
