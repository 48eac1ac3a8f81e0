/* The activations of evenflow.activations, in the order of KINDS in elman_native.py, with what a backward pass asks of them. */

enum Kind { IDENTITY, RELU, LEAKY, PRELU, TANH, ABS, OPLU, MODRELU, COMPLEX_MODRELU };

/* Whether the slopes can be told from f(a), so that a need not be kept. */
EVERYWHERE constexpr bool reads_output(int kind) { return kind != PRELU && kind != ABS && kind != OPLU; }

/* Whether else from a mark, a byte for each unit. */
EVERYWHERE constexpr bool marks(int kind) { return kind == ABS || kind == OPLU; }

DEVICE float sign(float x) { return x > 0 ? 1.0f : x < 0 ? -1.0f : x; /* NaN stays */ }
DEVICE float sigmoid(float x) { return quotient(1.0f, 1.0f + expf(-x)); }

/* The value of all activations of single units; p is a slope or, for modrelu, the unit's bias. */
template <int KIND> DEVICE float value_at(float a, float p) {
    switch (KIND) {
    case RELU: return a < 0 ? 0.0f : a;
    case LEAKY:
    case PRELU: return a > 0 ? a : p * a;
    case TANH: return tanhf(a);
    case ABS: return fabsf(a);
    case MODRELU: {
        const float size = fabsf(a) + p;
        return sign(a) * (size < 0 ? 0.0f : size);
    }
    default: return a;
    }
}

/* The slope at what is known: the value where reads_output, else a. */
template <int KIND> DEVICE float slope_at(float known, float p) {
    switch (KIND) {
    case RELU: return known > 0 ? 1.0f : 0.0f;
    case LEAKY:
    case PRELU: return known > 0 ? 1.0f : p;
    case TANH: return 1.0f - known * known;
    case ABS: return sign(known);
    case MODRELU: return known != 0 ? 1.0f : 0.0f;
    default: return 1.0f;
    }
}

/* The same item's number at the other unit of its pair: with this thread, or with the lane beside it. */
template <class T> DEVICE void partners(const float (&mine)[T::ITEMS], float (&other)[T::ITEMS]) {
    UNROLL for (int q = 0; q < T::ITEMS; q++)
        other[q] = T::ITEMS > 1 ? mine[q ^ (T::ITEMS > 1)] : shuffle_xor(mine[q], T::COPIES);
}

/* Whether oplu swaps the pair: the first unit of a pair (even positions) takes the larger. */
DEVICE bool swaps(int position, float mine, float other) { return position & 1 ? other < mine : mine < other; }

/* |a|^2 of a pair: the same bits at both of its units. */
DEVICE float square(int position, float mine, float other) {
    const float first = position & 1 ? other : mine, second = position & 1 ? mine : other;
    return first * first + second * second;
}

template <int KIND, class T>
DEVICE void activate(const Seat<T> &seat, const float (&a)[T::ITEMS], const float (&p)[T::ITEMS], float (&h)[T::ITEMS]) {
    if (KIND == OPLU) {
        float other[T::ITEMS];
        partners<T>(a, other);
        UNROLL for (int q = 0; q < T::ITEMS; q++) h[q] = swaps(seat.position + q, a[q], other[q]) ? other[q] : a[q];
    } else if (KIND == COMPLEX_MODRELU) {
        float other[T::ITEMS];
        partners<T>(a, other);
        UNROLL for (int q = 0; q < T::ITEMS; q++) {
            const float squared = square(seat.position + q, a[q], other[q]), scale = 1.0f + p[q] * inverse_root(squared);
            h[q] = squared == 0 || scale <= 0 ? 0.0f : scale * a[q];
        }
    } else {
        UNROLL for (int q = 0; q < T::ITEMS; q++) h[q] = value_at<KIND>(a[q], p[q]);
    }
}

/* Small numbers that have the slopes of a: signs, or whether a pair was swapped. */
template <int KIND, class T> DEVICE void mark(const Seat<T> &seat, const float (&a)[T::ITEMS], signed char (&m)[T::ITEMS]) {
    float other[T::ITEMS] = {};
    if (KIND == OPLU) partners<T>(a, other);
    UNROLL for (int q = 0; q < T::ITEMS; q++) {
        const int position = seat.position + q;
        m[q] = KIND == OPLU ? (position & 1) && swaps(position, a[q], other[q]) : (a[q] > 0) - (a[q] < 0);
    }
}

/* What complex modrelu's slopes are made of, which can be found before a gradient is there: the direction of a pair, this
   unit's part of it and its partner's, along which the slope is 1, and the slope across it, |f(a)| / |a|. */
template <class T> struct Pair {
    float mine[T::ITEMS], other[T::ITEMS], across[T::ITEMS];

    template <int KIND> DEVICE void look(const Seat<T> &seat, const float (&known)[T::ITEMS], const float (&p)[T::ITEMS]) {
        if (KIND != COMPLEX_MODRELU) return;
        partners<T>(known, other);
        UNROLL for (int q = 0; q < T::ITEMS; q++) {
            const float squared = square(seat.position + q, known[q], other[q]);
            const float inverse = squared == 0 ? 0.0f : inverse_root(squared), size = squared * inverse;
            const float least = 1.1920929e-07f * size; /* rounding may leave nothing */
            const float before = size - p[q] <= least ? least : size - p[q];
            across[q] = squared == 0 ? 0.0f : quotient(size, before);
            mine[q] = known[q] * inverse, other[q] *= inverse;
        }
    }
};

/* The gradient by a from the gradient g by f(a). */
template <int KIND, class T>
DEVICE void pull(const Seat<T> &seat, const float (&known)[T::ITEMS], const float (&p)[T::ITEMS], const Pair<T> &pair,
                 const float (&g)[T::ITEMS], float (&d)[T::ITEMS]) {
    if (KIND == OPLU) {
        float other[T::ITEMS], g_other[T::ITEMS];
        partners<T>(known, other);
        partners<T>(g, g_other);
        UNROLL for (int q = 0; q < T::ITEMS; q++) d[q] = swaps(seat.position + q, known[q], other[q]) ? g_other[q] : g[q];
    } else if (KIND == COMPLEX_MODRELU) {
        float g_other[T::ITEMS];
        partners<T>(g, g_other);
        UNROLL for (int q = 0; q < T::ITEMS; q++) {
            const float along = (pair.mine[q] * g[q] + pair.other[q] * g_other[q]) * (1.0f - pair.across[q]);
            d[q] = pair.across[q] * g[q] + along * pair.mine[q];
        }
    } else {
        UNROLL for (int q = 0; q < T::ITEMS; q++) d[q] = slope_at<KIND>(known[q], p[q]) * g[q];
    }
}

/* What the parameter's gradient gets from a unit at one step, for a gradient of one by f(a). */
template <int KIND> DEVICE float by_parameter(float known, float direction) {
    return KIND == PRELU ? (known < 0 ? known : 0.0f) : KIND == MODRELU ? sign(known) : direction;
}
