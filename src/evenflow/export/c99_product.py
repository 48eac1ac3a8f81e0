"""Products with matrices in exported C: dense, as rotations, or as reflections; in float32 or int8."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from evenflow.export.c99_constants import C99Constants, finite, quantize
from evenflow.export.exported_step import Numbers
from evenflow.maps import Householder, Map, Rotations

# Sums of 16 terms at a time are rounded less often than one long sum.
DENSE = """\
/* y = W x + b; b may be 0. */
static void product(const float *w, const float *b, const float *x, float *y, int rows, int columns) {
    for (int r = 0; r < rows; r++) {
        float sum = 0;
        for (int c = 0; c < columns;) {
            const int end = columns - c > 16 ? c + 16 : columns;
            float part = 0;
            for (; c < end; c++) part += *w++ * x[c];
            sum += part;
        }
        y[r] = b ? b[r] + sum : sum;
    }
}
"""
DENSE_INT8 = """\
/* y = W x + b, where row r of W is scale[r] times whole numbers; b may be 0. */
static void product_int8(const signed char *w, const float *scale, const float *b, const float *x, float *y, int rows,
                         int columns) {
    for (int r = 0; r < rows; r++) {
        float sum = 0;
        for (int c = 0; c < columns; c++) sum += (float)*w++ * x[c];
        y[r] = b ? b[r] + scale[r] * sum : scale[r] * sum;
    }
}
"""
# With t = tan(θ/2): cos θ = 1 - s t and sin θ = s = 2t / (1 + t²). One number in place of two, and no cosine.
ROTATIONS = """\
/* y = W x for W a product of layers of plane rotations. Each layer turns every number with its partner, by an angle
 * whose half has the tangent t. */
static void rotate{suffix}(const {kind} *tangent, {scales}const {index} *partner, const {index} *from,
                   const float *x, float *y, int n, int layers) {{
    for (int i = 0; i < n; i++) y[i] = x[from[i]];
    while (layers--) {{
        unsigned char done[{most}] = {{0}};
        for (int i = 0; i < n; i++) {{
            if (done[i]) continue;
            const int j = *partner++;
            const float t = {tangent}, s = 2 * t / (1 + t * t), u = t * y[i] + y[j], v = y[i] - t * y[j];
            done[j] = 1;
            y[i] -= s * u;
            y[j] += s * v;
        }}{step}
    }}
}}
"""
REFLECTIONS = """\
/* y = W x for W a product of reflections I - u u', where |u|^2 = 2; u has the last numbers, one more each time. */
static void reflect(const float *u, const float *x, float *y, int n, int first, int count) {
    for (int i = 0; i < n; i++) y[i] = x[i];
    for (int size = first; size < first + count; size++, u += size - 1) {
        float *end = y + n - size, sum = 0;
        for (int i = 0; i < size; i++) sum += u[i] * end[i];
        for (int i = 0; i < size; i++) end[i] -= sum * u[i];
    }
}
"""
REFLECTIONS_INT8 = """\
/* y = W x for W a product of reflections I - scale u u', where scale = 2 / |u|^2; u has the last numbers, one more each
 * time. */
