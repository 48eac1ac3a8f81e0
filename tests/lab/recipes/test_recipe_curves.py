"""The lines of a recipe's figures, read off made probes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from evenflow.lab.recipes.recipe_curves import CURVES

STEP = np.array([10, 20, 30])
# Mean, deviation, smallest and largest of the first matrix, and of another that no figure shows.
SINGULAR = np.stack([[[1.0, 0.1, 0.8 - k / 10, 1.2 + k], [9.0] * 4] for k in range(3)])
# Back from the last step, which depends on itself alone.
JACOBIAN = np.array([[1.0, 1.0, 1.0, 1.0], [1.0, 2.0, 3.0, 4.0], [2.0, 1.0, 0.5, 0.25]])


def run_data(**probes: np.ndarray) -> Any:
    return cast(Any, SimpleNamespace(probe=lambda name: (STEP, probes[name]) if name in probes else None))


@pytest.mark.parametrize(
    ("kind", "expected"), [("mean", [1.0, 1.0, 1.0]), ("smallest", [0.8, 0.7, 0.6]), ("largest", [1.2, 2.2, 3.2])]
)
def test_singular_values_over_training(kind: str, expected: list[float]) -> None:
    x, y = CURVES[kind].read(run_data(singular_values=SINGULAR))
    assert x is STEP
    np.testing.assert_allclose(y, expected)


def test_the_margin_is_of_the_further_end() -> None:
    np.testing.assert_allclose(CURVES["margin"].read(run_data(singular_values=SINGULAR))[1], [0.2, 1.2, 2.2])


def test_reach_is_of_the_last_probe_from_the_first_step_on() -> None:
    t, y = CURVES["reach"].read(run_data(jacobian_norm=JACOBIAN))
    np.testing.assert_array_equal(t, [1, 2, 3, 4])
    np.testing.assert_allclose(y, [0.125, 0.25, 0.5, 1.0])


def test_what_was_not_probed_has_no_line() -> None:
    for kind in ("mean", "smallest", "largest", "margin", "reach", "first-step"):
        assert not len(CURVES[kind].read(run_data())[0]), kind
