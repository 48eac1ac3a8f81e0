"""Polyphonic music: predict which of 88 notes sound at the next step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from evenflow.lab.data import read_music
from evenflow.lab.data.music_files import NOTES, SETS

from .data_set import FILE_PARTS, HOST, FileData, require
from .ragged import RaggedData
from .task import Batch, option

CHOICES = tuple(name.lower().replace("_", "-") for name in SETS)
# The metric of the plain recurrent network of Boulanger-Lewandowski et al. 2012, their Table 1.
SOLVED = {"jsb-chorales": 8.71, "musedata": 8.13, "nottingham": 4.46, "piano-midi": 8.37}


@dataclass(frozen=True)
class Music(RaggedData, FileData):
    """Predict the 88 notes of a piano roll, each on or off, at the next step after each step.

    Pieces have different lengths and are padded to the longest of their batch, on a GPU to one of a few lengths; the
    loss ignores the padding. Loss and metric: the cross entropy of a step, summed over its 88 notes, in nats per step;
    without memory it is the entropy of the notes. The metric of the plain recurrent network of
    Boulanger-Lewandowski et al. counts as solved.

    Shapes:
        inputs and targets ``(T, B, 88)``, targets -1 past the end; lengths ``(B,)``.

    Args:
        set: "musedata", "jsb-chorales", "nottingham" or "piano-midi".
        data: the data folder.

        >>> task = Music()
        >>> task.count(), task.held_out().count(), task.test().count()
        (524, 135, 124)

    Reference: Boulanger-Lewandowski et al. 2012.
    """

    set: str = option("musedata", "musedata, jsb-chorales, nottingham or piano-midi", choices=CHOICES)

    name = "music"
    problem = "multilabel"
    readout = "every"
    input_size = NOTES
    output_size = NOTES
    metric_name = "nats"
    higher_is_better = False
    padding = -1.0

    @property
    def baseline(self) -> float:
        share = self.in_part("training").stored(HOST).values.double().mean(0)
        return float((torch.special.entr(share) + torch.special.entr(1 - share)).sum())

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        running = targets >= 0
        outputs = torch.where(running, outputs, 0)  # outputs at the padding may be infinite or nan
        total = F.binary_cross_entropy_with_logits(outputs, targets.clamp(min=0), running.to(outputs), reduction="sum")
        return total * NOTES / running.sum()

    def metric(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.loss(outputs, targets)

    def weight(self, batch: Batch) -> int | Tensor:
        assert batch.lengths is not None
        return batch.lengths.sum()

    @property
    def solved_limit(self) -> float:
        return SOLVED[self.set]

    def sequences(self) -> Sequence[np.ndarray]:
        require(self.set.removesuffix("-chorales"), self.folder)
        rolls = read_music(self.folder, self.set)[FILE_PARTS[self.part]]
        return [roll for roll in rolls if len(roll) > 1]  # a piece of one step has no next one
