"""A process that works on a search: it claims trials, trains and prunes them, and records what became of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from evenflow.lab.tasks import Task
from evenflow.lab.training.callbacks import ActiveRun, Callback
from evenflow.lab.training.config import read_config
from evenflow.lab.training.extend_run import read_score, updates_made
from evenflow.lab.training.fit import train_or_resume
from evenflow.lab.training.progress import ProgressBar, progress_watcher
from evenflow.lab.training.stopping import check_stop

from .candidates import Omitted
from .search_space import Drawn, SearchSpace
from .study_record import SearchRecord, TrialRow
from .trial_study import READY, UPDATES, TrialStudy, spent, trial_name

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial, Trial

LEFT_OUT = 50  # trials in a row without a model to train, after which the search ends with an error


@dataclass
class SearchWorker:
    """Trains trials of a study, one after the other; other processes may do so at the same time.

    Args:
        study: the study.
        task, table: the task, and its table of a config.
        space: what is drawn.
        updates, longest: the budget of all processes, and the updates of a trial that is not pruned.
        settings: of all trials.
        request: for the record.
        parameters, folder, progress, announce: as for `search`.
    """

    study: TrialStudy
    task: Task
    table: dict[str, Any]
    space: SearchSpace
    updates: int
    longest: int
    settings: dict[str, Any]
    request: Mapping[str, Any]
    parameters: int | None
    folder: Path
    progress: bool
    announce: Callable[[str], None]

    def run(self) -> None:
        """Train trials until the budget is spent."""
        left_out = 0
        try:
            while True:
                check_stop()
                with self.study.claimed(self.updates, self.longest) as trial:
                    if trial is None:
                        return
                    drawn = self.space.draw(trial, self.task, self.parameters)
                    if isinstance(drawn, Omitted):
                        self._leave_out(trial, drawn)
                        left_out += 1
                    else:
                        self._train(trial, drawn)
                        left_out = 0
                if left_out == LEFT_OUT:
                    reason = drawn.reason if isinstance(drawn, Omitted) else ""
                    raise ValueError(f"{LEFT_OUT} trials in a row have no model to train; the last: {reason}")
                self.write()
        finally:
            self.write(self._importance())

    def _leave_out(self, trial: Trial, omitted: Omitted) -> None:
        from optuna.trial import TrialState

        for name, value in (("reason", omitted.reason), ("outcome", "left out"), (READY, True)):
            trial.set_user_attr(name, value)
        trial.set_user_attr("hidden_size", omitted.hidden_size)
        trial.set_user_attr("parameters", omitted.parameters or 0)
        self.study.study.tell(trial, state=TrialState.PRUNED)  # Optuna's sampler avoids its neighbourhood

    def _train(self, trial: Trial, drawn: Drawn) -> None:
        """Train a trial, or go on with it, and tell the study what became of it."""
        from optuna.trial import TrialState

        point, name, folder = drawn.point, trial_name(trial.number), self.folder / trial_name(trial.number)
        if READY not in trial.user_attrs:
            trial.set_user_attr("hidden_size", point.hidden_size)
            trial.set_user_attr("parameters", point.parameters)
            trial.set_user_attr(READY, True)
        own = {"optimizer": point.optimizer, "lr": point.lr, **drawn.training}
        if point.map == "free":
            own["map_lr"] = None  # a free matrix has no parameters of a map
        config = {"task": self.table, "system": point.system, "training": self.settings | own}
        task, system, settings = read_config(config)
        pruning = Pruning(trial, self.task.higher_is_better)
        before = spent([each for each in self.study.trials() if each.number != trial.number], 0)
        bar = ProgressBar(self.updates, before, self.progress)
        reason = ""
        try:
            with progress_watcher(bar, before, [folder], lambda: f"{name}, {point}", self.progress):
                train_or_resume(folder, task, system, settings, progress=False, callbacks=[pruning])
        except torch.OutOfMemoryError as error:
            reason = (str(error).strip().splitlines() or ["out of memory"])[0]
        finally:
            bar.close()
        score = read_score(folder, settings.seed)
        reason = reason or score.reason
        outcome = "diverged" if reason else "pruned" if pruning.pruned else "finished"
        attributes = {name: value for name, value in vars(score).items() if name not in ("seed", "reason")}
        for key, value in {**attributes, "reason": reason, "outcome": outcome}.items():
            trial.set_user_attr(key, None if isinstance(value, float) and math.isnan(value) else value)
        if outcome == "finished":
            self.study.study.tell(trial, score.valid_metric)
        else:
            if reason:
                pruning.report(math.nan, score.updates + 1)  # Optuna's sampler then avoids its neighbourhood
            self.study.study.tell(trial, state=TrialState.PRUNED)
        words = ", ".join(f"{key} {_shown(value)}" for key, value in trial.params.items())
        best = f"{self.task.metric_name} {score.valid_metric:.4g} after {score.updates:,} updates"
        self.announce(f"Trial {trial.number}: {outcome}, {best}; {words or point}.")

    def write(self, importance: Mapping[str, float] | None = None) -> None:
        """Write study.json from the study."""
        trials = self.study.trials()
        rows = [_row(each, self.folder) for each in trials if each.user_attrs.get(READY)]
        done = spent(trials, self.longest) + self.longest > self.updates
        running = any(row.state == "running" for row in rows)
        record = SearchRecord(
            self.request,
            "finished" if done and not running else "running" if running else "stopped",
            self.task.metric_name,
            self.task.higher_is_better,
            rows,
            importance or {},
        )
        record.write(self.folder, self.settings["device"])

    def _importance(self) -> dict[str, float]:
        """PED-ANOVA's importance of each drawn option; empty if there are too few finished trials to tell."""
        import optuna

        finished = [each for each in self.study.trials() if each.state == optuna.trial.TrialState.COMPLETE]
        if len(finished) < 2 or len({each.value for each in finished}) < 2:
            return {}
        return {name: float(share) for name, share in optuna.importance.get_param_importances(self.study.study).items()}


