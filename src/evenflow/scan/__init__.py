"""The scan: runs a cell over time, by a readable reference loop or by fused engines that agree with it."""

from evenflow.scan.backend import ENGINES, STORAGES
from evenflow.scan.projection import project
from evenflow.scan.recurrence import can_capture, scan
from evenflow.scan.state_checkpoints import checkpointed

__all__ = ["ENGINES", "STORAGES", "can_capture", "checkpointed", "project", "scan"]
