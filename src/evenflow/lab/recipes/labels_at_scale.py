"""Labels of rows at a scale: a row with shorter sequences than the document's carries its own length."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from .configs import config_of
from .cost import time_steps
from .schema import Recipe, RecipeRow

LETTERS = "[TNL]"  # what the documents call the length of a sequence


def labels_at(recipe: Recipe, scale: str) -> dict[str, str]:
    """The label of every row in the recipe's file, and at a scale.

    >>> labels_at(load("sgornn/table-1"), "quick")["LSTM, T=5000"]
    'LSTM, T=100 for 5000'
    """
    return {row.label: _rename(recipe, row, scale)(row.label) for row in recipe.rows}


def at_scale(recipe: Recipe, scale: str) -> Recipe:
    """The recipe with the lengths of a scale in its labels, groups, lines and ordering."""
    labels = labels_at(recipe, scale)

    def chains(ordering: tuple[tuple[str, ...], ...]) -> tuple[tuple[str, ...], ...]:
        return tuple(tuple(labels[label] for label in chain) for chain in ordering)

    own = recipe.scale(scale)
    ordering = own.ordering if isinstance(own.ordering, bool) else chains(own.ordering)
    rows = None if own.rows is None else tuple(labels[label] for label in own.rows)
    changed = {scale: replace(own, rows=rows, ordering=ordering)}
    renamed = tuple(_renamed(recipe, row, scale) for row in recipe.rows)
    return replace(recipe, rows=renamed, ordering=chains(recipe.ordering), **changed)  # type: ignore[arg-type]


def _renamed(recipe: Recipe, row: RecipeRow, scale: str) -> RecipeRow:
    rename = _rename(recipe, row, scale)
    return replace(row, label=rename(row.label), group=rename(row.group), line=rename(row.line))


def _rename(recipe: Recipe, row: RecipeRow, scale: str) -> Callable[[str], str]:
    """A function that writes the length of this row at a scale into a text; it changes a text once at most."""
    full, own = (config_of(recipe, row, name)["task"] for name in ("full", scale))
    lengths = full.get("length"), own.get("length")
    steps = time_steps(full), time_steps(own)

    def rename(text: str) -> str:
        if None not in lengths and lengths[0] != lengths[1]:
            text = re.sub(rf"\b({LETTERS})={lengths[0]}\b", rf"\g<1>={lengths[1]} for {lengths[0]}", text)
        if steps[0] != steps[1]:
            text = re.sub(rf"\b{steps[0]:g} steps\b", f"{steps[1]:g} steps for {steps[0]:g}", text)
        return text

    return rename
