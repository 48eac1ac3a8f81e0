"""From one step of a cell, written in torch operations, to code for all steps."""

from evenflow.step import text
from evenflow.step.prelude import hoisted
from evenflow.step.program import Program, translate
from evenflow.step.trace import Untranslatable

__all__ = ["Program", "Untranslatable", "hoisted", "text", "translate"]
