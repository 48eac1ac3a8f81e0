"""The loop over time: a readable reference, and fused ways that agree with it."""

from evenflow.scan.dispatch import ENGINES, project, recordable, scan
from evenflow.scan.state_checkpoints import checkpointed
from evenflow.scan.storage import STORAGES

__all__ = ["ENGINES", "STORAGES", "checkpointed", "project", "recordable", "scan"]
