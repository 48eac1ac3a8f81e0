"""CIFAR-10 as sequences: pixel by pixel, or row by row before a long stretch of noise."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from evenflow.lab.data import read_cifar

from .data_set import FileData, require, split
from .labelled import Labelled
from .task import Batch, option

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SIDE, COLOURS, BRIGHTEST = 32, 3, 255
COLOURINGS = ("colour", "grey")
LUMA = (299, 587, 114)  # thousandths of red, green and blue, as in ITU-R BT.601
HELD_OUT = 10  # one training image in ten is for validation: 5,000 of 50,000
NOISE_SEED = 3
NOISE_STEPS = 4096  # of the noise that all images share
STRIDE = 1021  # steps of noise between the pieces of two images; a prime, so that pieces repeat late


@dataclass(frozen=True)
class _Images(FileData, Labelled):
    """What the tasks over CIFAR-10 share: the images, ten classes, and which images are for validation."""

    output_size = len(CLASSES)
    scale = 1 / BRIGHTEST

    @property
    def labels(self) -> tuple[str, ...]:
        return CLASSES

    def images(self) -> tuple[np.ndarray, np.ndarray]:
        """The images ``(N, 3, 32, 32)`` uint8 and the labels of this part."""
        images, labels = _read(self.folder, "test" if self.part == "test" else "train")
        if self.part == "test":
            return images, labels
        rows = split(len(labels), len(labels) // HELD_OUT)[self.part == "validation"]
        return images[rows], labels[rows]


@dataclass(frozen=True)
class SequentialCifar(_Images):
    """Classify a CIFAR-10 image after its last pixel: 1,024 steps of one pixel, row by row from the top left.

    Pixels are scaled to [0, 1]. A fixed random 5,000 of the 50,000 training images are for validation, and the 10,000
    test images for the test. Metric: accuracy; 65 % counts as solved.

    Shapes:
        inputs ``(1024, B, 3)``, red, green and blue, or ``(1024, B, 1)`` in grey; targets ``(B,)`` int64 below 10.

    Args:
        pixels: "colour"; or "grey", ``0.299 red + 0.587 green + 0.114 blue``, rounded.
        data: the data folder.

        >>> task = SequentialCifar(pixels="grey")
        >>> task.batch(50, torch.Generator().manual_seed(0)).inputs.shape
        torch.Size([1024, 50, 1])

    Reference: Krizhevsky 2009; as a sequence Trinh et al. 2018.
    """

    pixels: str = option("colour", "colour, three numbers a pixel, or grey, one number", choices=COLOURINGS)

    name = "cifar"
    solved_limit = 0.65

    @property
    def input_size(self) -> int:
        return COLOURS if self.pixels == "colour" else 1

    def sequences(self) -> tuple[np.ndarray, np.ndarray]:
        images, labels = self.images()
        steps = images.reshape(len(images), COLOURS, -1).transpose(0, 2, 1)
        if self.pixels == "grey":
            red, green, blue = (share * steps[..., i].astype(np.uint32) for i, share in enumerate(LUMA))
            steps = ((red + green + blue + 500) // 1000).astype(np.uint8)[..., None]
        return steps, labels

    def picture(self, sequence: np.ndarray) -> np.ndarray:
        return sequence.mean(-1).reshape(SIDE, SIDE)


@dataclass(frozen=True)
class NoisePaddedCifar(_Images):
    """Classify a CIFAR-10 image from its 32 rows, one a step, after a long stretch of noise.

    The first 32 steps are the rows of the image from the top, 32 numbers each of red, green and blue, scaled to [0, 1].
    All later steps are noise, uniform in [0, 1): each image is followed by its own piece of one fixed noise. A network
    has to keep what it has seen through all of it. The division into parts is that of `SequentialCifar`. Metric:
    accuracy; 60 % counts as solved.

    Shapes:
        inputs ``(T, B, 96)``; targets ``(B,)`` int64 below 10.

    Args:
        length: T, at least 32 and at most 4,096. Default: 1,000, as in the paper.
        data: the data folder.

        >>> task = NoisePaddedCifar()
        >>> task.batch(50, torch.Generator().manual_seed(0)).inputs.shape
        torch.Size([1000, 50, 96])

    Reference: Chang et al. 2019.
    """

    length: int = option(1000, "steps T, the 32 rows and the noise", whole=SIDE)

    name = "noisy-cifar"
    input_size = COLOURS * SIDE
    solved_limit = 0.6

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.length > NOISE_STEPS:
            raise ValueError(f"length must be at most {NOISE_STEPS}, the steps of the noise, got {self.length}")

    def sequences(self) -> tuple[np.ndarray, np.ndarray]:
        images, labels = self.images()
        return images.transpose(0, 2, 1, 3).reshape(len(images), SIDE, -1), labels

    def take(self, rows: Tensor) -> Batch:
        batch = super().take(rows)
        steps = torch.arange(self.length - SIDE, device=rows.device)
        places = (rows * STRIDE + steps.unsqueeze(1)) % NOISE_STEPS
        return Batch(torch.cat([batch.inputs, _noise(rows.device)[places]]), batch.targets)

    def picture(self, sequence: np.ndarray) -> np.ndarray:
        return sequence[:SIDE].reshape(SIDE, COLOURS, SIDE).mean(1)


@lru_cache(maxsize=2)
def _read(folder: Path, part: str) -> tuple[np.ndarray, np.ndarray]:
    require("cifar10", folder)
    return read_cifar(folder, part)


@lru_cache(maxsize=2)
def _noise(device: torch.device) -> Tensor:
    """The noise that all images share ``(4096, 96)``, the same on every machine."""
    draw = np.random.RandomState(NOISE_SEED).random_sample((NOISE_STEPS, COLOURS * SIDE))
    return torch.from_numpy(draw.astype(np.float32)).to(device)
