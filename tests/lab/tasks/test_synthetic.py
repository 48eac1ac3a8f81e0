from __future__ import annotations

import itertools

import pytest
import torch

from evenflow.lab.tasks.synthetic import Draw

# The share of draws that fall on one of n outcomes, 20,000 draws: five standard errors of a share of 1/5, the largest
# standard error among those below.
SHARE = 5 * (0.2 * 0.8 / 20_000) ** 0.5


def draw(size: int = 20_000, seed: int = 0) -> Draw:
    return Draw(size, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("count", "steps"), [(1, 5), (2, 5), (3, 5), (3, 6), (2, 2), (3, 3)])
def test_places_are_different_in_order_and_uniform(count, steps):
    found = [tuple(place) for place in draw().places(count, steps).T.tolist()]
    allowed = list(itertools.combinations(range(steps), count))
    assert set(found) == set(allowed)
    for place in allowed:
        assert found.count(place) / len(found) == pytest.approx(1 / len(allowed), abs=SHARE)


def test_whole_numbers_reach_both_ends():
    low = torch.arange(20_000) % 2
    found = draw().whole(low, 5)
    assert set(found[low == 0].tolist()) == {0, 1, 2, 3, 4, 5}
    assert set(found[low == 1].tolist()) == {1, 2, 3, 4, 5}
    assert set(draw().whole(3, 3).tolist()) == {3}
    for value in range(5):
        assert (draw().whole(0, 4) == value).float().mean().item() == pytest.approx(0.2, abs=SHARE)


def test_shapes():
    assert draw(7).unit().shape == (7,)
    assert draw(7).unit(3).shape == draw(7).below(4, 3).shape == draw(7).places(3, 9).shape == (3, 7)