class Pruning(Callback):
    """Reports the best validation of a trial so far to its study, and stops the run if the study prunes it.

    Attributes:
        pruned: whether the study has pruned the trial.
    """

    def __init__(self, trial: Trial, higher: bool) -> None:
        self._trial, self._higher, self._best = trial, higher, math.nan
        self._reported = set(trial.study.get_trials(deepcopy=False)[trial.number].intermediate_values)

    @property
    def pruned(self) -> bool:
        return "pruned" in self._trial.user_attrs

    def after_validation(self, run: ActiveRun) -> None:
        better = run.valid_metric > self._best if self._higher else run.valid_metric < self._best
        if math.isnan(self._best) or better:
            self._best = run.valid_metric
        if run.step >= run.settings.steps:
            return
        if run.step not in self._reported:  # a resumed run repeats validations
            self.report(self._best, run.step)
            if self._trial.should_prune():
                self._trial.set_user_attr("pruned", run.step)
        if self.pruned and run.step >= self._trial.user_attrs["pruned"]:
            run.stop()

    def report(self, value: float, step: int) -> None:
        """Report a value once."""
        if step not in self._reported:
            self._trial.report(value, step)
            self._reported.add(step)

    def state_dict(self) -> dict[str, Any]:
        return {"best": self._best}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._best = float(state["best"])


def _row(trial: FrozenTrial, folder: Path) -> TrialRow:
    run = folder / trial_name(trial.number)
    found = {name: trial.user_attrs.get(name) for name in ("valid_metric", "valid_loss", "test_metric")}
    return TrialRow(
        number=trial.number,
        state=trial.user_attrs.get("outcome", "running"),
        reason=trial.user_attrs.get("reason", ""),
        drawn=dict(trial.params),
        hidden_size=trial.user_attrs["hidden_size"],
        parameters=trial.user_attrs["parameters"],
        updates=trial.user_attrs.get(UPDATES, 0) if trial.state.is_finished() else updates_made(run),
        seconds=trial.user_attrs.get("seconds") or 0.0,
        **{name: math.nan if value is None else value for name, value in found.items()},
    )


def _shown(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
