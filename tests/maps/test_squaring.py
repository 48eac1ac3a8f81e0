"""The exponential by squaring: how good its polynomials are, and how many products a value and a gradient take."""

from __future__ import annotations

import copy
import math
import pickle
import threading
from contextlib import nullcontext
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from evenflow.maps import Exponential, make
from evenflow.maps.chebyshev import Polynomial
from evenflow.maps.squaring import (
    ANGLES,
    POLYNOMIALS,
    UNSEEN_CHANGES,
    AngleRange,
    covered_angle,
    exponential,
    exponential_vjp,
    norm,
    plan,
)

# Entries of the matrix, against torch's in float64, which is right to some 1e-13 itself; times 1 + angle.
VALUE = {torch.float32: 1e-6, torch.float64: 2e-13}
# The gradient, of the size of the one it comes from; the same way.
SLOPE = {torch.float32: 1e-6, torch.float64: 2e-13}
COEFFICIENT = 2.0**-52  # a polynomial's numbers are rounded themselves
PRODUCTS = {"mm", "addmm", "addmm_", "bmm", "baddbmm", "baddbmm_"}


class Products(TorchDispatchMode):
    """Counts the matrix products made inside it."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += operator.overloadpacket.__name__ in PRODUCTS
        return operator(*args, **(kwargs or {}))


def evaluated(found: Polynomial, x: Fraction) -> tuple[Fraction, Fraction]:
    """Real and imaginary part of the polynomial at ix, without rounding."""
    square = -x * x
    Y = [square]
    for p, q, r in found.steps:
        Y.append(Fraction(p) * Y[-1] ** 2 + Fraction(q) * Y[-1] + Fraction(r) * square)
    even = sum((Fraction(share) * y for share, y in zip(found.x, Y, strict=True)), Y[-1] * Fraction(found.b) * square)
    return even, x * (Fraction(found.c) + Fraction(found.a) * Y[-1])


def exponential_less_one(x: Fraction) -> tuple[Fraction, Fraction]:
    """cos x - 1 and sin x to forty digits."""
    terms = [x**k / math.factorial(k) for k in range(40)]
    return (
        sum(((-1) ** (k // 2) * terms[k] for k in range(2, 40, 2)), Fraction(0)),
        sum(((-1) ** (k // 2) * terms[k] for k in range(1, 40, 2)), Fraction(0)),
    )


@pytest.mark.parametrize("dtype", ANGLES, ids=str)
@pytest.mark.parametrize("count", [1, 2, 3])
def test_polynomials_are_right_to_rounding_up_to_their_largest_angle(dtype: torch.dtype, count: int) -> None:
    angle, found = ANGLES[dtype][count - 1], POLYNOMIALS[dtype][count - 1]
    assert len(found.x) == count
    for i in range(33):
        x = Fraction(angle) * i / 32
        off = [float(a - b) for a, b in zip(evaluated(found, x), exponential_less_one(x), strict=True)]
        assert math.hypot(*off) < (torch.finfo(dtype).eps + COEFFICIENT) * angle


@pytest.mark.parametrize("found", [POLYNOMIALS[torch.float32][1], POLYNOMIALS[torch.float64][2]], ids=["two", "three"])
def test_a_scaled_polynomial_is_the_same_one(found: Polynomial) -> None:
    for x in (Fraction(1, 7), Fraction(3, 2)):
        assert evaluated(found.scaled(0.25), 4 * x) == evaluated(found, x)


@pytest.mark.parametrize(
    ("angle", "dtype", "value", "slope"),
    [
        pytest.param(0.1, torch.float32, 4, 3, id="small"),
        pytest.param(0.5, torch.float32, 5, 4, id="half"),
        pytest.param(1.5, torch.float32, 6, 5, id="one-and-a-half"),
        pytest.param(math.pi, torch.float32, 7, 7, id="half-turn"),
        pytest.param(4 * math.pi, torch.float32, 9, 11, id="range-of-a-half-turn"),
        pytest.param(math.pi, torch.float64, 8, 13, id="half-turn-in-double"),
    ],
)
def test_products_of_a_value_and_of_its_gradient(angle: float, dtype: torch.dtype, value: int, slope: int) -> None:
    B = torch.zeros(8, 8, dtype=dtype)
    B[0, 1], B[1, 0] = 0.999 * angle, -0.999 * angle
    with Products() as there:
        W, kept = exponential(B)
    with Products() as back:
        exponential_vjp(torch.ones_like(W), *kept)
    assert (there.count, back.count) == (value, slope)


def test_products_at_the_default_start() -> None:
    map = Exponential(64)
    raw = map.start(torch.Generator().manual_seed(0))[0].requires_grad_()
    with Products() as products:
        map(raw).sum().backward()
    assert products.count == 14


def skew(real: bool, *shape: int, angle: float) -> Tensor:
    """With this largest angle in every matrix."""
    source = torch.Generator().manual_seed(1)
    free = torch.randn(*shape, generator=source, dtype=torch.float64 if real else torch.complex128)
    B = free - free.mH
    return B * (angle / torch.linalg.matrix_norm(B, 2, keepdim=True))


@pytest.mark.parametrize("angle", [1e-6, 5e-4, 0.01, 0.05, 0.3, 1.0, 3.0, 50.0])
@pytest.mark.parametrize("dtype", VALUE, ids=str)
@pytest.mark.parametrize("real", [True, False], ids=["real", "complex"])
@pytest.mark.parametrize("shape", [(7, 7), (2, 3, 5, 5)], ids=["one", "models"])
def test_value_and_gradient_by_every_polynomial(
    shape: tuple[int, ...], real: bool, dtype: torch.dtype, angle: float
) -> None:
    narrow = dtype if real else dtype.to_complex()
    B = skew(real, *shape, angle=angle).to(narrow)
    leaf = B.to(torch.float64 if real else torch.complex128).requires_grad_()
    expected = torch.linalg.matrix_exp(leaf)
    G = torch.randn(*shape, generator=torch.Generator().manual_seed(2), dtype=leaf.dtype)
    (pulled,) = torch.autograd.grad(expected, leaf, G)
    W, kept = exponential(B)
    off = exponential_vjp(G.to(narrow), *kept) - pulled
    assert (W - expected).abs().max() < VALUE[dtype] * (1 + angle)
    assert torch.linalg.vector_norm(off - off.mH) / 2 < SLOPE[dtype] * (1 + angle) * torch.linalg.vector_norm(G)


@pytest.mark.parametrize("dtype", ANGLES, ids=str)
@pytest.mark.parametrize("angle", [0.1, 1.0, 12.6, 512.0])
def test_as_far_as_the_squarings_reach(angle: float, dtype: torch.dtype) -> None:
    found = covered_angle(angle, dtype)
    assert found >= angle
    assert plan(found, dtype) == (3, plan(angle, dtype)[1])
    assert plan(1.001 * found, dtype)[1] == plan(angle, dtype)[1] + 1


class OnGpu(torch.Tensor):
    """On a CPU, and says otherwise."""

    is_cuda = True


@pytest.mark.parametrize("dtype", ANGLES, ids=str)
def test_a_gpu_squares_as_often_before_a_capture_as_in_it(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    for angle in (0.0, 0.05, 1.0, 4.0, 20.0):
        B = skew(True, 4, 4, angle=angle).to(dtype)
        needed = AngleRange.largest_for(math.sqrt(norm(B @ B).item()), dtype)
        for known, largest in ((None, needed), (AngleRange(4 * needed, torch.zeros(())), 4 * needed)):
            W, kept = exponential(B.as_subclass(OnGpu), known)
            assert len(kept) == 1 + 3 + plan(largest, dtype)[1]
            torch.testing.assert_close(W.as_subclass(torch.Tensor), exponential(B)[0], atol=VALUE[dtype] * 40, rtol=0)
        assert len(exponential(B)[1]) < len(kept)
        if angle:
            smaller = AngleRange(angle / 8, torch.zeros(()))
            assert len(exponential(B.as_subclass(OnGpu), smaller)[1]) == 1 + 3 + plan(needed, dtype)[1]


def test_one_bad_matrix_among_good_ones() -> None:
    B = torch.stack([skew(True, 4, 4, angle=1.0).float(), torch.full((4, 4), math.nan)])
    W, _ = exponential(B)
    assert W[1].isnan().all()
    torch.testing.assert_close(W[0], exponential(B[0])[0])


def test_the_range_of_captures_is_neither_loaded_nor_copied() -> None:
    map = Exponential(4)
    map.angle_range = AngleRange(1.0, torch.zeros(()))
    assert map.captured_range is map.angle_range
    assert copy.deepcopy(map).angle_range is None
    map.load_state_dict(map.state_dict())
    assert map.angle_range is None
    assert not map.needs_recapture()


def test_a_larger_range_ends_the_captures_of_a_smaller_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    map, cuda = Exponential(4), torch.device("cuda")
    (raw,) = map.start()
    less, same, more = (AngleRange(largest, torch.zeros(())) for largest in (6.4, 6.4, 12.8))
    map.angle_range = less
    made = []

    def get() -> object:
        return map.graphs.get("shape", cuda, lambda: made.append(object()) or made[-1], lambda: map.captured_range)

    map.graphs.clear(ready="shape")
    assert get() is made[0]
    monkeypatch.setattr(AngleRange, "measure", lambda B: same)
    map.prepare_capture(raw)
    assert map.angle_range is less
    assert get() is made[0], "captures share the range"
    monkeypatch.setattr(AngleRange, "measure", lambda B: more)
    map.prepare_capture(raw)
    assert map.angle_range is more
    assert get() is made[1], "nothing would ask whether the smaller range is used up"
    map.to(torch.float64)
    assert map.angle_range is None


def test_numbers_that_move_while_nothing_is_replayed_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    map = Exponential(4)
    (raw,) = map.start()
    map.angle_range = AngleRange(12.8, torch.zeros(()))
    assert not map.needs_recapture(raw)
    raw.mul_(10)
    assert not map.needs_recapture(raw), "one update: its replay will tell"
    for _ in range(UNSEEN_CHANGES + 1):
        raw.mul_(1)
    assert map.needs_recapture(raw)
    assert map.needs_recapture(), "until there is more: the first to ask may not be the one that captures"
    more = map.angle_range = AngleRange(1e3, torch.zeros(()))
    for _ in range(UNSEEN_CHANGES + 1):
        torch.autograd.graph.increment_version(raw)  # as by captured updates
    assert not map.needs_recapture(raw)
    more.largest = 12.8
    for _ in range(UNSEEN_CHANGES + 1):
        torch.autograd.graph.increment_version(raw)
    assert map.needs_recapture(raw)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda map: pickle.loads(pickle.dumps(map))], ids=["copy", "pickle"])
def test_a_copy_has_no_range_of_captures(copied):
    """Events of a GPU cannot be copied; a lock stands for one."""
    map = make("exponential", 4)
    map.angle_range = AngleRange(1.0, torch.zeros(()))
    map.angle_range._events.append(threading.Lock())
    assert copied(map).angle_range is None
    assert map.angle_range is not None
