"""Recipes: tables and figures of the documents as data, and the code that runs them again."""

from __future__ import annotations

from .recipe_catalog import load, names, parse, read
from .recipe_run import reproduce
from .reproduction import Reproduction
from .schema import Column, Recipe, RecipeRow, RecipeScale

__all__ = [
    "Column",
    "Recipe",
    "RecipeRow",
    "RecipeScale",
    "Reproduction",
    "load",
    "names",
    "parse",
    "read",
    "reproduce",
]
