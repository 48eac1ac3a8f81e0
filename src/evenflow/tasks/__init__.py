"""Problems with a loss, a metric, the loss of a memoryless guesser, and a criterion for solved."""

from __future__ import annotations

from .adding import Adding
from .copy import Copy
from .registry import TASKS, make
from .task import Batch, Task

__all__ = ["TASKS", "Adding", "Batch", "Copy", "Task", "make"]
