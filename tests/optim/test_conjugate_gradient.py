"""Conjugate gradients against numpy's solution of a quadratic."""

from __future__ import annotations

import numpy as np
import torch

from evenflow.optim import conjugate_gradient

# float64, a matrix whose condition number is about 1e2.
SOLVED = 1e-9
SIZE = 30


def quadratic(seed=0, condition=100.0):
    source = torch.Generator().manual_seed(seed)
    Q = torch.linalg.qr(torch.randn(SIZE, SIZE, dtype=torch.float64, generator=source))[0]
    A = Q @ torch.diag(torch.logspace(0, float(np.log10(condition)), SIZE, dtype=torch.float64)) @ Q.mT
    return A, torch.randn(SIZE, dtype=torch.float64, generator=source)


def test_solves_what_numpy_solves():
    A, b = quadratic()
    found = conjugate_gradient(lambda v: A @ v, b, torch.zeros(SIZE, dtype=torch.float64), 200, tolerance=0)
    np.testing.assert_allclose(found.kept[-1].numpy(), np.linalg.solve(A.numpy(), b.numpy()), atol=SOLVED)


def test_as_many_iterations_as_different_eigenvalues():
    A = torch.diag(torch.tensor([1.0, 1.0, 3.0, 3.0, 7.0, 7.0], dtype=torch.float64))
    found = conjugate_gradient(lambda v: A @ v, torch.ones(6, dtype=torch.float64), A.new_zeros(6), 50, tolerance=0)
    assert found.iterations in (3, 4)  # one more where rounding leaves something


def test_values_are_those_of_the_quadratic_and_fall():
    A, b = quadratic()
    found = conjugate_gradient(lambda v: A @ v, b, torch.zeros_like(b), 12, tolerance=0)
    x = found.kept[-1]
    assert abs(found.values[-1] - float(0.5 * x @ A @ x - b @ x)) < SOLVED
    assert all(later < earlier for earlier, later in zip(found.values, found.values[1:], strict=False))
    assert found.iterations == len(found.values) == 12


def test_keeps_a_few_iterates_denser_at_the_start():
    A, b = quadratic()
    seen = []
    found = conjugate_gradient(lambda v: A @ v, b, torch.zeros_like(b), 25, tolerance=0)
    for x in found.kept:
        value = float(0.5 * x @ A @ x - b @ x)
        seen.append(1 + int(np.argmin(np.abs(np.array(found.values) - value))))
    assert seen == sorted(set(seen))
    assert seen[0] == 1
    assert seen[-1] == 25
    assert len(seen) < 14


def test_a_good_start_saves_iterations():
    A, b = quadratic()
    solution = torch.linalg.solve(A, b)
    cold, warm = (conjugate_gradient(lambda v: A @ v, b, s, 200) for s in (torch.zeros_like(b), 0.95 * solution))
    assert warm.values[0] < cold.values[0]
    assert torch.equal(conjugate_gradient(lambda v: A @ v, b, solution, 0).kept[-1], solution)


def test_stops_when_progress_is_slow():
    A, b = quadratic(condition=1e6)
    loose, tight = (conjugate_gradient(lambda v: A @ v, b, torch.zeros_like(b), 500, t) for t in (1e-2, 0))
    assert 10 < loose.iterations < tight.iterations
    i, k = loose.iterations, max(10, loose.iterations // 10)
    assert loose.values[i - 1 - k] - loose.values[i - 1] < -k * 1e-2 * loose.values[i - 1]


def test_no_curvature_stops_it():
    b = torch.ones(3, dtype=torch.float64)
    found = conjugate_gradient(lambda v: 0 * v, b, torch.zeros_like(b))
    assert found.iterations == 0
    assert torch.equal(found.kept[-1], torch.zeros_like(b))
