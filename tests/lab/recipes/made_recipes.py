"""A small recipe that trains in a moment, to run the runner with."""

from __future__ import annotations

import copy
from typing import Any

from evenflow.lab.recipes import Recipe, parse

TABLE: dict[str, Any] = {
    "document": "made",
    "name": "table-1",
    "title": "A made table",
    "measures": "Nothing of interest.",
    "seeds": [1, 2],
    "ordering": [["orthogonal", "plain"]],
    "notes": ["A choice that was left open."],
    "columns": [
        {"name": "error", "measure": "best_loss", "better": "lower", "tolerance": 10.0},
        {"name": "parameters", "measure": "parameters", "better": "same"},
    ],
    "rows": [
        {"label": "plain", "use": ["plain"], "published": {"error": 0.2, "parameters": 105}},
        {"label": "orthogonal", "system": {"name": "urnn"}, "published": {"error": 0.1}, "spread": {"error": 0.01}},
    ],
    "task": {"name": "adding", "length": 10},
    "system": {"hidden_size": 8},
    "training": {"steps": 6, "batch_size": 3, "validate_every": 3, "validation_batches": 1, "log_every": 1,
                 "checkpoint_every": 2, "device": "cpu"},
    "sets": {"plain": {"system": {"name": "rnn"}}},
    "quick": {"training": {"steps": 4}, "note": "Quick: 4 updates."},
}  # fmt: skip


def table(**changes: Any) -> dict[str, Any]:
    """The tables of the made recipe, with changes at the top level."""
    return copy.deepcopy(TABLE) | changes


def made(**changes: Any) -> Recipe:
    return parse(table(**changes))
