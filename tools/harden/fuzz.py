"""Put mutants of every file before its reader: each must be read, or refused in one line, in little time and memory."""

from __future__ import annotations

import resource
import signal
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

from harden.corpus import corpus, file_name
from harden.mutants import changed
from harden.read_files import ReadFile, data_files, parquet_files, run_files
from harden.trials import Attack, Trials

HANGS = 10.0  # seconds
LARGE = 1 << 30  # bytes of address space beyond what the process has


class Hung(Exception):
    """A reader has not come back."""


def fuzz(files: Callable[[Path], Iterator[ReadFile]], trials: Trials) -> None:
    """Read the corpus, then mutants of the files and of the corpus; all files get about the same time."""
    folder = trials.folder / "files"
    folder.mkdir()
    targets = list(files(folder))
    good = {target.name: target.path.read_bytes() for target in targets}
    for target in targets:  # whatever is imported or cached at first use comes before the limit
        target.read()
    known = {target.name: corpus(target.name) for target in targets}
    spent = dict.fromkeys(good, 0.0)
    counts = dict.fromkeys(good, 0)
    limit_memory(LARGE)

    def attempt(target: ReadFile, content: bytes) -> None:
        start, failed = time.perf_counter(), len(trials.failures)
        with trials.trial(target.name):
            target.path.write_bytes(content)
            said = problem(target.read)
            assert not said, said
        if len(trials.failures) > failed:
            trials.keep(f"{file_name(target.name)}{target.path.suffix}", content)
        spent[target.name] += time.perf_counter() - start
        counts[target.name] += 1
        target.path.write_bytes(good[target.name])

    for target in targets:
        for content in known[target.name]:
            if trials.running:
                attempt(target, content)
    while trials.running:
        target = min(targets, key=lambda each: spent[each.name])
        first = trials.chance.choice([good[target.name], *known[target.name]])
        attempt(target, changed(trials.chance, target.path, first))
    trials.notes.append("Mutants: " + ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items())) + ".")


def problem(read: Callable[[], object], seconds: float = HANGS) -> str:
    """What is wrong with how a file is read; "" if it is read, or refused by a ValueError of one line, in time."""
    signal.signal(signal.SIGALRM, _hung)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            read()
    except MemoryError:
        return "more memory asked for than allowed"
    except Exception as error:
        signal.setitimer(signal.ITIMER_REAL, 0)
        lines = str(error).splitlines()
        worded = type(error) is ValueError or type(error).__module__.startswith("evenflow.")
        if isinstance(error, ValueError) and worded and len(lines) == 1:
            return ""
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "evenflow" in frame.filename]
        where = f" from {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
        return f"{type(error).__name__}{where}: {' | '.join(lines)[:200]}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return ""


def limit_memory(more: int) -> None:
    """Let this process have `more` bytes of address space beyond what it has now."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more, resource.RLIM_INFINITY))


def _hung(_: int, frame: FrameType | None) -> None:
    where = "" if frame is None else f" in {Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
    raise Hung(f"not back in time{where}")


def fuzz_data(trials: Trials) -> None:
    """Data sets and a user's own CSV and npz files."""
    fuzz(data_files, trials)


def fuzz_parquet(trials: Trials) -> None:
    """A user's own Parquet files; a crash of pyarrow ends this attack alone."""
    fuzz(parquet_files, trials)


def fuzz_runs(trials: Trials) -> None:
    """Run folders, records, configs, recipes, bundles, weights and tables to predict."""
    fuzz(run_files, trials)


ATTACKS = (
    Attack("fuzz-data", "mutants of data files, read or refused", fuzz_data, 4),
    Attack("fuzz-parquet", "mutants of a Parquet file, read or refused", fuzz_parquet, 0.5),
    Attack("fuzz-runs", "mutants of run files, records, configs, bundles and weights, read or refused", fuzz_runs, 4),
)
