/* The non-linearities and their slopes, row by row. A comparison with NaN is false: each is written so that NaN passes. */

/* e^x - 1 = 2^n (e^r - 1) + 2^n - 1 with x = n ln 2 + r, for |x| < 88; also gives 2^n. e^r - 1 is its Taylor sum. */
static inline REAL NAME(grown)(REAL x, REAL *power) {
    const int single = sizeof(REAL) == 4;
    const REAL shift = single ? (REAL)12582912.0 : (REAL)6755399441055744.0; /* 1.5 * 2^23 or 2^52: rounds to whole */
    const REAL high = single ? (REAL)0.693359375 : (REAL)6.93147180369123816490e-01;
    const REAL low = single ? (REAL)-2.12194440054690583e-4 : (REAL)1.90821492927058770002e-10;
    REAL whole = x * (REAL)1.44269504088896340736 + shift;
    INTEGER bits;
    memcpy(&bits, &whole, sizeof bits);
    bits = single ? (INTEGER)((uint64_t)(bits + 127) << 23) : (INTEGER)((uint64_t)(bits + 1023) << 52);
    memcpy(power, &bits, sizeof bits);
    whole -= shift;
    REAL r = x - whole * high - whole * low, sum = 0;
    if (!single) {
        sum = (REAL)(1.0 / 6227020800.0);
        sum = sum * r + (REAL)(1.0 / 479001600.0);
        sum = sum * r + (REAL)(1.0 / 39916800.0);
        sum = sum * r + (REAL)(1.0 / 3628800.0);
        sum = sum * r + (REAL)(1.0 / 362880.0);
        sum = sum * r + (REAL)(1.0 / 40320.0);
    }
    sum = sum * r + (REAL)(1.0 / 5040.0);
    sum = sum * r + (REAL)(1.0 / 720.0);
    sum = sum * r + (REAL)(1.0 / 120.0);
    sum = sum * r + (REAL)(1.0 / 24.0);
    sum = sum * r + (REAL)(1.0 / 6.0);
    sum = sum * r + (REAL)0.5;
    return (sum * r) * r + r;
}

static inline REAL NAME(tanh)(REAL x) {
    REAL twice = x < 0 ? -2 * x : 2 * x, power;
    twice = twice > 44 ? 44 : twice;
    REAL growth = NAME(grown)(twice, &power);
    growth = power * growth + (power - 1);
    REAL value = growth / (growth + 2);
    return x < 0 ? -value : value;
}

static inline REAL NAME(sigmoid)(REAL x) {
    REAL minus = x < -80 ? 80 : (x > 80 ? -80 : -x), power;
    REAL growth = NAME(grown)(minus, &power);
    return 1 / (1 + (power * growth + power));
}

static inline REAL NAME(length)(REAL x, REAL y) {
    const REAL square = x * x + y * y;
    return sizeof(REAL) == 4 ? __builtin_sqrtf(square) : __builtin_sqrt(square);
}

/* out = f(a) for one row of n units. */
static void NAME(activate)(int64_t kind, int64_t n, REAL slope, const REAL *restrict bias, const REAL *restrict a,
                           REAL *restrict out) {
    const int64_t half = n / 2;
    switch (kind) {
    case RELU:
        for (int64_t j = 0; j < n; j++) out[j] = a[j] <= 0 ? 0 : a[j];
        break;
    case LEAKY:
    case PRELU:
        for (int64_t j = 0; j < n; j++) out[j] = a[j] > 0 ? a[j] : slope * a[j];
        break;
    case TANH:
        for (int64_t j = 0; j < n; j++) out[j] = NAME(tanh)(a[j]);
        break;
    case ABS:
        for (int64_t j = 0; j < n; j++) out[j] = a[j] < 0 ? -a[j] : a[j];
        break;
    case OPLU:
        for (int64_t j = 0; j < half; j++) {
            const REAL left = a[j], right = a[half + j];
            const int swap = left < right;
            out[j] = swap ? right : left;
            out[half + j] = swap ? left : right;
        }
        break;
    case MODRELU:
        for (int64_t j = 0; j < n; j++) {
            const REAL size = (a[j] < 0 ? -a[j] : a[j]) + bias[j];
            const REAL shrunk = size <= 0 ? 0 : size;
            out[j] = a[j] > 0 ? shrunk : (a[j] < 0 ? -shrunk : 0 * size);
        }
        break;
    case COMPLEX_MODRELU:
        for (int64_t j = 0; j < half; j++) {
            const REAL size = NAME(length)(a[j], a[half + j]), shrunk = size + bias[j];
            const REAL scale = size == 0 || shrunk <= 0 ? 0 : shrunk / size;
            out[j] = scale * a[j];
            out[half + j] = scale * a[half + j];
        }
        break;
    default:
        memcpy(out, a, n * sizeof(REAL));
    }
}

