"""The labels of a recipe's rows: as they are typed, and as names of folders."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .schema import Recipe


def choose(recipe: Recipe, text: str) -> list[str]:
    """Labels from one text, with semicolons or commas between them; a label may itself hold a comma.

    >>> choose(load("sgornn/table-1"), "SGORNN, T=500, LSTM, T=500")
    ['SGORNN, T=500', 'LSTM, T=500']
    """
    if ";" in text:
        return [recipe.row(part.strip()).label for part in text.split(";") if part.strip()]
    parts, labels, chosen = [part.strip() for part in text.split(",")], [row.label for row in recipe.rows], []
    while parts:
        fits = [n for n in range(len(parts), 0, -1) if ", ".join(parts[:n]) in labels]
        chosen.append(recipe.row(", ".join(parts[: fits[0] if fits else 1])).label)
        del parts[: fits[0] if fits else 1]
    return chosen


def folder_name(label: str) -> str:
    """A label as the name of a folder: ``"sgornn, T = 500"`` is ``"sgornn-T-500"``."""
    kept = "".join(c if c.isalnum() or c in "._" else "-" for c in label)
    return "-".join(part for part in kept.split("-") if part) or "row"
