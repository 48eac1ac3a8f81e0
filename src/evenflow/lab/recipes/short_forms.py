"""Short forms of a recipe file: what the recipes of a document share, and entries that stand for several rows."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from typing import Any

from evenflow.checks import unknown

from .schema import TABLES, Table


def write_out(recipe: Mapping[str, Any], shared: Mapping[str, Any]) -> Table:
    """The contents of a recipe file without its short forms.

    Args:
        recipe: the contents of the file.
        shared: `notes`, sentences by name, and `sets`, which all recipes of the document may refer to.
    """
    values = dict(recipe)
    values["sets"] = {**shared.get("sets", {}), **values.get("sets", {})}
    values["notes"] = [_note(note, shared.get("notes", {})) for note in values.get("notes", [])]
    for name in reversed(values.pop("use", [])):
        if name not in values["sets"]:
            raise ValueError(unknown("set of the recipe", name, values["sets"]))
        for table in TABLES:
            values[table] = {**values["sets"][name].get(table, {}), **values.get(table, {})}
    every_row = values.pop("every_row", {})
    values["rows"] = [
        row
        for entry in values.get("rows", [])
        for row in (expand({**every_row, **entry}) if isinstance(entry, Mapping) else [entry])
    ]
    if "ordering" in values:
        values["ordering"] = [chain for entry in values["ordering"] for chain in _chains(entry)]
    return values


def _note(note: str, shared: Mapping[str, str]) -> str:
    """A note: a sentence, or the name of one that the document's recipes share."""
    if note in shared or note.endswith("."):
        return shared.get(note, note)
    raise ValueError(unknown("note that is no sentence", note, shared))


def _chains(entry: list[str] | Mapping[str, Any]) -> list[list[str]]:
    """The chains of labels that an entry of `ordering` stands for: itself, or those of a table with `over`."""
    return [chain["chain"] for chain in expand(entry)] if isinstance(entry, Mapping) else [entry]


def expand(entry: Mapping[str, Any]) -> list[Table]:
    """The rows that an entry stands for: one for each combination of the values in its table `over`.

    ``{name}`` in a text is replaced by the value of that name; ``{group}`` and ``{line}`` by those of the entry. A list
    of published values has one for each row; an empty text stands for a value that was not published.

    >>> expand({"over": {"m": [0.0, 0.1]}, "label": "m={m}", "x": "{m}", "published": {"loss": [2, 1]}})
    [{'label': 'm=0', 'x': 0.0, 'published': {'loss': 2}}, {'label': 'm=0.1', 'x': 0.1, 'published': {'loss': 1}}]
    """
    rest = {key: value for key, value in entry.items() if key not in ("over", "published", "spread")}
    over = entry.get("over", {})
    rows: list[Table] = []
    for values in itertools.product(*over.values()):
        names = dict(zip(over, values, strict=True))
        names |= {key: fill(rest[key], names) for key in ("group", "line") if key in rest}
        rows.append(fill(rest, names) if over else rest)
    for key in {"published", "spread"} & entry.keys():
        for column, values in entry[key].items():
            listed = values if isinstance(values, list) else [values]
            if len(listed) != len(rows):
                raise ValueError(f"{key} {column!r} must have a value for each of {len(rows)} rows, got {values!r}")
            for row, value in zip(rows, listed, strict=True):
                if value != "":
                    row.setdefault(key, {})[column] = value
    return rows


def fill(value: Any, names: Mapping[str, Any]) -> Any:
    """`value` with ``{name}`` replaced in all its texts; a text that is only ``{name}`` becomes the value itself."""
    if isinstance(value, Mapping):
        return {key: fill(part, names) for key, part in value.items()}
    if isinstance(value, list):
        return [fill(part, names) for part in value]
    if not isinstance(value, str):
        return value

    def named(name: str) -> Any:
        if name not in names:
            raise ValueError(unknown(f"name in {value!r}", name, names))
        return names[name]

    whole = re.fullmatch(r"\{(\w+)\}", value)
    if whole:
        return named(whole[1])
    return re.sub(r"\{(\w+)\}", lambda part: _text(named(part[1])), value)


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
