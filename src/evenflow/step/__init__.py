"""Translates one step of a cell, written in torch operations, into a program, its gradient, and code for all steps."""

from evenflow.step import program_text
from evenflow.step.hoist import hoisted
from evenflow.step.program import Program, translate
from evenflow.step.restart import restarting
from evenflow.step.trace import Untranslatable

__all__ = ["Program", "Untranslatable", "hoisted", "program_text", "restarting", "translate"]