static void reflect_int8(const signed char *u, const float *scale, const float *x, float *y, int n, int first,
                         int count) {
    for (int i = 0; i < n; i++) y[i] = x[i];
    for (int size = first; size < first + count; size++, u += size - 1) {
        float *end = y + n - size, sum = 0;
        for (int i = 0; i < size; i++) sum += (float)u[i] * end[i];
        sum *= *scale++;
        for (int i = 0; i < size; i++) end[i] -= sum * (float)u[i];
    }
}
"""


class C99Products:
    """Writes the constants of products, and the calls that compute them.

    Args:
        constants: where matrices are written to.
        int8: whether weights are stored as int8.

    Attributes:
        functions: the C functions that the calls need.
    """

    def __init__(self, constants: C99Constants, int8: bool) -> None:
        self.constants, self.int8 = constants, int8
        self.functions: dict[str, str] = {}
        self._widest = 0  # of the rotations

    def dense(self, name: str, W: Tensor, bias: Tensor | None, x: str, y: str) -> str:
        """The call for ``y = W x + b``.

        Args:
            name: of the matrix in C.
            W, bias: the numbers.
            x, y: addresses in C.
        """
        b = "0" if bias is None else self.constants.floats(f"{name}_bias", bias)
        end = f"{b}, {x}, {y}, {W.shape[0]}, {W.shape[1]});"
        if self.int8:
            self.functions["product_int8"] = DENSE_INT8
            return f"product_int8({', '.join(self.constants.quantized(name, W))}, {end}"
        self.functions["product"] = DENSE
        return f"product({self.constants.floats(name, W)}, {end}"

    def mapped(self, name: str, map: Map, numbers: Numbers, x: str, y: str) -> str | None:
        """The call for ``y = W x`` with the matrix of a map, if the map has a form in C without the whole matrix."""
        if isinstance(map, Rotations):
            return self._rotations(name, map, numbers[0], x, y)
        if isinstance(map, Householder) and map.reflectors:
            return self._reflections(name, map, numbers[0], x, y)
        return None

    def _rotations(self, name: str, map: Rotations, angles: Tensor, x: str, y: str) -> str:
        tangents, partners, order = in_place(map, angles)
        kind = "unsigned char" if map.rows <= 256 else "unsigned short"
        partner = self.constants.whole(f"{name}_partner", partners, kind)
        source = self.constants.whole(f"{name}_from", order, kind)
        # A large tangent would leave the small ones of its layer without a scale.
        int8 = self.int8 and bool((tangents.abs() <= 1).all())
        stored = self.constants.quantized(name, tangents) if int8 else (self.constants.floats(name, tangents),)
        suffix = ("_int8" if int8 else "") + ("" if kind == "unsigned char" else "_long")
        self._widest = max(self._widest, map.rows)
        self.functions[f"rotate{suffix}"] = ROTATIONS.format(
            suffix=suffix,
            kind="signed char" if int8 else "float",
            scales="const float *scale, " if int8 else "",
            index=kind,
            most=self._widest,
            tangent="*scale * (float)*tangent++" if int8 else "*tangent++",
            step="\n        scale++;" if int8 else "",
        )
        return f"rotate{suffix}({', '.join(stored)}, {partner}, {source}, {x}, {y}, {map.rows}, {map.layers});"

    def _reflections(self, name: str, map: Householder, raw: Tensor, x: str, y: str) -> str:
        n, m = map.rows, map.reflectors
        V = finite(name, map.vectors(raw))
        vectors = [V[k, k:] for k in reversed(range(m))]  # in the order in which they are applied
        end = f"{x}, {y}, {n}, {n - m + 1}, {m});"
        if not self.int8:
            self.functions["reflect"] = REFLECTIONS
            longer = [v * (math.sqrt(2) / v.norm().clamp_min(1e-300)) for v in vectors]
            return f"reflect({self.constants.floats(name, torch.cat(longer))}, {end}"
        self.functions["reflect_int8"] = REFLECTIONS_INT8
        whole = [quantize(v)[0] for v in vectors]
        scales = torch.stack([2 / v.square().sum().clamp_min(1) for v in whole])
        stored = self.constants.whole(name, torch.cat(whole)), self.constants.floats(f"{name}_scale", scales)
        return f"reflect_int8({', '.join(stored)}, {end}"


def in_place(map: Rotations, angles: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The rotations of a map as turns of numbers that stay where they are, with one permutation before the first.

    Returns:
        tangents of half the angles ``(k, n/2)``; the partner of each number that has not been turned by its layer,
        ``(k, n/2)``; and the place ``(n)`` from which each number is read. The first layer is applied first.
    """
    turns = finite("the rotations", angles)
    half, slots = map.rows // 2, torch.arange(map.rows)  # where each number of the map's current layer is kept
    tangents, partners = [], []
    for layer, permutation in enumerate(map.permutations.cpu()):  # the last applied layer is listed first
        left, right = slots[:half], slots[half:]
        order = torch.minimum(left, right).argsort()
        partners.append(torch.maximum(left, right)[order])
        turned = torch.where(left < right, turns[layer], -turns[layer])[order]
        tangents.append((turned / 2).tan().clamp(-1e15, 1e15))
        before = torch.empty_like(slots)
        before[permutation] = slots
        slots = before
    source = torch.empty_like(slots)
    source[slots] = torch.arange(map.rows)
    return torch.stack(tangents[::-1]), torch.stack(partners[::-1]), source
