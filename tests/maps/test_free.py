"""No constraint: starting values."""

from __future__ import annotations

import pytest
import torch

from evenflow import init
from evenflow.maps import Free


@pytest.mark.parametrize("name", ["orthogonal", "identity", "glorot_normal", "glorot_uniform"])
def test_start_is_the_named_one(name: str) -> None:
    seeded = [torch.Generator().manual_seed(4) for _ in range(2)]
    expected = getattr(init, name)(5, 3, generator=seeded[0])
    assert torch.equal(Free(5, 3, init=name).start(seeded[1])[0], expected)


def test_spectral_radius() -> None:
    start = Free(20, init="spectral_radius", radius=1.2).start(torch.Generator().manual_seed(0))[0]
    assert torch.linalg.eigvals(start.double()).abs().max() == pytest.approx(1.2, rel=1e-4)


@pytest.mark.parametrize(
    ("shape", "options", "sentence"),
    [
        ((4,), {"init": "zeros"}, "init must be one of orthogonal, identity"),
        ((4,), {"init": "spectral_radius", "radius": 0.0}, "radius must be a number above 0, got 0.0"),
        ((4,), {"radius": 2.0}, "radius is a setting of init='spectral_radius' alone"),
        ((4, 5), {"init": "spectral_radius"}, "needs a square matrix, got 4 x 5"),
    ],
    ids=["init", "radius", "alone", "square"],
)
def test_bad_settings(shape: tuple[int, ...], options: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Free(*shape, **options)  # type: ignore[arg-type]
