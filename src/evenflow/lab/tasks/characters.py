"""The Penn Treebank character by character: one sentence is one sequence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from evenflow.lab.data import character_set, read_characters

from .classification import PADDING
from .data_set import FILE_PARTS, HOST, FileData
from .ragged import RaggedData
from .task import option
from .written_text import WrittenText

SOLVED_BITS = 2.04  # the best of Vorontsov et al. 2017, sentences of at most 75 characters


@dataclass(frozen=True)
class Characters(RaggedData, FileData, WrittenText):
    """Predict the next character of a sentence after each character.

    A sentence is its whole line, with its blanks and its end; `<unk>`, which stands for a rare word, is one symbol.
    Lines with more than `longest` characters, `<unk>` spelt out, are left out. Each sentence starts from the initial
    state and is padded to the longest of its batch; the loss ignores the padding.
    Loss: cross entropy in nats per character; without memory it is the entropy of the characters. Metric: bits per
    character; 2.04, the best of Vorontsov et al. 2017, counts as solved.

    Shapes:
        inputs ``(T, B)`` int64 below the number of symbols, 49 in the Penn Treebank; targets alike, -100 past the
        end; lengths ``(B,)``.

    Args:
        longest: the longest lines to use, in characters; the document has 75 and 300.
        embedding: width of the embedding of a character.
        data: the data folder.

        >>> task = Characters()
        >>> task.count(), task.vocabulary
        (9855, 49)

    Reference: Vorontsov et al. 2017.
    """

    longest: int = option(75, "most characters of a line; longer ones are left out", whole=2)
    embedding: int = option(49, "width of the embedding of a character", whole=1)

    name = "ptb-characters"
    metric_name = "bits"
    solved_limit = SOLVED_BITS
    padding = PADDING

    def symbols(self) -> list[str]:
        return character_set(self.folder)

    @property
    def input_size(self) -> int:
        return self.embedding

    @property
    def baseline(self) -> float:
        training = self.in_part("training").stored(HOST)
        counts = torch.bincount(training.values.long()).double()
        return float(torch.special.entr(counts / counts.sum()).sum())

    def metric(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.loss(outputs, targets) / math.log(2)

    def sequences(self) -> Sequence[np.ndarray]:
        sentences = read_characters(self.folder, FILE_PARTS[self.part], self.longest)
        return [sentences[n] for n in range(len(sentences))]
