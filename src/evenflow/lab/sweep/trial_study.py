"""An Optuna study that several processes work on: which trial each of them trains, and what becomes of it."""

from __future__ import annotations

import importlib.util
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evenflow.lab.training.seeds import derive
from evenflow.runtime.lock_folder import lock_folder

if TYPE_CHECKING:
    from optuna.storages import BaseStorage
    from optuna.study import Study
    from optuna.trial import FrozenTrial, Trial

DATABASE, CLAIMS = "study.db", "claims"
REQUEST, READY, UPDATES = "request", "ready", "updates"  # attributes of a study, and of its trials
WAIT = 0.05  # seconds between two attempts to get the lock under which trials are claimed
PATIENCE = 60  # seconds that a process waits for the SQLite file while others write


def check_optuna() -> None:
    """Raise a ValueError if Optuna is not installed."""
    if importlib.util.find_spec("optuna") is None:
        raise ValueError("sampler optuna needs the package of that name: pip install 'evenflow[optuna]'")


def trial_name(number: int) -> str:
    """The name of a trial and of its run folder."""
    return f"trial-{number:04d}"


class TrialStudy:
    """The study of a folder, from which processes claim trials one at a time.

    A process holds a lock on a folder of the trial that it trains. If it dies the lock is gone, and the next process
    that asks for a trial continues this one; on a file system without locks nobody does. What the sampler draws for a
    trial follows from the seed and from the trials before it, so a single process that is killed and started again ends
    with the same trials.

    Args:
        folder: of the sweep; it exists.
        address: a URL of Optuna, such as ``"postgresql://..."``. Default: an SQLite file in the folder.
        maximize: whether the metric is better if it is higher.
        request: everything that decides what the study does; a study of another request raises a ValueError.
        pruner: options of Optuna's SuccessiveHalvingPruner.
        seed: of the sampler.
    """

    def __init__(
        self,
        folder: Path,
        address: str | None,
        maximize: bool,
        request: Mapping[str, Any],
        pruner: Mapping[str, int],
        seed: int,
    ) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._folder, self._own, self._seed = folder, address is None, seed
        self._pruner = dict(pruner)
        with self._alone():
            self.study: Study = optuna.create_study(
                storage=_open_storage(folder, address),
                study_name=folder.resolve().name,
                direction="maximize" if maximize else "minimize",
                pruner=optuna.pruners.SuccessiveHalvingPruner(**self._pruner),
                load_if_exists=True,
            )
            self._check(json.loads(json.dumps(request)))

    def trials(self) -> list[FrozenTrial]:
        """All trials so far."""
        return self.study.get_trials(deepcopy=False)

    @contextmanager
    def claimed(self, budget: int, each: int) -> Iterator[Trial | None]:
        """A trial to train, which no other process trains meanwhile; None if the rest of the budget is too small.

        Args:
            budget: updates of all trials; those that are under way count as `each`.
            each: updates of a trial that is not pruned.
        """
        with self._alone() as locks:
            trial, lock = self._abandoned() if locks else (None, None)
            if trial is None and spent(self.trials(), each) + each <= budget:
                trial, lock = self._new()
        if trial is None:
            yield None
            return
        try:
            yield trial
        finally:
            if lock is not None:
                os.close(lock)

    def _abandoned(self) -> tuple[Trial, int | None] | tuple[None, None]:
        """A trial whose process has died. Of other machines that do not share the folder nothing is known."""
        import optuna
        from optuna.trial import TrialState

        for frozen in self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            place = self._place(frozen.number)
            if not place.is_dir():
                if self._own:  # it died between two writes
                    self.study.tell(frozen.number, state=TrialState.FAIL)
                continue
            try:
                lock = lock_folder(place)
            except BlockingIOError:
                continue
            if READY in frozen.user_attrs:
                return optuna.trial.Trial(self.study, frozen._trial_id), lock  # Optuna has no other way to go on
            self.study.tell(frozen.number, state=TrialState.FAIL)  # it died before all of it was drawn
            if lock is not None:
                os.close(lock)
        return None, None

    def _new(self) -> tuple[Trial, int | None]:
        import optuna
        from optuna.trial import TrialState

        number = sum(trial.state != TrialState.FAIL for trial in self.trials())
        self.study.sampler = optuna.samplers.TPESampler(seed=derive(self._seed, "sampler", number) % 2**32, group=True)
        trial = self.study.ask()
        place = self._place(trial.number)
        place.mkdir(parents=True, exist_ok=True)
        return trial, lock_folder(place)

    def _place(self, number: int) -> Path:
        return self._folder / CLAIMS / trial_name(number)

    @contextmanager
    def _alone(self) -> Iterator[bool]:
        """Keep the other processes from claiming a trial inside the block; False where the file system has no locks."""
        place = self._folder / CLAIMS
        place.mkdir(parents=True, exist_ok=True)
        while True:
            try:
                lock = lock_folder(place)
                break
            except BlockingIOError:
                time.sleep(WAIT)
        try:
            yield lock is not None
        finally:
            if lock is not None:
                os.close(lock)

    def _check(self, request: dict[str, Any]) -> None:
        before = self.study.user_attrs.get(REQUEST)
        if before is None and not self.trials():
            self.study.set_user_attr(REQUEST, request)
        elif before != request:
            earlier = before or {}
            name = next(key for key in [*request, *earlier] if earlier.get(key) != request.get(key))
            raise ValueError(
                f"folder {str(self._folder)!r} holds another search, of {name} {earlier.get(name)!r} and not "
                f"{request.get(name)!r}: choose another folder"
            )


def spent(trials: list[FrozenTrial], each: int) -> int:
    """The updates of all trials; one that is under way counts as `each`."""
    from optuna.trial import TrialState

    return sum(each if trial.state == TrialState.RUNNING else trial.user_attrs.get(UPDATES, 0) for trial in trials)


def _open_storage(folder: Path, url: str | None) -> str | BaseStorage:
    """Optuna's storage; a ValueError if it cannot be opened."""
    import optuna
    from sqlalchemy.exc import SQLAlchemyError

    address = url or f"sqlite:///{(folder / DATABASE).absolute()}"
    patient = {"connect_args": {"timeout": PATIENCE}} if address.startswith("sqlite") else {}
    try:
        return optuna.storages.RDBStorage(address, engine_kwargs=patient)
    except (SQLAlchemyError, ImportError, ValueError, RuntimeError) as error:
        said = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ValueError(f"study {address!r} cannot be opened: {said}") from error
