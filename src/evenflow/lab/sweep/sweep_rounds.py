"""The rounds of a sweep: trains the points of each round, scores them and selects those of the next."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evenflow.lab.launches import Launch, LaunchPlace
from evenflow.lab.tasks import Task
from evenflow.lab.training.extend_run import Config, advance, read_score, updates_made
from evenflow.lab.training.progress import ProgressBar, progress_watcher
from evenflow.lab.training.stopping import NonFiniteLoss

from .candidates import Omitted, Point
from .halving import Rules, first_round, next_round
from .leaderboard import RoundState, Standing, ranked, run_folder, spent
from .sweep_record import FILE, SweepRecord

SAVE_EVERY = 2.0  # seconds between two records of a round; runs that have ended since are found again


@dataclass
class SweepRounds:
    """A sweep under way.

    Args:
        task, table: the task, and its table of a config.
        points, omitted: the candidates, and the models that are none.
        settings: of all runs.
        record: the state of the sweep in its folder, from which an interrupted sweep continues.
        began: the reading of `time.monotonic` at the start of this session.
        place: where the runs train.
        over: whether the last round has ended.
        saved: the reading of `time.monotonic` when the state was last saved.
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
    place: LaunchPlace
    over: bool = False
    saved: float = 0.0

    def run(self) -> None:
        """Run the rounds that are left."""
        rounds = self.record.rounds
        try:
            if not rounds:
                names = [point.name for point in self.points]
                rounds.append(RoundState(first_round(len(names), self.rules), names))
            while True:
                now = rounds[-1]
                waiting = self._waiting(now)
                self._save("running")
                if waiting:
                    self._train(now, waiting)
                order = [standing for standing in self.standings() if standing.point.name in now.entrants]
                alive = [standing.point.name for standing in order if standing.state != "diverged"]
                lost = f"; {len(order) - len(alive)} diverged" if len(alive) < len(order) else ""
                best = order[0]
                self.announce(f"  best {self.task.metric_name} {best.valid_metric:.4g}: {best.point}{lost}.")
                if not alive:
                    raise NonFiniteLoss(f"all {len(order)} points diverged: try smaller lrs or a clip_norm")
                following = next_round(now.round, len(alive), self.rules.updates - spent(rounds), self.rules)
                if following is None:
                    break
                rounds.append(RoundState(following, alive[: following.points]))
            self.over = True
        finally:
            self._save("finished" if self.over else "stopped")

    def standings(self) -> list[Standing]:
        """The leaderboard."""
        return ranked(self.points, self.record.rounds, self.task.higher_is_better, self.record.folder, self.over)

    def updates_made(self) -> int:
        """The updates of all runs, also of those that were stopped in the middle of a round."""
        rounds = self.record.rounds
        if not rounds:
            return 0
        scored = {
            run_folder(self.record.folder, point, s.seed): s.updates
            for point in self.points
            for each in rounds
            for s in each.scores.get(point.name, ())
        }
        folders = [
            run_folder(self.record.folder, point, seed)
            for point in self._waiting(rounds[-1])
            for seed in self._seeds(rounds[-1])
        ]
        return spent(rounds) + sum(max(0, updates_made(folder) - scored.get(folder, 0)) for folder in folders)

    def _waiting(self, now: RoundState) -> list[Point]:
        """The points of a round that have no score of it yet, in the order of its entrants."""
        by_name = {point.name: point for point in self.points}
        if unknown := [name for name in now.entrants if name not in by_name]:
            raise ValueError(
                f"{FILE} of {str(self.record.folder)!r} is damaged: the sweep has no point {unknown[0][:80]!r}"
            )
        return [by_name[name] for name in now.entrants if name not in now.scores]

    def _seeds(self, now: RoundState) -> range:
        first = self.settings["seed"]
        return range(first, first + (self.rules.seeds if now.round.last else 1))

    def _train(self, now: RoundState, waiting: list[Point]) -> None:
        """Train the points of a round to its end: on a GPU those with equal models together, else run by run."""
        rounds = self.record.rounds
        number = rounds.index(now) + 1
        before = rounds[number - 2].round.until if number > 1 else 0
        seeds = self._seeds(now)
        words = f" with {len(seeds)} seeds" if len(seeds) > 1 else ""
        self.announce(f"Round {number}: {len(now.entrants)} points to {now.round.until:,} updates{words}.")
        together = self.place.populations(self.settings["device"])
        runs_of: dict[Launch, list[tuple[Point, int]]] = {}
        for group in same_model(waiting):
            runs = [(point, seed) for point in group for seed in seeds]
            for part in [runs] if together else [[run] for run in runs]:
                runs_of[self._launch(now, before, part)] = part
        left = {point: len(seeds) for point in waiting}

        def ended(launch: Launch) -> Sequence[Launch]:
            for point, _ in runs_of[launch]:
                left[point] -= 1
                if not left[point]:
                    now.scores[point.name] = tuple(
                        read_score(run_folder(self.record.folder, point, seed), seed) for seed in seeds
                    )
            if time.monotonic() > self.saved + SAVE_EVERY:
                self._save("running")
            return ()

        bar = ProgressBar(self.rules.updates, spent(rounds), self.progress)
        folders = [folder for launch in runs_of for folder in launch.folders]
        others = spent(rounds) - before * len(waiting)
        try:
            with progress_watcher(bar, others, folders, lambda: f"round {number}, {self.place.note}", self.progress):
                self.place.run(list(runs_of), ended=ended, progress=False)
        finally:
            bar.close()

    def _launch(self, now: RoundState, before: int, runs: list[tuple[Point, int]]) -> Launch:
        """The launch that takes runs to the end of a round, whose first seeds are at step `before`."""
        first, until = self.settings["seed"], now.round.until
        finish = self.rules.finish if now.round.last else "constant"
        configs, folders = self._configs(runs, until, finish)
        new = [i for i, (_, seed) in enumerate(runs) if seed != first]
        earlier: dict[int, Config] = {}
        if new and finish != "constant":  # new seeds have the same schedule as the first seed had
            earlier = dict(zip(new, self._configs([runs[i] for i in new], before, "constant")[0], strict=True))
        work = functools.partial(advance_runs, earlier, configs)
        return Launch(work, tuple(folders), str(runs[0][0]), until * len(runs))

    def _configs(self, runs: list[tuple[Point, int]], steps: int, schedule: str) -> tuple[list[Config], list[Path]]:
        """The configs and the folders of runs that end at this step."""
        configs: list[Config] = []
        for point, seed in runs:
            own = {"optimizer": point.optimizer, "lr": point.lr, "seed": seed, "steps": steps, "schedule": schedule}
            if point.map == "free":
                own["map_lr"] = None  # a free matrix has no parameters of a map
            configs.append({"task": self.table, "system": point.system, "training": self.settings | own})
        return configs, [run_folder(self.record.folder, point, seed) for point, seed in runs]

    def _save(self, state: str) -> None:
        self.saved = time.monotonic()
        self.record.save(
            state,
            self.standings(),
            self.omitted,
            updates=self.updates_made(),
            seconds=time.monotonic() - self.began,
            hardware=self.place.hardware(self.settings["device"]),
            metric_name=self.task.metric_name,
        )


def advance_runs(
    earlier: Mapping[int, Config], configs: Sequence[Config], folders: Sequence[Path], progress: bool
) -> None:
    """`advance` the runs to their configs, those with an earlier config to that one first."""
    if earlier:
        advance(list(earlier.values()), [folders[i] for i in earlier])
    advance(configs, folders)


def same_model(points: list[Point]) -> list[list[Point]]:
    """Groups of points with the same model, which differ in how they learn."""
    groups: dict[str, list[Point]] = {}
    for point in points:
        groups.setdefault(repr(sorted(point.system.items())), []).append(point)
    return list(groups.values())
