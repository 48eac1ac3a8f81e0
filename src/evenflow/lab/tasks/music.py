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
from .task import Batch, Position, option

CHOICES = tuple(name.lower().replace("_", "-") for name in SETS)
# The metric of the plain recurrent network of Boulanger-Lewandowski et al. 2012, their Table 1.
SOLVED = {"jsb-chorales": 8.71, "musedata": 8.13, "nottingham": 4.46, "piano-midi": 8.37}


@dataclass(frozen=True)
class Music(RaggedData, FileData):
    """Predict the 88 notes of a piano roll, each on or off, at the next step after each step.

    Pieces have different lengths and are padded to the longest of their batch, on a GPU to one of a few lengths; the
    loss ignores the padding. Loss and metric: the cross entropy of a step, summed over its 88 notes, in nats per step,
    as a mean over all steps or over the means of the pieces; without memory it is the entropy of the notes. The metric
    of the plain recurrent network of Boulanger-Lewandowski et al. counts as solved.

    Shapes:
        inputs and targets ``(T, B, 88)``, targets -1 past the end; lengths ``(B,)``.

    Args:
        set: "musedata", "jsb-chorales", "nottingham" or "piano-midi".
        average: "steps", a mean over all steps, in which long pieces count more, or "pieces", a mean over the steps of
            each piece and then over pieces, as in Galvan's equation 4.2.
        crop: an update sees at most this many steps of a piece, from a step drawn at random. Default: all steps.
            Validation and test use whole pieces.
        data: the data folder.

        >>> task = Music()
        >>> task.count(), task.held_out().count(), task.test().count()
        (524, 135, 124)

    Reference: Boulanger-Lewandowski et al. 2012; Galvan 2016, equation 4.2.
    """

    set: str = option("musedata", "musedata, jsb-chorales, nottingham or piano-midi", choices=CHOICES)
    average: str = option("steps", "what counts alike in a mean: steps or pieces", choices=("steps", "pieces"))
    crop: int | None = option(None, "most steps of a piece in an update, from a random one on; all by default", whole=1)

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
        stored = self.in_part("training").stored(HOST)
        values = stored.values.double()
        if self.average == "pieces":
            lengths = stored.offsets.diff()
            values = values / lengths.repeat_interleave(lengths)[:, None] * (len(values) / len(lengths))
        share = values.mean(0)
        return float((torch.special.entr(share) + torch.special.entr(1 - share)).sum())

    def training_batch(self, size: int, position: Position, generator: torch.Generator) -> Batch:
        if self.crop is None:
            return super().training_batch(size, position, generator)
        rows = self.rows(size, position, generator.device)
        # A batch of T steps has T + 1 notes: its targets are one step ahead of its inputs.
        spare = (self.stored(rows.device).lengths(rows) - (self.crop + 1)).clamp(min=0)
        drawn = torch.rand(len(rows), generator=generator, device=rows.device)
        longest = min(self.crop + 1, self.stored(HOST).most)
        starts = (drawn * (spare + 1)).long()
        return self.shifted(*self.stored(rows.device).padded(rows, longest, starts))

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        running = targets >= 0
        outputs = torch.where(running, outputs, 0)  # outputs at the padding may be infinite or nan
        weight = running.to(outputs)
        if self.average == "pieces":
            every = F.binary_cross_entropy_with_logits(outputs, targets.clamp(min=0), weight, reduction="none")
            return (every.sum((0, 2)) / running[..., 0].sum(0)).mean()
        total = F.binary_cross_entropy_with_logits(outputs, targets.clamp(min=0), weight, reduction="sum")
        return total * NOTES / running.sum()

    def metric(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.loss(outputs, targets)

    def weight(self, batch: Batch) -> int | Tensor:
        assert batch.lengths is not None
        return len(batch.lengths) if self.average == "pieces" else batch.lengths.sum()

    @property
    def solved_limit(self) -> float:
        return SOLVED[self.set]

    def sequences(self) -> Sequence[np.ndarray]:
        require(self.set.removesuffix("-chorales"), self.folder)
        rolls = read_music(self.folder, self.set)[FILE_PARTS[self.part]]
        return [roll for roll in rolls if len(roll) > 1]  # a piece of one step has no next one
