"""One long run with probes, validations and checkpoints, whose memory, open files and step time must stay flat."""

from __future__ import annotations

import os
import resource
import statistics
import time
from itertools import pairwise
from pathlib import Path

import evenflow
from evenflow.lab.training import ActiveRun, Callback
from harden.trials import Attack, Trials

MOST = 200_000  # updates
EVERY = 100  # updates from sample to sample
WARM = 0.2  # of the samples are not judged: caches fill
FEWEST = 20  # samples
GROWTH = 16 << 20  # bytes that a run may grow by after that
SLOWER = 1.5  # times the processor time of a step in the first half


class Watch(Callback):
    """Notes the memory, the open files and the processor time of a run, and stops it when the time is over."""

    def __init__(self, trials: Trials) -> None:
        self.trials = trials
        self.updates = 0
        self.memory: list[int] = []
        self.files: list[int] = []
        self.times: list[float] = []

    def after_update(self, run: ActiveRun) -> None:
        self.updates += 1
        if self.updates % EVERY == 0:
            pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
            self.memory.append(pages * resource.getpagesize())
            self.files.append(len(os.listdir("/proc/self/fd")))
            self.times.append(time.process_time())
            if not self.trials.running:
                run.stop()


def soak(trials: Trials) -> None:
    """As many updates as there is time for."""
    task = evenflow.tasks.Adding(length=10)
    model = evenflow.SequenceModel(evenflow.create("urnn", task.input_size, 8), task.output_size)
    watch = Watch(trials)
    evenflow.fit(
        model, task, folder=trials.folder / "run", callbacks=[watch], progress=False, steps=MOST, batch_size=4, lr=1e-3,
        log_every=100, validate_every=200, validation_batches=1, checkpoint_every=500, probe_every=1000, device="cpu",
    )  # fmt: skip
    if len(watch.times) < FEWEST:
        trials.notes.append(f"Soak: {watch.updates:,} updates are fewer than {FEWEST * EVERY:,}: nothing was judged.")
        return
    start = round(WARM * len(watch.times))
    memory, files, times = watch.memory[start:], watch.files[start:], watch.times[start:]
    half = len(times) // 2
    before, after = max(memory[:half]), max(memory[half:])
    taken = [1000 * (b - a) / EVERY for a, b in pairwise(times)]  # milliseconds of an update
    first, second = statistics.median(taken[:half]), statistics.median(taken[half:])
    trials.notes.append(
        f"Soak: {watch.updates:,} updates. First and second half after the first {WARM:.0%}: "
        f"{before / (1 << 20):.1f} and {after / (1 << 20):.1f} MB at most, {max(files[:half])} and {max(files[half:])} "
        f"open files, {first:.2f} and {second:.2f} ms of the processor for an update."
    )
    with trials.trial("memory"):
        assert after - before < GROWTH, f"the second half of the run needs {after - before:,} bytes more than the first"
    with trials.trial("open files"):
        assert max(files) <= files[0], f"{files[0]} open files became {max(files)}"
    with trials.trial("step time"):
        assert second < SLOWER * first, f"an update takes {second / first:.2f} times as long in the second half"


ATTACKS = (Attack("soak", "memory, open files and step time of one long run", soak, 2),)
