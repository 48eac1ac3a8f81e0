"""Polyphonic music: which of 88 notes sound at the next step?"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from evenflow.checks import one_of
from evenflow.lab.data.music_files import NOTES, SETS, read_music

from .data_set import FileData, need
from .ragged import Ragged, RaggedData, inside
from .task import Batch, option

FILES = {"training": "train", "validation": "valid", "test": "test"}
CHOICES = tuple(name.lower().replace("_", "-") for name in SETS)
PADDING = -1.0  # a note that is not asked for
# The plain recurrent network of Boulanger-Lewandowski et al. 2012, their Table 1.
SOLVED = {"jsb-chorales": 8.71, "musedata": 8.13, "nottingham": 4.46, "piano-midi": 8.37}


@dataclass(frozen=True)
class Music(RaggedData, FileData):
    """A piano roll, 88 notes on or off a step; after each step, which notes sound at the next?

    Pieces have different lengths and are padded to the longest of their batch, on a GPU to one of a few lengths; what
    is padded is not asked for. Loss and metric: the cross entropy of a step, summed over its 88 notes, in nats per
    step; without memory it is that of the shares of the notes. As good as a plain recurrent network of
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

    set: str = option("musedata", "musedata, jsb-chorales, nottingham or piano-midi")

    name: ClassVar[str] = "music"
    readout: ClassVar[str] = "every"

    def __post_init__(self) -> None:
        one_of("set", self.set, CHOICES)

    @property
    def input_size(self) -> int:
        return NOTES

    @property
    def output_size(self) -> int:
        return NOTES

    @property
    def metric_name(self) -> str:
        return "nats"

    @property
    def higher_is_better(self) -> bool:
        return False

    @property
    def baseline(self) -> float:
        share = _keep(self.folder, self.set, "train", torch.device("cpu")).values.double().mean(0)
        return float((torch.special.entr(share) + torch.special.entr(1 - share)).sum())

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        asked = targets >= 0
        outputs = torch.where(asked, outputs, 0)  # what is not asked for may be anything
        summed = F.binary_cross_entropy_with_logits(outputs, targets.clamp(min=0), asked.to(outputs), reduction="sum")
        return summed * NOTES / asked.sum()

    def metric(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.loss(outputs, targets)

    def weight(self, batch: Batch) -> int | Tensor:
        assert batch.lengths is not None
        return batch.lengths.sum()

    def solved(self, metric: float) -> bool:
        return metric <= SOLVED[self.set]

    @property
    def unasked(self) -> float:
        return PADDING

    def kept(self, device: torch.device) -> Ragged:
        return _keep(self.folder, self.set, FILES[self.part], device)

    def take(self, rows: Tensor, longest: int | None = None) -> Batch:
        rolls, lengths = self.kept(rows.device).padded(rows, longest)
        asked = inside(lengths - 1, len(rolls) - 1)[..., None]
        rolls = rolls.float()
        return Batch(rolls[:-1] * asked, torch.where(asked, rolls[1:], PADDING), lengths - 1)


@lru_cache(maxsize=6)
def _keep(folder: Path, name: str, part: str, device: torch.device) -> Ragged:
    """All pieces of a part; one of a single step asks for nothing and is left out."""
    need(name.removesuffix("-chorales"), folder)
    return Ragged.of([roll for roll in read_music(folder, name)[part] if len(roll) > 1], device)
