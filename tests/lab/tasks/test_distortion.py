"""Distorted images: an affine map, a smooth field and bilinear interpolation, written out."""

from __future__ import annotations

import math

import pytest
import torch

from evenflow.lab.tasks import make
from evenflow.lab.tasks.distortion import FIELDS, MAPS, _heights, _maps, _waves, distorted

FIRST = [0.10159580, 0.41629565, -0.41819051, 0.02165521, 0.78589392, 0.79258621]
FIRST_HEIGHTS = [0.05056171, 0.49995133, -0.99590893, 0.69359851]
CPU = torch.device("cpu")


def by_hand(image: torch.Tensor, map: torch.Tensor, field: torch.Tensor) -> torch.Tensor:
    """y(p) = x(A p + t + b d(p)), pixel by pixel, with p = (across, down) from -1 to 1 over the image's area."""
    size = len(image)
    found = torch.zeros(size, size)
    for row in range(size):
        for column in range(size):
            p = [(2 * column + 1) / size - 1, (2 * row + 1) / size - 1]
            across, down = (
                float(a[0] * p[0] + a[1] * p[1] + a[2] + d[row, column]) for a, d in zip(map, field, strict=True)
            )
            u, v = ((q + 1) * size / 2 - 0.5 for q in (across, down))
            for j in (math.floor(v), math.floor(v) + 1):
                for i in (math.floor(u), math.floor(u) + 1):
                    if 0 <= i < size and 0 <= j < size:
                        found[row, column] += (1 - abs(u - i)) * (1 - abs(v - j)) * image[j, i]
    return found


def field_by_hand(heights: torch.Tensor, size: int) -> torch.Tensor:
    """Waves that a Gaussian of a seventh of the side has lowered, before they are brought to a variance of 1."""
    found = torch.zeros(2, size, size)
    for m in range(8):
        for n in range(8):
            lowered = math.exp(-((math.pi / 7) ** 2) * (m**2 + n**2) / 2) * math.sqrt((2 if m else 1) * (2 if n else 1))
            down, across = (
                torch.tensor([math.cos(math.pi * k * (i + 0.5) / size) for i in range(size)]) for k in (m, n)
            )
            found += lowered * heights[:, m, n].view(2, 1, 1) * torch.outer(down, across)
    # A wave's square is 1/2 on average, or 1 where it is constant, which the roots of 2 make up for.
    return found / sum(math.exp(-((math.pi / 7 * m) ** 2)) for m in range(8))


@pytest.mark.parametrize(("strength", "bend"), [(0.05, 0.0), (0.3, 0.0), (0.0, 0.1), (0.2, 0.05)])
@pytest.mark.parametrize("size", [9, 28])
def test_equals_a_map_and_a_field_written_out(size, strength, bend):
    images = torch.rand(4, size, size, generator=torch.Generator().manual_seed(1))
    numbers = torch.tensor([0, 7, 3_519_999, MAPS + 7])
    found = distorted(images, numbers, strength, bend)
    maps = torch.eye(2, 3) + strength * _maps(CPU)[numbers % MAPS]
    fields = [bend * field_by_hand(heights, size) for heights in _heights(CPU)[numbers % FIELDS]]
    expected = [by_hand(*each) for each in zip(images, maps, fields, strict=True)]
    assert torch.allclose(found, torch.stack(expected), atol=2e-5)
    assert torch.equal(maps[1], maps[3])
    if strength:
        assert not torch.equal(maps[0], maps[1])
    if bend:
        assert not torch.equal(fields[1], fields[3])


def test_fields_are_smooth_and_of_variance_one():
    waves = _waves(28, CPU)
    fields = waves @ _heights(CPU)[:4000] @ waves.T
    assert fields.var() == pytest.approx(1, abs=0.05)
    assert fields.mean() == pytest.approx(0, abs=0.05)
    # Noise behind a Gaussian of s pixels is alike at a distance of r by exp(-r^2 / 4 s^2), away from the edges.
    middle = fields[:, 0, 14]
    for distance in (1, 4):
        alike = (middle[:, 12] * middle[:, 12 + distance]).mean() / (middle[:, 12] ** 2).mean()
        assert alike == pytest.approx(math.exp(-(distance**2) / 64), abs=0.08)


def test_the_maps_never_change():
    """Values written down once: a drift would make runs incomparable without a word."""
    drawn, heights = _maps(CPU), _heights(CPU)
    assert drawn.shape == (MAPS, 2, 3)
    assert drawn.abs().max() <= 1
    assert drawn[0].flatten().tolist() == pytest.approx(FIRST, abs=1e-6)
    assert heights.shape == (FIELDS, 2, 8, 8)
    assert heights[0, 0, 0, :4].tolist() == pytest.approx(FIRST_HEIGHTS, abs=1e-6)


@pytest.mark.parametrize("options", [{"distort": 0.1}, {"bend": 0.05}, {"distort": 0.2, "bend": 0.1}])
@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize("order", ["ordered", "permuted"])
def test_training_images_alone_are_distorted(small_data, order, width, options):
    plain, task = (make("mnist", data=str(small_data), **given) for given in ({}, options))
    read = make("mnist", data=str(small_data), order=order, width=width, **options)
    assert read.count() == task.count() == 64 * plain.count()
    rows = torch.tensor([0, 1, 64, 130])
    images = plain.take(rows // 64)
    strengths = [options.get(name, 0.0) for name in ("distort", "bend")]
    expected = distorted(images.inputs[..., 0].T.reshape(-1, 28, 28), rows, *strengths).reshape(-1, 784)
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
        ({"distort": 0.0}, "distort must be a number above 0 and at most 0.3, got 0.0"),
        ({"distort": 0.5}, "distort must be a number above 0 and at most 0.3, got 0.5"),
        ({"bend": 0.2}, "bend must be a number above 0 and at most 0.15, got 0.2"),
        ({"bend": True}, "bend must be a number above 0 and at most 0.15, got True"),
        ({"bend": 0.1, "shift": 2}, "bend moves images too and stands in place of shift, got both, 0.1 and 2"),
        ({"distort": "much"}, "distort must be a number above 0 and at most 0.3, got 'much'"),
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
