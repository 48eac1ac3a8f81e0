"""MNIST and Fashion-MNIST pixel by pixel: row by row or in a fixed random order, training images maybe distorted."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from evenflow.lab.data import read_mnist

from .data_set import FileData, split
from .distortion import distorted
from .labelled import Labelled
from .task import Batch, option

ORDERS = ("ordered", "permuted")
SIDE, CLASSES, BRIGHTEST = 28, 10, 255
PIXELS = SIDE**2
FURTHEST = 4  # largest shift in pixels; larger shifts cut most digits
STRONGEST = 0.3  # largest distortion; with more, much of a digit may leave the image
MOST_BENT = 0.15  # largest bend; with more, strokes run into one another
VARIANTS = 64  # of each image, if images are distorted or bent
WIDTHS = (1, 2, 4, 7, 8, 14, 16, 28)
HELD_OUT = 12  # one training image in twelve is for validation: 5,000 of 60,000
PERMUTATION_SEED = 2
# The best published one-layer orthogonal networks: 98.7 and 96.6 (expRNN, 512 units).
SOLVED_ACCURACY = {"ordered": 0.987, "permuted": 0.966}
SOLVED_CLOTHES = {"ordered": 0.9, "permuted": 0.88}
CLOTHES = (
    "T-shirt", "trousers", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot",
)  # fmt: skip


@dataclass(frozen=True)
class Pixels(FileData, Labelled):
    """Classify an MNIST image after its last pixels, `width` pixels per step.

    The 784 pixels are scaled to [0, 1]; a width of 1 gives 784 steps, a width of 28 gives 28. A fixed random 5,000 of
    the 60,000 training images are for validation, and the 10,000 test images for the test. Metric: accuracy; 98.7 %
    (ordered) and 96.6 % (permuted), reached by one-layer orthogonal networks, count as solved.

    Shapes:
        inputs ``(784 / width, B, width)``; targets ``(B,)`` int64 below 10.

    Args:
        order: "ordered", row by row from the top left; "permuted", one random order of the pixels, the same for every
            image and every run.
        width: pixels per step: 1, 2, 4, 7, 8, 14, 16 or 28.
        shift: train on every image at each place up to this many pixels away in both directions, with dark pixels moved
            in; a shift of 1 pixel cuts strokes in one image of a hundred. An epoch is (2 shift + 1)² times as long.
            Images for validation and test are not moved. Default: no shift.
        distort: train on 64 variants of every image, rotated, sheared, stretched and moved at random by up to this
            share, see `distorted`. An epoch is 64 times as long. Cannot be combined with `shift`. Default: none.
        bend: bend the variants: parts of an image move by about this share of half its side, each in its own direction.
            May be used with or without `distort`. Default: none.
        data: the data folder.

        >>> task = Pixels(order="permuted", width=2)
        >>> task.batch(50, torch.Generator().manual_seed(0)).inputs.shape
        torch.Size([392, 50, 2])

    Reference: Le et al. 2015; LeCun et al. 1998.
    """

    order: str = option(
        "ordered", "order of the pixels: ordered (row by row) or permuted (one fixed random order)", choices=ORDERS
    )
    width: int = option(1, "pixels per step: 1 for 784 steps, 2 for 392")
    shift: int | None = option(
        None, "train on every image at each place up to this many pixels away: 9 places for 1", whole=1
    )
    distort: float | None = option(
        None,
        "train on 64 variants of each image, turned, sheared, stretched and moved at random by up to this share",
        above=0,
        most=STRONGEST,
    )
    bend: float | None = option(
        None,
        "train on 64 variants of each image, bent at random by about this share",
        above=0,
        most=MOST_BENT,
    )

    name = "mnist"
    scale = 1 / BRIGHTEST
    output_size = CLASSES

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width not in WIDTHS:
            raise ValueError(f"width must be one of {', '.join(map(str, WIDTHS))}, got {self.width!r}")
        if self.shift is not None and self.shift > FURTHEST:
            raise ValueError(f"shift must be at most {FURTHEST} pixels, got {self.shift}")
        for name, value in (("distort", self.distort), ("bend", self.bend)):
            if value is not None and self.shift is not None:
                raise ValueError(
                    f"{name} moves images too and stands in place of shift, got both, {value} and {self.shift}"
                )

    @property
    def input_size(self) -> int:
        return self.width

    def sequences(self) -> tuple[np.ndarray, np.ndarray]:
        images, labels = _read(self.name, self.folder, "test" if self.part == "test" else "train")
        if self.part != "test":
            rows = split(len(labels), len(labels) // HELD_OUT)[self.part == "validation"]
            images, labels = images[rows], labels[rows]
        pixels = images.reshape(len(images), PIXELS)[:, self._order()]
        return pixels.reshape(len(images), PIXELS // self.width, self.width), labels

    def picture(self, sequence: np.ndarray) -> np.ndarray:
        return sequence.reshape(PIXELS)[np.argsort(self._order())].reshape(SIDE, SIDE)

    def _order(self) -> np.ndarray:
        """The pixel of the image at each place of the sequence."""
        if self.order == "ordered":
            return np.arange(PIXELS)
        return np.random.RandomState(PERMUTATION_SEED).permutation(PIXELS)

    @property
    def _shifts(self) -> list[tuple[int, int]]:
        """The shifts of the images of this part: pixels down and to the right."""
        furthest = (self.shift or 0) if self.part == "training" else 0
        reach = range(-furthest, furthest + 1)
        return [(down, right) for down in reach for right in reach]

    @property
    def _variants(self) -> int:
        """The number of sequences that are made of one image of this part."""
        return VARIANTS if self._changes and self.part == "training" else len(self._shifts)

    @property
    def _changes(self) -> bool:
        """Whether training images are distorted or bent."""
        return self.distort is not None or self.bend is not None

    def count(self) -> int:
        return super().count() * self._variants

    def take(self, rows: Tensor) -> Batch:
        if self._variants == 1 or not len(rows):
            return super().take(rows)
        batch = super().take(rows // self._variants)
        steps, size, width = batch.inputs.shape
        images = batch.inputs.transpose(0, 1).reshape(size, PIXELS)  # pixels in the order of the steps
        changed = self._distorted(images, rows) if self._changes else self._moved(images, rows)
        return Batch(changed.view(size, steps, width).transpose(0, 1).contiguous(), batch.targets)

    def _moved(self, images: Tensor, rows: Tensor) -> Tensor:
        with_dark = torch.nn.functional.pad(images, (0, 1))  # a dark pixel at index 784
        return with_dark.gather(1, _sources(self, rows.device)[rows % self._variants])

    def _distorted(self, images: Tensor, rows: Tensor) -> Tensor:
        order, step = _both_orders(self, rows.device)
        square = images[:, step].view(-1, SIDE, SIDE)
        return distorted(square, rows, self.distort or 0.0, self.bend or 0.0).view(-1, PIXELS)[:, order]

    @property
    def solved_limit(self) -> float:
        return SOLVED_ACCURACY[self.order]


@dataclass(frozen=True)
class FashionPixels(Pixels):
    """Classify a picture of a piece of clothing after its last pixels, `width` pixels per step: Fashion-MNIST.

    Images, parts and options are those of `Pixels`, with ten kinds of clothes in the place of digits. Metric: accuracy;
    90 % (ordered) and 88 % (permuted) count as solved.

    Shapes:
        inputs ``(784 / width, B, width)``; targets ``(B,)`` int64 below 10.

    Args:
        order, width, shift, distort, bend, data: as in `Pixels`.

        >>> task = FashionPixels(width=28)
        >>> task.batch(50, torch.Generator().manual_seed(0)).inputs.shape
        torch.Size([28, 50, 28])

    Reference: Xiao, Rasul and Vollgraf 2017.
    """

    name = "fashion-mnist"

    @property
    def labels(self) -> tuple[str, ...]:
        return CLOTHES

    @property
    def solved_limit(self) -> float:
        return SOLVED_CLOTHES[self.order]


@lru_cache(maxsize=4)
def _read(name: str, folder: Path, part: str) -> tuple[np.ndarray, np.ndarray]:
    return read_mnist(folder, part, name)


@lru_cache(maxsize=2)
def _both_orders(task: Pixels, device: torch.device) -> tuple[Tensor, Tensor]:
    """The pixel of the image at each place of the sequence, and the place of each pixel."""
    order = torch.from_numpy(task._order())
    return order.to(device), order.argsort().to(device)


@lru_cache(maxsize=2)
def _sources(task: Pixels, device: torch.device) -> Tensor:
    """For each shift and place of the sequence, the place whose pixel moves there, or 784 for a dark pixel."""
    order = task._order()
    place = np.append(np.argsort(order), PIXELS)  # of each pixel, and of the dark one
    image = np.pad(np.arange(PIXELS).reshape(SIDE, SIDE), FURTHEST, constant_values=PIXELS)
    corners = [(FURTHEST - down, FURTHEST - right) for down, right in task._shifts]
    moved = [image[row : row + SIDE, column : column + SIDE].flatten()[order] for row, column in corners]
    return torch.from_numpy(place[np.stack(moved)]).to(device)
