"""The Penn Treebank character by character, one sentence a sequence."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from evenflow.checks import whole_number
from evenflow.lab.data.treebank_files import character_set, read_characters

from .data_set import HOST, FileData
from .next_symbol import PADDING, NextSymbol
from .ragged import Ragged, RaggedData, inside
from .task import Batch, option

FILES = {"training": "train", "validation": "valid", "test": "test"}
SOLVED_BITS = 2.04  # the best of Vorontsov et al., sentences of at most 75 characters


@dataclass(frozen=True)
class Characters(RaggedData, FileData, NextSymbol):
    """A sentence letter by letter; after each, the one that follows.

    Sentences longer than `longest` are left out, and so are those of one character, which ask for nothing. Each starts
    from the initial state and is padded to the longest of its batch; what is padded is not asked for. Loss: cross
    entropy in nats per character; without memory it is that of the shares of the characters. Metric: bits per
    character; 2.04, the best of Vorontsov et al. 2017, counts as solved.

    Shapes:
        inputs ``(T, B)`` int64 below the number of characters, 49 in the Penn Treebank; targets alike, -100 past the
        end; lengths ``(B,)``.

    Args:
        longest: most characters of a sentence; the document has 75 and 300.
        embedding: width of the embedding of a character.
        data: the data folder.

        >>> task = Characters()
        >>> task.count(), task.vocabulary
        (10603, 49)

    Reference: Vorontsov et al. 2017.
    """

    longest: int = option(75, "most characters of a sentence; longer ones are left out")
    embedding: int = option(49, "width of the embedding of a character")

    name: ClassVar[str] = "ptb-characters"

    def __post_init__(self) -> None:
        whole_number("longest", self.longest, 2)
        whole_number("embedding", self.embedding, 1)

    @property
    def vocabulary(self) -> int:
        return len(character_set(self.folder))

    @property
    def input_size(self) -> int:
        return self.embedding

    @property
    def metric_name(self) -> str:
        return "bits"

    @property
    def baseline(self) -> float:
        training = _keep(self.folder, FILES["training"], self.longest, HOST)
        counts = torch.bincount(training.values.long()).double()
        return float(torch.special.entr(counts / counts.sum()).sum())

    def metric(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.loss(outputs, targets) / math.log(2)

    def solved(self, metric: float) -> bool:
        return metric <= SOLVED_BITS

    @property
    def unasked(self) -> float:
        return PADDING

    def kept(self, device: torch.device) -> Ragged:
        return _keep(self.folder, FILES[self.part], self.longest, device)

    def take(self, rows: Tensor, longest: int | None = None) -> Batch:
        symbols, lengths = self.kept(rows.device).padded(rows, longest)
        asked = inside(lengths - 1, len(symbols) - 1)
        symbols = symbols.long()
        return Batch(symbols[:-1] * asked, torch.where(asked, symbols[1:], PADDING), lengths - 1)


@lru_cache(maxsize=6)
def _keep(folder: Path, part: str, longest: int, device: torch.device) -> Ragged:
    read = read_characters(folder, part, longest)
    lengths = np.diff(read.offsets)
    symbols = read.symbols[np.repeat(lengths > 1, lengths)]
    return Ragged.cut(symbols, lengths[lengths > 1], device)
