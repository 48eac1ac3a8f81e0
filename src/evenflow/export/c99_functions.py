"""The elementary functions of exported C: those of math.h, or approximations that need no library."""

from __future__ import annotations

# Bounds of the error: relative to the value for exp and sqrt, to max(1, |value|) for the others; sin and cos up to
# |x| = 8192.
ERRORS = {
    "exp": 3e-7, "expm1": 4e-7, "tanh": 2e-7, "sigmoid": 2e-7, "log": 2e-7, "log1p": 3e-7, "sqrt": 2e-7, "sin": 2e-7,
    "cos": 2e-7, "erf": 6e-7,
}  # fmt: skip

LIBRARY = {
    "exp": "expf", "expm1": "expm1f", "tanh": "tanhf", "log": "logf", "log1p": "log1pf", "sin": "sinf", "cos": "cosf",
    "sqrt": "sqrtf", "erf": "erff",
}  # fmt: skip
SIGMOID = """\
static float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
"""

# By name: the functions that it calls, and its text.
APPROXIMATIONS = {
    "exp": (
        (),
        """\
/* 2^k e^r with x = k ln 2 + r, and e^r as its Taylor sum. */
static float approximate_exp(float x) {
    union { float value; unsigned int bits; } power;
    if (x != x) return x;
    if (x > 88.72f) return 1.0f / 0.0f;
    if (x < -87.33f) return 0.0f;
    const int k = (int)(x * 1.44269504f + (x < 0 ? -0.5f : 0.5f));
    const float r = x - (float)k * 0.693359375f + (float)k * 2.12194440e-4f;
    float sum = 1.0f / 720.0f;
    sum = sum * r + 1.0f / 120.0f;
    sum = sum * r + 1.0f / 24.0f;
    sum = sum * r + 1.0f / 6.0f;
    sum = (sum * r + 0.5f) * r * r + r;
    power.bits = (unsigned int)(k / 2 + 127) << 23; /* in two factors: 2^k may be more than a float holds */
    sum = sum * power.value + power.value;
    power.bits = (unsigned int)(k - k / 2 + 127) << 23;
    return sum * power.value;
}
""",
    ),
    "expm1": (
        ("exp",),
        """\
static float approximate_expm1(float x) {
    if (x < -0.35f || x > 0.35f) return approximate_exp(x) - 1.0f;
    return x * (1.0f + x * (0.5f + x * (1.0f / 6.0f + x * (1.0f / 24.0f + x * (1.0f / 120.0f + x / 720.0f)))));
}
""",
    ),
    "tanh": (
        ("exp",),
        """\
/* A continued fraction for small x, so that small values have small errors. */
static float approximate_tanh(float x) {
    const float s = x * x;
    if (s < 0.3f) return x * (105.0f + 10.0f * s) / (105.0f + s * (45.0f + s));
    const float value = 1.0f - 2.0f / (approximate_exp(x < 0 ? -2.0f * x : 2.0f * x) + 1.0f);
    return x < 0 ? -value : value;
}
""",
    ),
    "sigmoid": (
        ("exp",),
        """\
static float approximate_sigmoid(float x) { return 1.0f / (1.0f + approximate_exp(-x)); }
""",
    ),
    "log": (
        (),
        """\
/* x = 2^n m with m from sqrt(1/2) to sqrt(2), and ln m = 2 artanh((m - 1) / (m + 1)). */
static float approximate_log(float x) {
    union { float value; unsigned int bits; } m;
    int n = 0;
    if (!(x > 0)) return x == 0 ? -1.0f / 0.0f : 0.0f / 0.0f;
    if (x > 3.4028234e38f) return x;
    if (x < 1.1754944e-38f) {
        x *= 8388608.0f;
        n = -23;
    }
    m.value = x;
    const int exponent = (int)((m.bits + 0x004afb0du) >> 23) - 127;
    m.bits -= (unsigned int)exponent * 0x00800000u;
    n += exponent;
    const float f = (m.value - 1.0f) / (m.value + 1.0f), s = f * f;
    const float sum = s * (1.0f / 3.0f + s * (1.0f / 5.0f + s * (1.0f / 7.0f + s / 9.0f)));
    return (float)n * 0.693359375f + (2.0f * f + 2.0f * f * sum - (float)n * 2.12194440e-4f);
}
""",
    ),
    "log1p": (
        ("log",),
        """\
/* The rounding of 1 + x is made up for by a factor. */
static float approximate_log1p(float x) {
    const float more = 1.0f + x, left = more - 1.0f;
    if (left == 0) return x;
    return more > 3.4028234e38f ? more : approximate_log(more) * (x / left);
}
""",
    ),
    "sqrt": (
        (),
        """\
/* Newton's method for 1 / sqrt(x), and one step for the root. */
static float approximate_sqrt(float x) {
    union { float value; unsigned int bits; } y;
    if (!(x > 0)) return x == 0 ? x : 0.0f / 0.0f;
    if (x > 3.4028234e38f) return x;
    if (x < 1e-30f) return approximate_sqrt(x * 1.0995116e12f) * 9.5367432e-7f;
    y.value = x;
    y.bits = 0x5f3759dfu - (y.bits >> 1);
    for (int i = 0; i < 3; i++) y.value *= 1.5f - 0.5f * x * y.value * y.value;
    const float root = x * y.value;
    return 0.5f * (root + x / root);
}
""",
    ),
    "circle": (
        (),
        """\
/* The sine of x and some quarter turns; the angle is brought to within an eighth of a turn. */
static float approximate_circle(float x, int quarters) {
    if (!(x > -1e8f && x < 1e8f)) return 0.0f / 0.0f;
    const int k = (int)(x * 0.636619772f + (x < 0 ? -0.5f : 0.5f));
    const float r = ((x - (float)k * 1.5703125f) - (float)k * 4.83751297e-4f) - (float)k * 7.54978995e-8f, s = r * r;
    const unsigned int turn = (unsigned int)k + (unsigned int)quarters;
    const float value = turn & 1u
        ? 1.0f + s * (-0.5f + s * (1.0f / 24.0f + s * (-1.0f / 720.0f + s / 40320.0f)))
        : r + r * s * (-1.0f / 6.0f + s * (1.0f / 120.0f + s * (-1.0f / 5040.0f + s / 362880.0f)));
    return turn & 2u ? -value : value;
}
""",
    ),
    "sin": (
        ("circle",),
        """\
static float approximate_sin(float x) { return approximate_circle(x, 0); }
""",
    ),
    "cos": (
        ("circle",),
        """\
static float approximate_cos(float x) { return approximate_circle(x, 1); }
""",
    ),
    "erf": (
        ("exp",),
        """\
/* Abramowitz and Stegun, 7.1.26. */
static float approximate_erf(float x) {
    const float size = x < 0 ? -x : x, t = 1.0f / (1.0f + 0.3275911f * size);
    const float sum = t * (0.254829592f
        + t * (-0.284496736f + t * (1.421413741f + t * (-1.453152027f + t * 1.061405429f))));
    const float value = 1.0f - sum * approximate_exp(-size * size);
    return x < 0 ? -value : value;
}
""",
    ),
}


class C99Functions:
    """Names elementary functions in C and collects what they need.

    Args:
        approximate: whether to write approximations instead of calls of math.h.

    Attributes:
        header: whether the file needs math.h.
    """

    def __init__(self, approximate: bool) -> None:
        self.approximate = approximate
        self.header = False
        self._needed: dict[str, str] = {}

    def name(self, function: str) -> str:
        """The C name of an operation of a step such as tanh."""
        if self.approximate:
            below, text = APPROXIMATIONS[function]
            for each in below:
                self.name(each)
            self._needed.setdefault(function, text)
            return f"approximate_{function}"
        self.header = True
        if function == "sigmoid":
            self._needed["sigmoid"] = SIGMOID
            return "sigmoid"
        return LIBRARY[function]

    def special(self, name: str) -> str:
        """INFINITY or NAN."""
        if self.approximate:
            return {"INFINITY": "(1.0f / 0.0f)", "NAN": "(0.0f / 0.0f)"}[name]
        self.header = True
        return name

    @property
    def texts(self) -> list[str]:
        """The definitions, in the order of their use."""
        return list(self._needed.values())
