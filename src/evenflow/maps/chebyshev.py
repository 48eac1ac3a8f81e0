"""Polynomials close to ``exp(z) - 1`` for z = ix, in a form that takes few products of skew-Hermitian matrices.

For a skew-Hermitian A the powers A², A⁴, ... are Hermitian, and so is every real polynomial of them. The square of a
Hermitian matrix takes one product and its gradient one more, where a product of two other matrices takes three in all:

    Y₁ = A²,  Yⱼ₊₁ = pⱼ Yⱼ² + qⱼ Yⱼ + rⱼ A²,    exp(A) - I ≈ c A + Σ xⱼ Yⱼ + Yₖ (a A + b A²).

With k = 1, 2 and 3 that has as many free numbers as a polynomial of degree 4, 6 and 9.
"""

from __future__ import annotations

import math
from typing import NamedTuple


class Polynomial(NamedTuple):
    """The coefficients c, xⱼ, a and b of the equation above, and in `steps` pⱼ, qⱼ and rⱼ; ``len(x)`` is k."""

    c: float
    x: tuple[float, ...]
    steps: tuple[tuple[float, float, float], ...]
    a: float
    b: float

    def scaled(self, t: float) -> Polynomial:
        """Return the same polynomial of ``A = tB`` in B and B²; for k > 1."""
        (p, q, _), *rest = self.steps
        return Polynomial(
            t * self.c,
            (t**2 * self.x[0], *self.x[1:]),
            ((t**4 * p, t**2 * q, 0.0), *((p, q, t**2 * r) for p, q, r in rest)),
            t * self.a,
            t**2 * self.b,
        )


def series(angle: float, degree: int, last: float = 1.0) -> list[float]:
    """Return c0 ... of ``c0 + c1 z + c2 z² + ... ≈ exp(z)`` for z = ix, |x| <= angle.

    This is Chebyshev's series of ``exp(i angle x)`` up to `degree`, with an error 2 to the `degree` times smaller than
    Taylor's. The last term is multiplied by `last`.
    """
    coefficients = [0.0] * (degree + 1)
    # iᵏ T_k(z / (i angle)) is a polynomial P_k of u = z / angle: 1, u, 2u² + 1, ... with P_k+1 = 2u P_k + P_k-1.
    before, now = [0.0] * (degree + 1), [1.0] + [0.0] * degree
    for k in range(degree + 1):
        J = sum((-1) ** m / math.factorial(m) / math.factorial(m + k) * (angle / 2) ** (2 * m + k) for m in range(12))
        weight = J if k == 0 else 2 * J * last if k == degree else 2 * J
        coefficients = [f + weight * v for f, v in zip(coefficients, now, strict=True)]
        double = 1 if k == 0 else 2
        before, now = now, [double * v + w for v, w in zip([0.0, *now[:-1]], before, strict=True)]
    return [f / angle**k for k, f in enumerate(coefficients)]


def quartic(angle: float) -> Polynomial:
    """k = 1, of degree 4."""
    _, c1, c2, c3, c4 = series(angle, 4)
    return Polynomial(c1, (c2,), (), c3, c4)


def sextic(angle: float) -> Polynomial:
    """k = 2, of degree 6: Y₂ = c5 A⁴ + c3 A², so that A Y₂ is the odd part from A³ on."""
    _, c1, c2, c3, c4, c5, c6 = series(angle, 6)
    b = c6 / c5
    x2 = (c4 - b * c3) / c5
    return Polynomial(c1, (c2 - x2 * c3, x2), ((c5, c3, 0.0),), 1.0, b)


def nonic(angle: float) -> Polynomial:
    """k = 3, of degree 9: Y₂ = A⁴ + q A² and Y₃ = c9 A⁸ + c7 A⁶ + c5 A⁴ + c3 A². The product also has a term in A¹⁰."""

    def even(last: float) -> tuple[float, list[float]]:
        """Return b and the coefficients of a series whose term of degree 10 is multiplied by `last`."""
        c = series(angle, 10, last)
        return (c[6] - c[7] / c[9] * c[8]) / (c[5] - c[7] / c[9] * c[7]), c

    # The difference between b c9, the factor of A¹⁰, and that of the series; it is linear in `last`.
    none, whole = (even(last)[0] * even(last)[1][9] - even(last)[1][10] for last in (0.0, 1.0))
    b, (_, c1, c2, c3, c4, c5, _, c7, c8, c9, _) = even(none / (none - whole))
    q = c7 / c9 / 2
    q3 = c5 - q * q * c9
    x3 = (c8 - b * c7) / c9
    x2 = c4 - b * c3 - x3 * c5
    return Polynomial(c1, (c2 - q * x2 - x3 * c3, x2, x3), ((1.0, q, 0.0), (c9, q3, c3 - q * q3)), 1.0, b)