/* d = share f'(a) g for one row, where `known` is f(a), or a itself for prelu, abs and oplu. */
static void NAME(pull)(int64_t kind, int64_t n, REAL slope, const REAL *restrict bias, REAL share,
                       const REAL *restrict known, const REAL *restrict g, REAL *restrict d) {
    const int64_t half = n / 2;
    switch (kind) {
    case RELU:
        for (int64_t j = 0; j < n; j++) d[j] = known[j] <= 0 ? 0 : share * g[j];
        break;
    case LEAKY:
    case PRELU:
        for (int64_t j = 0; j < n; j++) d[j] = (known[j] > 0 ? share : share * slope) * g[j];
        break;
    case TANH:
        for (int64_t j = 0; j < n; j++) d[j] = share * (1 - known[j] * known[j]) * g[j];
        break;
    case ABS:
        for (int64_t j = 0; j < n; j++) d[j] = (known[j] > 0 ? share : (known[j] < 0 ? -share : 0)) * g[j];
        break;
    case OPLU:
        for (int64_t j = 0; j < half; j++) {
            const int swap = known[j] < known[half + j];
            const REAL left = share * g[j], right = share * g[half + j];
            d[j] = swap ? right : left;
            d[half + j] = swap ? left : right;
        }
        break;
    case MODRELU:
        for (int64_t j = 0; j < n; j++) d[j] = known[j] == 0 ? 0 : share * g[j];
        break;
    case COMPLEX_MODRELU: /* along the direction of a pair the slope is 1, across it |f(a)| / |a| */
        for (int64_t j = 0; j < half; j++) {
            const REAL x = known[j], y = known[half + j], size = NAME(length)(x, y);
            const REAL least = (sizeof(REAL) == 4 ? (REAL)1.1920929e-07 : (REAL)2.220446049250313e-16) * size;
            const REAL before = size - bias[j] <= least ? least : size - bias[j]; /* rounding may leave nothing */
            const REAL across = size == 0 ? 0 : size / before, inverse = size == 0 ? 0 : 1 / size;
            const REAL along = (x * inverse * g[j] + y * inverse * g[half + j]) * (1 - across) * inverse;
            d[j] = share * (across * g[j] + along * x);
            d[half + j] = share * (across * g[half + j] + along * y);
        }
        break;
    default:
        for (int64_t j = 0; j < n; j++) d[j] = share * g[j];
    }
}

/* sums += df/dp g for one row, still apart for every unit; `known` as above. */
static void NAME(pull_parameter)(int64_t kind, int64_t n, REAL share, const REAL *restrict known, const REAL *restrict g,
                                 double *restrict sums) {
    if (kind == PRELU)
        for (int64_t j = 0; j < n; j++) sums[j] += (known[j] > 0 ? 0 : known[j]) * share * g[j];
    else if (kind == COMPLEX_MODRELU)
        for (int64_t j = 0; j < n / 2; j++) {
            const REAL size = NAME(length)(known[j], known[n / 2 + j]), inverse = size == 0 ? 0 : share / size;
            sums[j] += inverse * known[j] * g[j] + inverse * known[n / 2 + j] * g[n / 2 + j];
        }
    else
        for (int64_t j = 0; j < n; j++) sums[j] += (known[j] > 0 ? share : (known[j] < 0 ? -share : 0)) * g[j];
}
