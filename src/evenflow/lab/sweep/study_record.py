"""study.json: the request and the trials of a search, for readers without Optuna, which keeps the study itself."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import evenflow
from evenflow.lab.data.guarded import read_text
from evenflow.lab.training import atomic
from evenflow.lab.training.launch import hardware

STUDY_FILE, FORMAT = "study.json", 1
LARGEST = 1 << 28  # bytes of a study.json; a trial takes about 500


@dataclass(frozen=True)
class TrialRow:
    """A trial of a search.

    Attributes:
        number: from 0, in the order in which trials were begun.
        state: running, finished, pruned, diverged, or left out.
        reason: why it is diverged or left out.
        drawn: what the sampler drew, by name.
        hidden_size, parameters: of its model.
        updates: so far.
        valid_metric, valid_loss, test_metric: as in `leaderboard.Standing`; nan if there are none.
        seconds: of its training.
    """

    number: int
    state: str
    reason: str
    drawn: Mapping[str, Any]
    hidden_size: int
    parameters: int
    updates: int
    valid_metric: float = math.nan
    valid_loss: float = math.nan
    test_metric: float = math.nan
    seconds: float = 0.0


@dataclass(frozen=True)
class SearchRecord:
    """What study.json holds.

    Attributes:
        request: what decides what the search does.
        state: finished, stopped or running.
        metric_name, higher_is_better: of `valid_metric`.
        trials: in the order of their numbers.
        importance: the share of each drawn option in what distinguishes good trials from others, the largest first;
            empty before there are enough trials.
    """

    request: Mapping[str, Any]
    state: str
    metric_name: str
    higher_is_better: bool
    trials: Sequence[TrialRow]
    importance: Mapping[str, float] = field(default_factory=dict)

    def ranked(self) -> list[TrialRow]:
        """The trials, best first: finished ones, then those with more updates; diverged and left out ones last."""
        sign = -1 if self.higher_is_better else 1
        order = ("finished", "running", "pruned", "diverged", "left out")

        def key(row: TrialRow) -> tuple[int, int, float, int]:
            value = math.inf if math.isnan(row.valid_metric) else sign * row.valid_metric
            return (order.index(row.state), 0 if row.state == "finished" else -row.updates, value, row.number)

        return sorted(self.trials, key=key)

    def write(self, folder: Path, device: str) -> None:
        """Replace study.json."""
        table = {
            "format": FORMAT,
            "state": self.state,
            "evenflow": evenflow.__version__,
            "torch": str(torch.__version__),
            "hardware": hardware(device),
            "judged_by": self.metric_name,
            "higher_is_better": self.higher_is_better,
            "updates": sum(row.updates for row in self.trials),
            "request": dict(self.request),
            "importance": dict(self.importance),
            "trials": [{k: _finite(v) for k, v in dataclasses.asdict(row).items()} for row in self.trials],
        }
        content = json.dumps(table, indent=1, ensure_ascii=False, allow_nan=False)
        with atomic.writable(folder):
            atomic.write(folder / STUDY_FILE, content.encode())

    @classmethod
    def read(cls, folder: Path) -> SearchRecord:
        """The record in a folder; a ValueError if there is none or it is damaged."""
        path = folder / STUDY_FILE
        if not path.is_file():
            raise ValueError(f"folder {str(folder)!r} holds no search: it has no {STUDY_FILE}")
        try:
            table = json.loads(read_text(path, LARGEST))
            rows = [_row(row) for row in table["trials"]]
            record = cls(
                dict(table["request"]),
                str(table["state"]),
                str(table["judged_by"]),
                bool(table["higher_is_better"]),
                rows,
                {str(name): float(share) for name, share in table["importance"].items()},
            )
            record.ranked()
        except (LookupError, TypeError, AttributeError, ValueError, RecursionError, OSError) as error:
            raise ValueError(f"{STUDY_FILE} of {str(folder)!r} cannot be read or is damaged") from error
        return record


def _row(table: Mapping[str, Any]) -> TrialRow:
    values: dict[str, Any] = {name: math.nan if value is None else value for name, value in table.items()}
    return TrialRow(**values)


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
