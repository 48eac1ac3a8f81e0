"""Problems with a loss, a metric, the loss of a memoryless guesser, and a criterion for solved."""

from __future__ import annotations

from .adding import Adding
from .copy import Copy
from .curriculum import Curriculum
from .digits import Digits
from .kth_largest import KthLargest
from .multiplication import Multiplication
from .recall_first import RecallFirst
from .registry import TASKS, make
from .task import Batch, Task
from .temporal_order import TemporalOrder
from .xor import Xor

__all__ = [
    "TASKS",
    "Adding",
    "Batch",
    "Copy",
    "Curriculum",
    "Digits",
    "KthLargest",
    "Multiplication",
    "RecallFirst",
    "Task",
    "TemporalOrder",
    "Xor",
    "make",
]
