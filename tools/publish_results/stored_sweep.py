"""The stored record of a sweep: sweeps/NAME.json, one line of JSON for each point.

It holds the request, the provenance, and every point's results at the end of the last round that it was in. Results of
earlier rounds remain in the sweep's own folder.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER, FORMAT = "sweeps", 1


@dataclass(frozen=True)
class StoredPoint:
    """A point of a sweep, with one result for each of its seeds, or None.

    Attributes:
        map, cell, activation, hidden_size, optimizer, lr: the candidate.
        parameters: number of trained parameters.
        state: "finished" if it was in the last round, else "out" or "diverged".
        updates: of each of its runs.
        valid, valid_loss: metric and loss of the best validation.
        test: test metric of the weights of the best validation.
        reason: why it diverged.
    """

    map: str
    cell: str
    activation: str
    hidden_size: int
    optimizer: str
    lr: float
    parameters: int
    state: str
    updates: int
    valid: Sequence[float | None]
    valid_loss: Sequence[float | None]
    test: Sequence[float | None]
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.map} {self.cell} {self.activation}, {self.hidden_size} units"


@dataclass(frozen=True)
class StoredSweep:
    """A finished sweep.

    Attributes:
        name: see `import_sweep.name_of`.
        evenflow, torch, hardware: provenance.
        began: start of the sweep as ISO 8601.
        seconds: duration, without interruptions.
        judged_by: the metric of `valid` and `test`.
        updates: of all runs.
        request: task, limit on parameters, axes, rules and training, without data folders.
        rounds: for each round its number of points, and the updates of each run at its end.
        points: best first.
        omitted: models that were left out, with their reasons.
    """

    name: str
    evenflow: str
    torch: str
    hardware: str
    began: str
    seconds: float
    judged_by: str
    updates: int
    request: Mapping[str, Any]
    rounds: Sequence[Sequence[int]]
    points: Sequence[StoredPoint]
    omitted: Sequence[Mapping[str, Any]]

    @property
    def path(self) -> str:
        """Path of the file below the results folder."""
        return f"{FOLDER}/{self.name}.json"

    def summary(self) -> str:
        count = len(self.points)
        return f"{FOLDER}/{self.name}: {count} point{'s' * (count > 1)}, the best of them {self.points[0]}."

    def text(self) -> str:
        """The text of the file."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        points, omitted = fields.pop("points"), fields.pop("omitted")
        head = json.dumps({"format": FORMAT, **fields}, ensure_ascii=False, allow_nan=False)
        lists = {"points": [_table(point) for point in points], "omitted": omitted}
        return head[:-1] + "".join(f', "{name}": {_lines(parts)}' for name, parts in lists.items()) + "}\n"


def _table(point: StoredPoint) -> dict[str, Any]:
    """A point's fields in order; an empty reason is left out."""
    return {k: v for k, v in dataclasses.asdict(point).items() if k != "reason" or v}


def _lines(parts: Sequence[Mapping[str, Any]]) -> str:
    rows = ",\n".join("  " + json.dumps(part, ensure_ascii=False, allow_nan=False) for part in parts)
    return f"[\n{rows}\n]" if parts else "[]"


def read(path: Path) -> StoredSweep:
    """A stored sweep; a damaged file raises a ValueError."""
    try:
        table = json.loads(path.read_text("utf-8"))
        if not isinstance(table, dict) or (table.pop("format", None), table.get("name")) != (FORMAT, path.stem):
            raise ValueError(f"it is no record of sweep {path.stem} in format {FORMAT}")
        points = [StoredPoint(**point) for point in table.pop("points")]
        if not points:
            raise ValueError("it has no points")
        return StoredSweep(**table, points=points)
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise ValueError(f"record {str(path)!r} cannot be read: {error}") from error


def read_all(into: Path) -> list[StoredSweep]:
    """The stored sweeps of a results folder, sorted by name."""
    return [read(path) for path in sorted((into / FOLDER).glob("*.json"))]
