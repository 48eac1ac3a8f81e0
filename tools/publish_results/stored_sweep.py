"""The committed record of a sweep: sweeps/NAME.json, one line of JSON for each point.

What was asked, what made it and when, and every point's numbers at the end of the last round it was in. Those of the
rounds before are left in the sweep's own folder.
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
    """A point: what it is, how far it came, and one number for each of its seeds, None where there is none.

    Attributes:
        state: finished (it was in the last round), out or diverged.
        updates: of each of its runs.
        valid, valid_loss: of the best validation; test: of the weights there.
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
    """A sweep that is over.

    Attributes:
        name: see `import_sweep.name_of`.
        began: the moment, as ISO 8601; seconds: of all sittings; updates: of all runs.
        judged_by: the metric of `valid` and `test`.
        request: task, parameters, axes, rules and training, without the places where data lay.
        rounds: of each the points in it and the updates that they had made at its end.
        points: best first.
        omitted: models that were no candidates, with their reasons.
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
        """Where it lies below the results folder."""
        return f"{FOLDER}/{self.name}.json"

    def summary(self) -> str:
        count = len(self.points)
        return f"{FOLDER}/{self.name}: {count} point{'s' * (count > 1)}, the best of them {self.points[0]}."

    def text(self) -> str:
        """The file."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        points, omitted = fields.pop("points"), fields.pop("omitted")
        head = json.dumps({"format": FORMAT, **fields}, ensure_ascii=False, allow_nan=False)
        lists = {"points": [_table(point) for point in points], "omitted": omitted}
        return head[:-1] + "".join(f', "{name}": {_lines(parts)}' for name, parts in lists.items()) + "}\n"


def _table(point: StoredPoint) -> dict[str, Any]:
    """A point's fields in their order; a reason only where there is one."""
    return {k: v for k, v in dataclasses.asdict(point).items() if k != "reason" or v}


def _lines(parts: Sequence[Mapping[str, Any]]) -> str:
    rows = ",\n".join("  " + json.dumps(part, ensure_ascii=False, allow_nan=False) for part in parts)
    return f"[\n{rows}\n]" if parts else "[]"


def read(path: Path) -> StoredSweep:
    """A committed sweep; a ValueError in one sentence if the file is damaged."""
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
    """The committed sweeps of a results folder, by name."""
    return [read(path) for path in sorted((into / FOLDER).glob("*.json"))]
