"""What Ray costs: the same runs one after the other in this process, and as tasks of a Ray with a single core.

    python benchmarks/ray_overhead.py [--rounds 3] [--launches 3] [--steps 2700] [--out benchmarks/results]

One thread, one run at a time in both cases. The two take turns, and each round starts a Ray of its own. Times are the
processor's, so that other work on the machine matters less: `run` is that of one run in this process, the first left
out, and `ratio` that of the process of a worker in a run over it. `services` is the time of all other processes of Ray
and of this one while Ray runs, for each second of the clock; `start` what the first run on Ray takes above the others,
while its worker loads torch. By the clock, `wall_ratio` is that of runs after the first, on Ray over here, and
`wall_start` the seconds until Ray is there. Medians, and the single rounds. To ray-overhead-cpu.json.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import ray
import torch

from evenflow.lab.bench import hardware
from evenflow.lab.launches import Here, Launch, LaunchPlace, OnRay
from evenflow.lab.sweep.compare import train_runs


def launches(folder: Path, count: int, steps: int) -> list[Launch]:
    """Runs that differ in their seed."""
    made = []
    for seed in range(count):
        training = {"steps": steps, "seed": seed, "device": "cpu", "validate_every": 500}
        system = {"name": "sgornn", "hidden_size": 64}
        config = {"task": {"name": "adding", "length": 100}, "system": system, "training": training}
        run = folder / f"seed-{seed}"
        made.append(Launch(functools.partial(measured, config), (run,), run.name, steps))
    return made


def measured(config: dict[str, Any], folders: list[Path], progress: bool) -> None:
    """Train a run, and note the processor's time of this process beside it."""
    before = time.process_time()
    train_runs([config], folders, progress)
    folders[0].with_suffix(".seconds").write_text(str(time.process_time() - before))


def timed(place: LaunchPlace, folder: Path, count: int, steps: int) -> list[tuple[float, float]]:
    """The seconds of the processor and of the clock from the end of the launch before to the end of each launch."""
    ends = [(processor_seconds(), time.perf_counter())]

    def ended(launch: Launch) -> tuple[()]:
        ends.append((processor_seconds(), time.perf_counter()))
        return ()

    place.run(launches(folder, count, steps), ended=ended, progress=False)
    return [(after[0] - before[0], after[1] - before[1]) for before, after in itertools.pairwise(ends)]


def processor_seconds() -> float:
    """The processor's time of this process and of all that it has started."""
    times, parents = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        times[int(path.parent.name)] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        parents[int(path.parent.name)] = int(fields[1])
    family = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return sum(times[pid] for pid in family)


def work_of(folder: Path, count: int) -> list[float]:
    """What `measured` has noted."""
    return [float((folder / f"seed-{seed}.seconds").read_text()) for seed in range(count)]


def one_round(count: int, steps: int) -> dict[str, Any]:
    """One measurement of both."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        here = timed(Here(), folder / "here", count, steps)
        began = time.perf_counter()
        ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        wall_start = time.perf_counter() - began
        try:
            with OnRay() as place:
                on_ray = timed(place, folder / "ray", count, steps)
        finally:
            ray.shutdown()
        plain, work = work_of(folder / "here", count), work_of(folder / "ray", count)
    run, first, later = statistics.median(plain[1:]), on_ray[0], on_ray[1:]
    services = [(all_of_it - own) / wall for (all_of_it, wall), own in zip(later, work[1:], strict=True)]
    return {
        "run": round(run, 2),
        "ratio": round(statistics.median(work[1:]) / run, 3),
        "services": round(statistics.median(services), 4),
        "start": round(first[0] - work[0] - statistics.median(services) * first[1], 2),
        "wall_ratio": round(sum(wall for _, wall in later) / sum(wall for _, wall in here[1:]), 3),
        "wall_start": round(wall_start, 2),
        "load": round(os.getloadavg()[0], 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--launches", type=int, default=3)
    parser.add_argument("--steps", type=int, default=2700)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    torch.set_num_threads(1)
    rounds: list[dict[str, Any]] = []
    for _ in range(options.rounds):
        rounds.append(one_round(options.launches, options.steps))
        print(rounds[-1], flush=True)
        names = ("run", "ratio", "services", "start", "wall_ratio", "wall_start")
        result = {
            "hardware": hardware(torch.device("cpu")) | {"ray": ray.__version__},
            "settings": {"launches": options.launches, "steps": options.steps},
            "medians": {name: statistics.median(each[name] for each in rounds) for name in names},
            "rounds": rounds,
        }
        (options.out / "ray-overhead-cpu.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
