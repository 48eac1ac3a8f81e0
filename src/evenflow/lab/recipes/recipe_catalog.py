"""Reads and checks recipe files, and lists those that come with evenflow."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from evenflow.checks import one_of, unknown
from evenflow.lab.data.guarded import LARGEST_RECORD, read_text

from .measures import MEASURES
from .recipe_curves import FIGURE_NAMES
from .schema import SCALES, TABLES, Column, Recipe, RecipeRow, RecipeScale, folder_name
from .short_forms import write_out

HOME = Path(__file__).parent
DOCUMENTS = {
    "urnn": "uRNN: An Approach to Bounded Gradients (Lin, Wang)",
    "factorized": "On orthogonality and learning recurrent networks with long term dependencies (Vorontsov et al.)",
    "sgornn": "SGORNN: combining scalar gates and orthogonal constraints",
    "galvan": "On recurrent neural networks (Galvan)",
    "spectral": "Stabilizing gradients via efficient SVD parameterization (Zhang, Lei, Dhillon)",
}


def names() -> list[str]:
    """All recipes as document/name, in the order of the documents."""
    return [f"{document}/{path.stem}" for document in DOCUMENTS for path in sorted((HOME / document).glob("*.toml"))]


def load(name: str) -> Recipe:
    """The recipe ``document/name``; the name of a figure that shares its runs with a table returns the table's recipe.

    >>> load("sgornn/figure-2").address
    'sgornn/table-1'
    """
    if name in names():
        return _load(name)
    aliases = {f"{_load(address).document}/{other}": address for address in names() for other in _load(address).also}
    if name in aliases:
        return _load(aliases[name])
    raise ValueError(unknown("recipe", name, [*names(), *aliases]))


@cache
def _load(name: str) -> Recipe:
    return read(HOME / f"{name}.toml")


def read(path: Path) -> Recipe:
    """The recipe in a TOML file; a ValueError names the file and what is wrong with it.

    The document and the name are those of the folder and of the file, unless the file has them.
    """
    try:
        place = {"document": path.absolute().parent.name, "name": path.stem}
        return parse(place | tomllib.loads(read_text(path, LARGEST_RECORD)))
    except ValueError as error:
        raise ValueError(f"recipe {path.name}: {error}") from error
    except (TypeError, AttributeError, LookupError, RecursionError) as error:  # a list for a table, and the like
        raise ValueError(f"recipe {path.name}: it has not the form of a recipe ({error})") from error


def parse(table: Mapping[str, Any]) -> Recipe:
    """A recipe from the contents of its file."""
    values = write_out(table, _shared(str(table.get("document"))))
    values["columns"] = [_build(Column, column, "a column") for column in values.get("columns", [])]
    values["rows"] = [_build(RecipeRow, row, f"row {row.get('label', '?')!r}") for row in values.get("rows", [])]
    for scale in SCALES:
        if scale in values:
            values[scale] = _build(RecipeScale, values[scale], f"scale {scale}")
    recipe = _build(Recipe, values, "a recipe")
    _check(recipe)
    return recipe


@cache
def _shared(document: str) -> dict[str, Any]:
    """The notes and sets that the recipes of a document share."""
    path = HOME / f"{document}.toml"
    return tomllib.loads(path.read_text("utf-8")) if document in DOCUMENTS and path.is_file() else {}


def _build(kind: type, values: Mapping[str, Any], what: str) -> Any:
    """A data class from a table. Unknown and missing keys raise a ValueError; lists become tuples."""
    if not isinstance(values, Mapping):
        raise ValueError(f"{what} must be a table, got {values!r}")
    fields = {f.name: f for f in dataclasses.fields(kind)}
    for key in values:
        if key not in fields:
            raise ValueError(unknown(f"key of {what}", key, fields))
    for name, f in fields.items():
        required = f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        if required and name not in values:
            raise ValueError(f"{what} must have a {name}")
    return kind(**{key: _to_tuple(value) for key, value in values.items()})


def _to_tuple(value: Any) -> Any:
    return tuple(_to_tuple(part) for part in value) if isinstance(value, list) else value


def _check(recipe: Recipe) -> None:
    one_of("search", recipe.search, ("until-converged", "best"))
    if not recipe.columns or not recipe.rows:
        raise ValueError("a recipe must have at least one column and one row")
    for column in recipe.columns:
        _require("measure", [column.measure], MEASURES)
        one_of("better", column.better, ("higher", "lower", "same"))
    _require("figure", recipe.figures, FIGURE_NAMES)
    if len({folder_name(row.label) for row in recipe.rows}) < len(recipe.rows):
        raise ValueError("rows must have different labels")
    columns = [column.name for column in recipe.columns]
    for row in recipe.rows:
        _require(f"column of row {row.label!r}", [*row.published, *row.spread], columns)
        _require(f"set of row {row.label!r}", row.use, recipe.sets)
    for sets in (recipe.sets, recipe.quick.sets, recipe.full.sets):
        _require("set of a scale", sets, recipe.sets)
        for name, table in sets.items():
            _require(f"table of set {name!r}", table, TABLES)
    for scale in SCALES:
        chains = [*recipe.claims(scale), recipe.scale(scale).rows or ()]
        for label in (label for chain in chains for label in chain):
            recipe.row(label)


def _require(what: str, values: Any, allowed: Any) -> None:
    for value in values:
        if value not in allowed:
            raise ValueError(unknown(what, value, allowed))
