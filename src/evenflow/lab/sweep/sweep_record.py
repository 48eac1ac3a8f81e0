"""sweep.json: the request, the rounds and the leaderboard of a sweep; an interrupted sweep continues from it."""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_type_hints

import torch

import evenflow
from evenflow.lab.data.guarded import LARGEST_RECORD, read_text
from evenflow.lab.training import atomic
from evenflow.lab.training.extend_run import Score

from .candidates import Omitted
from .halving import Round
from .leaderboard import RoundState, Standing

FILE, FORMAT = "sweep.json", 1


class SweepRecord:
    """Reads and writes the sweep.json of a folder.

    Args:
        folder: new, empty, or the folder of a sweep with the same request.
        request: everything that decides what the sweep does, as JSON can hold it.

    Attributes:
        rounds: the rounds so far.
        seconds: of the sessions before this one.
    """

    def __init__(self, folder: Path, request: Mapping[str, Any]) -> None:
        self.folder = folder
        self.request: dict[str, Any] = json.loads(json.dumps(request))
        self.rounds: list[RoundState] = []
        self.seconds = 0.0
        self.began = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        path = folder / FILE
        if not path.is_file():
            _refuse_used(folder)
            return
        try:
            table = json.loads(read_text(path, LARGEST_RECORD))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{FILE} of {str(folder)!r} cannot be read: {error}") from error
        try:
            self._read(table)
        except (LookupError, TypeError, AttributeError, ArithmeticError, StopIteration) as error:
            raise ValueError(f"{FILE} of {str(folder)!r} is damaged: it has not the form of a sweep") from error

    def _read(self, table: Mapping[str, Any]) -> None:
        before = table["request"]
        if before != self.request:
            name = next(key for key in [*self.request, *before] if before.get(key) != self.request.get(key))
            raise ValueError(
                f"folder {str(self.folder)!r} holds another sweep, of {name} {before.get(name)!r} and not "
                f"{self.request.get(name)!r}: choose another folder"
            )
        for each in table["rounds"]:
            rows = {name: tuple(_score(row) for row in scores) for name, scores in each.pop("scores").items()}
            entrants = each.pop("entrants")
            if not all(rows.values()) or not all(type(name) is str for name in entrants):
                raise LookupError("a point without a score, or without a name")
            self.rounds.append(RoundState(entrants=list(entrants), scores=rows, round=Round(**_typed(Round, each))))
        self.seconds, self.began = float(table["seconds"]), str(table["began"])

    def save(
        self,
        state: str,
        standings: Sequence[Standing],
        omitted: Sequence[Omitted],
        *,
        updates: int,
        seconds: float,
        hardware: str,
        metric_name: str,
    ) -> None:
        """Replace the file; `state` is running, stopped or finished."""
        table = {
            "format": FORMAT,
            "state": state,
            "evenflow": evenflow.__version__,
            "torch": str(torch.__version__),
            "hardware": hardware,
            "began": self.began,
            "seconds": round(self.seconds + seconds, 1),
            "judged_by": metric_name,
            "updates": updates,
            "request": self.request,
            "points": [_point(rank, standing) for rank, standing in enumerate(standings, 1)],
            "omitted": [dataclasses.asdict(each) for each in omitted],
            "rounds": [_round(each) for each in self.rounds],
        }
        content = json.dumps(table, indent=1, ensure_ascii=False, allow_nan=False)
        with atomic.writable(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            atomic.write(self.folder / FILE, content.encode())


def _point(rank: int, standing: Standing) -> dict[str, Any]:
    point = standing.point
    fields = {field.name: getattr(point, field.name) for field in dataclasses.fields(point)}
    place = {name: _finite(value) for name, value in vars(standing).items() if name not in ("point", "folders")}
    runs = [folder.name for folder in standing.folders]
    return {"rank": rank, "name": point.name, **fields, "system": dict(point.system), **place, "runs": runs}


def _round(state: RoundState) -> dict[str, Any]:
    scores = {
        name: [{key: _finite(value) for key, value in vars(score).items()} for score in state.scores[name]]
        for name in state.entrants  # runs may end in another order
        if name in state.scores
    }
    return {**vars(state.round), "entrants": state.entrants, "scores": scores}


def _score(table: Mapping[str, Any]) -> Score:
    return Score(**_typed(Score, {key: math.nan if value is None else value for key, value in table.items()}))


def _typed(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a data class; a TypeError for one of another type, also for a bool in the place of a number."""
    hints, typed = get_type_hints(kind), dict[str, Any]()
    for name, value in values.items():
        typed[name] = float(value) if hints[name] is float and type(value) is int else value
        if type(typed[name]) is not hints[name]:
            raise TypeError(name)
    return typed


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _refuse_used(folder: Path) -> None:
    if folder.is_dir() and any(not entry.name.startswith(atomic.TEMPORARY) for entry in folder.iterdir()):
        raise ValueError(f"folder {str(folder)!r} holds something other than a sweep: choose another folder")
