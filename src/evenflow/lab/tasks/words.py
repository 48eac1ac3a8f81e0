"""The Penn Treebank word by word, as running text: predict the next word."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from evenflow.checks import whole_number
from evenflow.lab.data import read_words, vocabulary

from .data_set import FILE_PARTS, HOST, FileData
from .task import Batch, CarriedBatch, Position, move, option
from .written_text import WrittenText

SOLVED_PERPLEXITY = 100.0  # Lin and Wang's uGRU and GRU reach 98 on the test part


@dataclass(frozen=True)
class Words(FileData, WrittenText):
    """Predict the next word of a text after each word.

    The text is cut into as many streams as a batch has sequences. Each batch holds the next `length` words of every
    stream. The state is carried from one batch to the next and starts anew with each epoch, or with each batch if it is
    not carried; gradients reach back `length` steps (truncated backpropagation). Words at the end of a stream that do
    not fill a batch are left out in training and used in validations. Loss: cross entropy in nats; without memory it is
    the entropy of the words. Metric: perplexity, e to the mean loss; below 100 counts as solved.

    Shapes:
        inputs and targets ``(T, B)`` int64 below the number of words, 10,000 in the Penn Treebank.

    Args:
        length: T, the words of a batch and the steps that gradients reach back.
        embedding: width of the embedding of a word.
        carry: whether the state is carried from batch to batch, in training and in validations.
        data: the data folder.

        >>> task = Words(length=35)
        >>> task.epoch_steps(20)
        1327

    Reference: Mikolov et al. 2010; Zaremba et al. 2014.
    """

    length: int = option(35, "words of a batch, and steps that gradients reach back", whole=1)
    embedding: int = option(128, "width of the embedding of a word", whole=1)
    carry: bool = option(True, "carry the state from one batch to the next")

    name = "ptb-words"
    between = " "
    metric_name = "perplexity"
    solved_limit = SOLVED_PERPLEXITY
    limit_excluded = True

    @property
    def carries(self) -> bool:  # type: ignore[override]
        return self.carry

    def symbols(self) -> list[str]:
        return vocabulary(self.folder)

    @property
    def input_size(self) -> int:
        return self.embedding

    @property
    def baseline(self) -> float:
        counts = np.bincount(_text(self.folder, "train", HOST).numpy())
        share = counts[counts > 0] / counts.sum()
        return float(-(share * np.log(share)).sum())

    def metric(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.loss(outputs, targets)

    def summary(self, metric: float) -> float:
        return math.exp(min(metric, 700.0))  # the exponential of a larger number overflows

    def count(self) -> int:
        """The number of windows of `length` words and the word after them."""
        return self._checked_count(1) - self.length

    def take(self, rows: Tensor) -> Batch:
        """The windows that begin at these words."""
        text = self._words(rows.device)
        windows = text[rows + torch.arange(self.length + 1, device=rows.device)[:, None]]
        return Batch(windows[:-1], windows[1:])

    def batch(self, size: int, generator: torch.Generator, device: torch.device | str | None = None) -> Batch:
        """Draw windows from the whole text."""
        whole_number("size", size, 1)
        rows = torch.randint(self.count(), (size,), generator=generator, device=generator.device)
        return move(self.take(rows), device)

    def epoch_steps(self, size: int, processes: int = 1) -> int:
        streams = size * processes
        return (self._checked_count(streams) // streams - 1) // self.length

    def training_batch(self, size: int, position: Position, generator: torch.Generator) -> Batch:
        index = position.step % self.epoch_steps(size, position.processes)
        return self._window(self._streams(size, position, generator.device), index * self.length)

    def every_batch(self, size: int, position: Position, device: torch.device) -> Iterator[Batch]:
        streams = self._streams(size, position, device)
        for first in range(0, len(streams) - 1, self.length):
            yield self._window(streams, first)

    def _streams(self, size: int, position: Position, device: torch.device) -> Tensor:
        """This process's streams ``(words, B)``."""
        text, streams = self._words(device), size * position.processes
        each = len(text) // streams
        if each < 2:
            raise ValueError(
                f"the {self.part} text has {len(text):,} words, too few for {streams} streams of a word and the one "
                "after: make the batch smaller"
            )
        first = position.rank * size
        return text[: each * streams].view(streams, each)[first : first + size].T

    def _window(self, streams: Tensor, first: int) -> Batch:
        window = streams[first : first + self.length + 1].contiguous()
        return (CarriedBatch if first and self.carry else Batch)(window[:-1], window[1:])

    def _words(self, device: torch.device) -> Tensor:
        return _text(self.folder, FILE_PARTS[self.part], device)

    def _checked_count(self, streams: int) -> int:
        """The number of words, after a check that they fill one batch of every stream."""
        words = len(self._words(HOST))
        if words // streams <= self.length:
            raise ValueError(
                f"the {self.part} text has {words:,} words, too few for {streams} streams of length {self.length} "
                "and the word after: make the batch or length smaller"
            )
        return words


@lru_cache(maxsize=6)  # three parts, each on the device and, to count its words, on the CPU
def _text(folder: Path, part: str, device: torch.device) -> Tensor:
    return torch.from_numpy(read_words(folder, part).astype(np.int64)).to(device)
