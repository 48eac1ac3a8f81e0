"""The documents' tables and figures as data, and what runs them again."""

from __future__ import annotations

from .catalog import load, names
from .run import Reproduction, reproduce
from .schema import Column, Recipe, Row, Scale, parse, read

__all__ = ["Column", "Recipe", "Reproduction", "Row", "Scale", "load", "names", "parse", "read", "reproduce"]
