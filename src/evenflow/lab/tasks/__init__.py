"""The tasks: problems to train on, each with a loss, a metric, a baseline and a criterion for solved."""

from __future__ import annotations

from .adding import Adding
from .characters import Characters
from .cifar import NoisePaddedCifar, SequentialCifar
from .copy import Copy
from .curriculum import Curriculum
from .data_set import DataSet
from .digits import Digits
from .forecasting import Lorenz, MackeyGlass
from .har import Har, HarRebuilt, HarSubset
from .kth_largest import KthLargest
from .multilabel import MultilabelRows
from .multiplication import Multiplication
from .music import Music
from .own_formats import CsvData, NpzData
from .pixels import FashionPixels, Pixels
from .recall_first import RecallFirst
from .registry import TASKS, make
from .state_tracking import StateTracking
from .synthetic import Draw, Synthetic
from .task import Batch, Position, Task, option
from .temporal_order import TemporalOrder
from .ucr import Ucr
from .words import Words
from .xor import Xor

__all__ = [
    "TASKS",
    "Adding",
    "Batch",
    "Characters",
    "Copy",
    "CsvData",
    "Curriculum",
    "DataSet",
    "Digits",
    "Draw",
    "FashionPixels",
    "Har",
    "HarRebuilt",
    "HarSubset",
    "KthLargest",
    "Lorenz",
    "MackeyGlass",
    "MultilabelRows",
    "Multiplication",
    "Music",
    "NoisePaddedCifar",
    "NpzData",
    "Pixels",
    "Position",
    "RecallFirst",
    "SequentialCifar",
    "StateTracking",
    "Synthetic",
    "Task",
    "TemporalOrder",
    "Ucr",
    "Words",
    "Xor",
    "make",
    "option",
]
