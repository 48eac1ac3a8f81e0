"""The rounds of a sweep, held one after the other."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evenflow.lab.tasks import Task
from evenflow.lab.training.extend_run import Config, advance, read_score, updates_made
from evenflow.lab.training.progress import ProgressBar, progress_watcher
from evenflow.lab.training.stopping import NonFiniteLoss, check_stop

from .candidates import Omitted, Point
from .halving import Rules, first_round, next_round
from .leaderboard import Held, Standing, ranked, run_folder, spent
from .sweep_record import SweepRecord


@dataclass
class Rounds:
    """A sweep under way.

    Args:
        task, table: what is learned, and its table of a config.
        points, omitted: the candidates, and what is none.
        settings: those that all runs share.
        record: where it is written down, and read from after a kill.
        began: when this sitting did.
    """

    task: Task
    table: dict[str, Any]
    points: list[Point]
    omitted: list[Omitted]
    rules: Rules
    settings: dict[str, Any]
    record: SweepRecord
    began: float
    progress: bool
    announce: Callable[[str], None]
    over: bool = False

    def hold_all(self) -> None:
        """Hold the rounds that are left to hold."""
        held = self.record.held
        by_name = {point.name: point for point in self.points}
        try:
            if not held:
                held.append(Held(first_round(len(self.points), self.rules), list(by_name)))
            while True:
                now = held[-1]
                waiting = [by_name[name] for name in now.entrants if name not in now.scores]
                self._save("running")
                if waiting:
                    self._hold(now, waiting)
                order = [standing for standing in self.standings() if standing.point.name in now.entrants]
                alive = [standing.point.name for standing in order if standing.state != "diverged"]
                self._tell(order, len(order) - len(alive))
                if not alive:
                    raise NonFiniteLoss(f"all {len(order)} points diverged: try smaller lrs or a clip_norm")
                following = next_round(now.round, len(alive), self.rules.updates - spent(held), self.rules)
                if following is None:
                    break
                held.append(Held(following, alive[: following.points]))
            self.over = True
        finally:
            self._save("finished" if self.over else "stopped")

    def made(self) -> int:
        """Updates of all runs, also of those that were stopped in the middle of a round."""
        held = self.record.held
        if not held:
            return 0
        now = held[-1]
        waiting = [point for point in self.points if point.name in now.entrants and point.name not in now.scores]
        folders = [run_folder(self.record.folder, point, seed) for point in waiting for seed in self._seeds(now)]
        before = {
            run_folder(self.record.folder, point, s.seed): s.updates
            for point in waiting
            for each in held
            for s in each.scores.get(point.name, ())
        }
        return spent(held) + sum(max(0, updates_made(folder) - before.get(folder, 0)) for folder in folders)

    def _seeds(self, now: Held) -> range:
        first = self.settings["seed"]
        return range(first, first + (self.rules.seeds if now.round.last else 1))

    def _hold(self, now: Held, waiting: list[Point]) -> None:
        """Train the points of a round to its end, shape by shape."""
        number = self.record.held.index(now) + 1
        before = self.record.held[number - 2].round.until if number > 1 else 0
        until, seeds, first = now.round.until, self._seeds(now), self.settings["seed"]
        finish = self.rules.finish if now.round.last else "constant"
        words = f" with {len(seeds)} seeds" if len(seeds) > 1 else ""
        self.announce(f"Round {number}: {len(now.entrants)} points to {until:,} updates{words}.")
        bar = ProgressBar(self.rules.updates, spent(self.record.held), self.progress)
        try:
            for group in alike(waiting):
                check_stop()
                runs = [(point, seed) for point in group for seed in seeds]
                late = [(point, seed) for point, seed in runs if seed != first]
                configs, folders = self._runs(runs, until, finish)
                others = spent(self.record.held) - before * len(group)
                with progress_watcher(bar, others, folders, f"round {number}, {group[0]}", self.progress):
                    if late and finish != "constant":  # a seed that begins now goes all the way as the first one did
                        advance(*self._runs(late, before, "constant"))
                    advance(configs, folders)
                for point in group:
                    now.scores[point.name] = tuple(
                        read_score(run_folder(self.record.folder, point, seed), seed) for seed in seeds
                    )
                self._save("running")
        finally:
            bar.close()

    def _runs(self, runs: list[tuple[Point, int]], steps: int, schedule: str) -> tuple[list[Config], list[Path]]:
        """The configs and the folders of runs that are to make so many updates."""
        configs: list[Config] = []
        for point, seed in runs:
            own = {"optimizer": point.optimizer, "lr": point.lr, "seed": seed, "steps": steps, "schedule": schedule}
            if point.map == "free":
                own["map_lr"] = None  # there is nothing that it would be the rate of
            configs.append({"task": self.table, "system": point.system, "training": self.settings | own})
        return configs, [run_folder(self.record.folder, point, seed) for point, seed in runs]

    def _tell(self, order: list[Standing], diverged: int) -> None:
        """Say who leads, and by how much."""
        lost = f"; {diverged} diverged" if diverged else ""
        best = order[0]
        self.announce(f"  best {self.task.metric_name} {best.valid_metric:.4g}: {best.point}{lost}.")

    def standings(self) -> list[Standing]:
        return ranked(self.points, self.record.held, self.task.higher_is_better, self.record.folder, self.over)

    def _save(self, state: str) -> None:
        self.record.save(
            state,
            self.standings(),
            self.omitted,
            updates=self.made(),
            seconds=time.monotonic() - self.began,
            device=self.settings["device"],
            judged_by=self.task.metric_name,
        )


def alike(points: list[Point]) -> list[list[Point]]:
    """Points of one model together: they differ in how they learn."""
    groups: dict[str, list[Point]] = {}
    for point in points:
        groups.setdefault(repr(sorted(point.system.items())), []).append(point)
    return list(groups.values())
