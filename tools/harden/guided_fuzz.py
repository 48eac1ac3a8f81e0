"""Coverage-guided fuzzing of every reader, by Atheris and its libFuzzer, with the mutants of `harden.mutants`.

Inputs that reach new lines or branches of evenflow's code are kept and changed further. Each file has a process of its
own, whose first inputs are the good file and the committed corpus.
"""

from __future__ import annotations

import gc
import os
import random
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType

from harden.corpus import corpus, file_name, write_corpus
from harden.fuzz import LARGE, limit_memory, problem
from harden.mutants import changed
from harden.read_files import ReadFile, data_files, parquet_files, run_files
from harden.trials import Attack, Trials

LEAST = 5.0  # seconds for one file; if there is less time, some of the files are drawn
OWN = 0.3  # share of the mutants that are libFuzzer's own, which puts constants from comparisons into them
LONGER = 4096  # bytes that an input may have beyond the length of the good file
RUNS, COVERED = re.compile(r"^Done (\d+) runs", re.M), re.compile(r"cov: (\d+)")  # in what libFuzzer says
OPTIONS = ("-timeout=0", "-rss_limit_mb=0", "-reload=0", "-use_counters=0")  # `problem` has limits of its own


def guided(files: Callable[[Path], Iterator[ReadFile]], trials: Trials, package: str = "evenflow") -> None:
    """Fuzz the files one after the other, guided by the coverage of a package that is imported by reading them."""
    if find_spec("atheris") is None:
        trials.notes.append("No guided fuzzing: Atheris is not installed.")
        return
    folder = trials.folder / "files"
    folder.mkdir()
    targets = list(files(folder))
    for target in targets:
        target.read()
    instrument(package)
    trials.chance.shuffle(targets)
    del targets[max(1, int(trials.left / LEAST)) :]
    said = []
    for number, target in enumerate(targets):
        seconds = trials.left / (len(targets) - number)
        if seconds >= 1:
            said.append(fuzz_one(target, seconds, trials))
    trials.notes.append(
        f"Guided by coverage, inputs and branches reached: {', '.join(sorted(said)) or 'no time left'}."
    )


def instrument(package: str) -> None:
    """Let every function of the imported modules of a package report the branches that it takes."""
    import atheris

    for function in gc.get_objects():
        if type(function) is FunctionType and (function.__module__ or "").startswith(package):
            atheris.instrument_func(function)


def fuzz_one(target: ReadFile, seconds: float, trials: Trials) -> str:
    """Fuzz one file in a forked process, and say how many inputs it had and how many branches they reached."""
    place = trials.folder / "guided"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    good = target.path.read_bytes()
    for number, content in enumerate([good, *corpus(target.name)]):
        (place / str(number)).write_bytes(content)
    log, failed = trials.folder / "guided.log", trials.folder / "guided.failed"
    failed.write_bytes(b"")
    arguments = [
        "guided", str(place), f"-max_total_time={max(1, round(seconds))}", f"-max_len={len(good) + LONGER}",
        f"-seed={trials.chance.randrange(1, 2**31)}", f"-artifact_prefix={trials.folder}/", *OPTIONS,
    ]  # fmt: skip
    child = os.fork()
    if child == 0:
        try:
            written = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            os.dup2(written, 1)
            os.dup2(written, 2)
            _fuzz(target, arguments, failed, trials)
        finally:
            os._exit(1)  # libFuzzer ends the process itself
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    output = log.read_text(errors="replace")
    done, covered = RUNS.search(output), COVERED.findall(output)
    last = target.path.read_bytes()
    target.path.write_bytes(good)
    trials.tried += int(done[1]) if done else 0
    trials.failures += failed.read_text(encoding="utf-8").splitlines()
    if code or not done:
        trials.tried += 1
        trials.failures.append(f"{target.name}: the process ended with {code}: {output[-300:]}")
        trials.keep(f"{file_name(target.name)}{target.path.suffix}", last)
    elif trials.corpus is not None:
        write_corpus(target.name, [each for each in _contents(place) if each != good], trials.corpus)
    return f"{target.name} {int(done[1]) if done else 0:,} and {covered[-1] if covered else 0}"


def _contents(place: Path) -> Sequence[bytes]:
    return [path.read_bytes() for path in sorted(place.iterdir())]


def _fuzz(target: ReadFile, arguments: list[str], failed: Path, trials: Trials) -> None:
    """Fuzz in this process, to its end. Each kind of failure is written to `failed` once, as a line."""
    import atheris

    known = set[str]()

    def read(content: bytes) -> None:
        target.path.write_bytes(content)
        said = problem(target.read)
        if said and said not in known:
            known.add(said)
            trials.keep(f"{file_name(target.name)}{target.path.suffix}", content)
            with failed.open("a", encoding="utf-8") as lines:
                lines.write(f"{target.name}: {' | '.join(said.splitlines())}\n")

    def change(content: bytes, longest: int, seed: int) -> bytes:
        chance = random.Random(seed)
        if chance.random() < OWN:
            return atheris.Mutate(content, longest)
        return changed(chance, target.path, content)[:longest]

    limit_memory(LARGE)
    atheris.Setup(arguments, read, custom_mutator=change)
    atheris.Fuzz()


def guided_data(trials: Trials) -> None:
    """Data sets and a user's own files."""
    guided(data_files, trials)


def guided_parquet(trials: Trials) -> None:
    """A user's own Parquet files."""
    guided(parquet_files, trials)


def guided_runs(trials: Trials) -> None:
    """Run folders, records, configs, recipes, bundles, weights and tables to predict."""
    guided(run_files, trials)


ATTACKS = (
    Attack("guided-data", "inputs for data readers, guided by coverage, read or refused", guided_data, 2),
    Attack(
        "guided-parquet", "inputs for the Parquet reader, guided by coverage, read or refused", guided_parquet, 0.25
    ),
    Attack(
        "guided-runs", "inputs for readers of runs and bundles, guided by coverage, read or refused", guided_runs, 3
    ),
)
