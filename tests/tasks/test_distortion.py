"""Distorted images: an affine map and bilinear interpolation, written out."""

from __future__ import annotations

import math

import pytest
import torch

from evenflow.tasks import make
from evenflow.tasks.distortion import DRAWN, _drawn, distorted

FIRST = [0.10159580, 0.41629565, -0.41819051, 0.02165521, 0.78589392, 0.79258621]


def by_hand(image: torch.Tensor, map: torch.Tensor) -> torch.Tensor:
    """y(p) = x(A p + t), pixel by pixel, with p = (across, down) from -1 to 1 over the image's area."""
    size = len(image)
    found = torch.zeros(size, size)
    for row in range(size):
        for column in range(size):
            p = [(2 * column + 1) / size - 1, (2 * row + 1) / size - 1]
            across, down = (float(a[0] * p[0] + a[1] * p[1] + a[2]) for a in map)
            u, v = ((q + 1) * size / 2 - 0.5 for q in (across, down))
            for j in (math.floor(v), math.floor(v) + 1):
                for i in (math.floor(u), math.floor(u) + 1):
                    if 0 <= i < size and 0 <= j < size:
                        found[row, column] += (1 - abs(u - i)) * (1 - abs(v - j)) * image[j, i]
    return found


@pytest.mark.parametrize("strength", [0.05, 0.3])
@pytest.mark.parametrize("size", [5, 28])
def test_equals_an_affine_map_written_out(size, strength):
    images = torch.rand(4, size, size, generator=torch.Generator().manual_seed(1))
    numbers = torch.tensor([0, 7, 3_519_999, DRAWN + 7])
    found = distorted(images, numbers, strength)
    maps = torch.eye(2, 3) + strength * _drawn(torch.device("cpu"))[numbers % DRAWN]
    assert torch.allclose(found, torch.stack([by_hand(x, m) for x, m in zip(images, maps, strict=True)]), atol=2e-6)
    assert torch.equal(maps[1], maps[3])
    assert not torch.equal(maps[0], maps[1])


def test_the_maps_never_change():
    """Values written down once: a drift would make runs incomparable without a word."""
    drawn = _drawn(torch.device("cpu"))
    assert drawn.shape == (DRAWN, 2, 3)
    assert drawn.abs().max() <= 1
    assert drawn[0].flatten().tolist() == pytest.approx(FIRST, abs=1e-6)


@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize("order", ["ordered", "permuted"])
def test_training_images_alone_are_distorted(small_data, order, width):
    plain, task = (make("mnist", data=str(small_data), **options) for options in ({}, {"distort": 0.1}))
    read = make("mnist", data=str(small_data), order=order, width=width, distort=0.1)
    assert read.count() == task.count() == 64 * plain.count()
    rows = torch.tensor([0, 1, 64, 130])
    images = plain.take(rows // 64)
    expected = distorted(images.inputs[..., 0].T.reshape(-1, 28, 28), rows, 0.1).reshape(-1, 784)
    found = read.take(rows)
    wanted = expected[:, read._order()].reshape(4, 784 // width, width).transpose(0, 1)
    assert torch.allclose(found.inputs, wanted, atol=1e-6)
    assert torch.equal(found.targets, images.targets)
    assert read.take(rows[:0]).inputs.shape == (784 // width, 0, width)
    assert not torch.equal(found.inputs[:, 0], found.inputs[:, 1])  # two variants of the first image
    for part in ("validation", "test"):
        held_out = read.in_part(part)
        alone = make("mnist", data=str(small_data), order=order, width=width).in_part(part)
        every = torch.arange(alone.count())
        assert held_out.count() == alone.count()
        assert torch.equal(held_out.take(every).inputs, alone.take(every).inputs)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"distort": 0.0}, "distort must lie above 0 and be at most 0.3, got 0.0"),
        ({"distort": 0.5}, "distort must lie above 0 and be at most 0.3, got 0.5"),
        ({"distort": "much"}, "distort must be a finite number, got 'much'"),
        (
            {"distort": 0.1, "shift": 1},
            "distort moves images too and stands in place of shift, got both, 0.1 and 1",
        ),
    ],
)
def test_a_distortion_has_its_limits(options, words):
    with pytest.raises(ValueError) as refused:
        make("mnist", **options)
    assert str(refused.value) == words
