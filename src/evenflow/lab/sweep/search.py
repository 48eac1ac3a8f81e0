"""Search ranges of numbers with Optuna: trials drawn by a sampler and pruned by their validation."""

from __future__ import annotations

import dataclasses
import itertools
import os
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from evenflow.checks import number, one_of, whole_number
from evenflow.lab import tasks
from evenflow.lab.training import atomic
from evenflow.lab.training.launch import check_device
from evenflow.lab.training.settings import Settings
from evenflow.lab.training.stopping import TimeUp, time_limit

from .search_space import LR, SearchSpace
from .search_worker import SearchWorker
from .study_record import SearchRecord
from .sweep import CHOSEN_SETTINGS, EXCLUDED_SETTINGS
from .trial_study import CLAIMS, DATABASE, TrialStudy, check_optuna

FIXED = ("seed", "device", "log_every", "validate_every", "validation_batches", "checkpoint_every", "probe_every")


@dataclass(frozen=True)
class SearchRules:
    """How a search spends its budget.

    Args:
        updates: the budget, summed over all trials.
        each: updates of a trial that is not pruned. Default: a twentieth of the budget.
        first: updates before a trial can be pruned; also the distance of its validations.
        keep: the share of trials that is not pruned after `first` updates, of those after 1 / keep times as many
            updates, and so on; at most 0.5. Its inverse is rounded to a whole number.
        finish: "linear" (the learning rate falls to zero over `each` updates) or "constant".

    Reference: Li et al. 2020 (asynchronous successive halving).
    """

    updates: int
    each: int | None = None
    first: int = 500
    keep: float = 0.33
    finish: str = "linear"

    def __post_init__(self) -> None:
        for name in ("updates", "first"):
            whole_number(name, getattr(self, name), 1)
        if self.each is None:
            object.__setattr__(self, "each", max(self.first, self.updates // 20))
        whole_number("each", self.each, 1)
        one_of("finish", self.finish, ("linear", "constant"))
        number("keep", self.keep, above=0, most=0.5)
        if self.longest > self.updates:
            raise ValueError(f"updates must be at least the {self.longest} of one trial, got {self.updates}")

    @property
    def longest(self) -> int:
        """Updates of a trial that is not pruned."""
        assert self.each is not None
        return self.each


def search(
    task: Mapping[str, Any],
    space: SearchSpace,
    rules: SearchRules,
    folder: str | os.PathLike[str],
    *,
    parameters: int | None = None,
    training: Mapping[str, Any] | None = None,
    study: str | None = None,
    seconds: float | None = None,
    progress: bool = True,
    announce: Callable[[str], None] = lambda _: None,
) -> SearchRecord:
    """Search a space with Optuna's TPE sampler, and prune trials whose validation falls behind.

    The same call in several processes, also on several machines, works on one study. After an interruption the same
    call continues trials that were under way from their checkpoints.

    Args:
        task: a table as in `train`.
        space: what is drawn.
        rules: how the budget of updates is spent. Several processes share it.
        folder: gets one run folder for each trial, study.json and, without `study`, the study. Machines that share a
            study share the folder, or each has one of the same name.
        parameters: the largest number of trained parameters of a model; None for no limit.
        training: settings of all trials, as for `sweep`.
        study: a URL of Optuna, such as ``"postgresql://user@host/optuna"``. Default: an SQLite file in the folder.
        seconds: stop after this time; the same call continues.
        progress: show a progress bar on a terminal.
        announce: called with a sentence for each trial.

    Raises:
        ValueError: an argument is not allowed; nothing has been written.

        >>> space = SearchSpace(Axes(maps=["svd"], cells=["elman"]), {"margin": Range(0.01, 0.5, False)})
        >>> search({"name": "digits"}, space, SearchRules(updates=20000, first=100), "runs/margins").ranked()[0].drawn

    Reference: Akiba et al. 2019; Watanabe 2023 (TPE).
    """
    began = time.monotonic()
    check_optuna()
    options = dict(task)
    if "name" not in options:
        raise ValueError(f"task must be a table with a name, got {options}")
    instance = tasks.make(options.pop("name"), **options)
    settings = _settings(space, rules, dict(training or {}))
    instance.batch(1, torch.Generator().manual_seed(0))  # an error if its data is missing
    if parameters is not None:
        whole_number("parameters", parameters, 1)
    space.check(instance, parameters)
    request = {
        "task": {"name": instance.reference}
        | {name: value for name, value in instance.options().items() if name != "data"},
        "parameters": parameters,
        **dataclasses.asdict(space.axes),
        "ranges": space.request(),
        **dataclasses.asdict(rules),
        "training": {name: value for name, value in settings.items() if name != "device"},
    }
    place = Path(folder)
    _refuse_used(place)
    with warnings.catch_warnings(), suppress(TimeUp), time_limit(seconds, began):
        warnings.filterwarnings("ignore", module=r"optuna\.")  # experimental arguments, few trials
        with atomic.writable(place):
            place.mkdir(parents=True, exist_ok=True)
            pruner = {"min_resource": rules.first, "reduction_factor": round(1 / rules.keep)}
            opened = TrialStudy(place, study, instance.higher_is_better, request, pruner, settings["seed"])
        SearchWorker(
            study=opened,
            task=instance,
            table=dict(task),
            space=space,
            updates=rules.updates,
            longest=rules.longest,
            settings=settings,
            request=request,
            parameters=parameters,
            folder=place,
            progress=progress,
            announce=announce,
        ).run()
    return SearchRecord.read(place)


def _settings(space: SearchSpace, rules: SearchRules, training: dict[str, Any]) -> dict[str, Any]:
    """The settings that all trials share; a ValueError names a setting that a search does not allow."""
    for name in (*CHOSEN_SETTINGS, *EXCLUDED_SETTINGS):
        if name in training:
            raise ValueError(f"{name} must be left to the search, got {training[name]!r}")
    for name, each in space.settings().items():
        if name != LR and name in (*CHOSEN_SETTINGS, *EXCLUDED_SETTINGS, *FIXED):
            raise ValueError(f"range {name} must not be drawn from, the setting is the same in all trials, got {each}")
        if name in training:
            raise ValueError(f"range {name} must not be set besides, got {training[name]!r} too")
    shared: dict[str, Any] = {
        "validate_every": rules.first,
        "checkpoint_every": rules.first,
        "device": "auto",
        "seed": 0,
    }
    shared |= training | {"steps": rules.longest, "schedule": rules.finish}
    lrs = [space.ranges[LR].low, space.ranges[LR].high] if LR in space.ranges else list(space.axes.lrs)
    ends = [{n: getattr(r, end) for n, r in space.settings().items() if n != LR} for end in ("low", "high")]
    for optimizer, lr, drawn in itertools.product(space.axes.optimizers, lrs, ends):
        whole = {name: int(value) if space.ranges[name].whole else value for name, value in drawn.items()}
        Settings.from_dict(shared | {"optimizer": optimizer, "lr": lr} | whole)
    check_device(shared["device"])
    return shared


def _refuse_used(folder: Path) -> None:
    """Raise a ValueError if the folder holds something other than a search."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise ValueError(f"folder {str(folder)!r} is a file, and runs need a folder")
    held = {entry.name for entry in folder.iterdir() if not entry.name.startswith(atomic.TEMPORARY)}
    if held and CLAIMS not in held and DATABASE not in held:
        raise ValueError(f"folder {str(folder)!r} holds something other than a search: choose another folder")
