"""The loop over time: a readable reference, and fused ways that agree with it."""

from evenflow.scan.checkpoint import checkpointed
from evenflow.scan.dispatch import ENGINES, project, recordable, scan

__all__ = ["ENGINES", "checkpointed", "project", "recordable", "scan"]
