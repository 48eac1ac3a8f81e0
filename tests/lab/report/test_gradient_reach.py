from __future__ import annotations

import numpy as np
import pytest

from evenflow.lab.report import gradient_reach


@pytest.mark.parametrize(
    ("profile", "steps", "word"),
    [
        pytest.param([1.0] * 5, 4, "flows", id="level"),
        pytest.param([1e-8, 1e-6, 1e-4, 1e-2, 1.0], 1, "vanishes", id="falls"),
        pytest.param([1.0, 1.0, 1e-4, 1.0], 0, "vanishes", id="a dip counts"),
        pytest.param([1e8, 1e6, 1e4, 1e2, 1.0], 4, "explodes", id="grows"),
        pytest.param([1e-9, 1e-9, 1.0, 0.0, 0.0], 0, "vanishes", id="zeros after the end of the sequences"),
        pytest.param([0.0, 0.0, 1.0, 1.0], 1, "vanishes", id="exact zeros"),
        pytest.param([1.0], 0, "flows", id="one step"),
    ],
)
def test_reach_counts_steps_until_a_thousandth(profile: list[float], steps: int, word: str) -> None:
    found = gradient_reach.measure(np.array(profile))
    assert found is not None
    assert (found.steps, found.word) == (steps, word)
    assert (found.smallest < gradient_reach.FRACTION) == (word == "vanishes")


def test_reach_of_a_geometric_decay_is_known() -> None:
    # 0.9^65 = 1.06e-3 and 0.9^66 = 0.95e-3.
    found = gradient_reach.measure(0.9 ** np.arange(200)[::-1])
    assert found is not None
    assert found.steps == 65
    assert found.ratio == pytest.approx(0.9**199)
    assert "reaches back 65 of 199 steps before falling under a thousandth" in found.sentence()


@pytest.mark.parametrize(
    ("profile", "words"),
    [
        pytest.param([1.0, np.nan, 1.0], "not finite", id="nan"),
        pytest.param([np.inf, 1.0, 1.0], "not finite", id="inf"),
        pytest.param([0.0, 0.0], "zero at every step", id="all zero"),
    ],
)
def test_a_profile_without_reach_says_why(profile: list[float], words: str) -> None:
    assert gradient_reach.measure(np.array(profile)) is None
    assert words in gradient_reach.sentence(np.array(profile))


def test_a_ratio_beyond_float_range_is_an_explosion() -> None:
    found = gradient_reach.measure(np.array([1e300, 1.0, 1e-300]))
    assert found is not None
    assert found.word == "explodes"
    assert "grows" in found.brief()
