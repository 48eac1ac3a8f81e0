"""Predictions for files, and how good they are: in blocks, so that a file may be larger than the memory."""

from __future__ import annotations

from .backtest import Backtest, backtest_file
from .continue_text import continue_text
from .evaluate_file import evaluate_file
from .predict_file import predict_file

__all__ = ["Backtest", "backtest_file", "continue_text", "evaluate_file", "predict_file"]
