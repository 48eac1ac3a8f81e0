"""Colours and markers of a recipe's rows, and the legend and caption of its figures."""

from __future__ import annotations

from typing import Any

from evenflow.lab.report.plotting import legend_key, legend_mark

from .recipe_curves import CURVES, shown_by_metric
from .reproduction import Reproduction
from .schema import Recipe, RecipeRow


def row_groups(result: Reproduction) -> dict[str, list[RecipeRow]]:
    """The rows that ran, by group, in order."""
    groups: dict[str, list[RecipeRow]] = {}
    for row in result.rows:
        groups.setdefault(row.group, []).append(row)
    return groups


def style_index(recipe: Recipe, row: RecipeRow) -> int:
    """Number of the colour and marker of a row: the position of its line, or its position in its group."""
    if row.line:
        return list(dict.fromkeys(r.line for r in recipe.rows)).index(row.line)
    return [r.label for r in recipe.rows if r.group == row.group].index(row.label)


def legend(result: Reproduction) -> list[dict[str, Any]]:
    """Names of rows with their legend keys; rows of one line share one entry."""
    styles: dict[str, int] = {}
    several = len(row_groups(result)) > 1
    for row in result.rows:
        in_group = several and row.group and row.group not in row.label
        name = row.line or (f"{row.group}: {row.label}" if in_group else row.label)
        styles.setdefault(name, style_index(result.recipe, row))
    return [{"label": name, "index": at, "key": legend_key(at), "mark": legend_mark(at)} for name, at in styles.items()]


def caption(recipe: Recipe) -> str:
    """What dashed lines and stars of the recipe's figures mean; empty if the figures have neither."""
    curves = [CURVES[kind] for kind in recipe.figures if kind in CURVES]
    sentences = [f"Dashed: {dashed}." for dashed in dict.fromkeys(curve.dashed for curve in curves) if dashed]
    first = recipe.columns[0]
    published = any(first.name in row.published for row in recipe.rows)
    marked = any(curve.marks for curve in curves) and shown_by_metric(first)
    if published and ("dots" in recipe.figures or marked):
        sentences.append("Stars: published numbers.")
    return " ".join(sentences)
