/* Elementary functions, written so that the compiler vectorises a loop over units. A comparison with NaN is false; each
 * function is written so that NaN propagates. */

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

static inline REAL NAME(exp)(REAL x) {
    const REAL most = sizeof(REAL) == 4 ? (REAL)88.72283 : (REAL)709.782712893384, least = sizeof(REAL) == 4 ? (REAL)-87.33654 : (REAL)-708.3964185322641;
    REAL power;
    const REAL inside = x > most ? most : (x < least ? least : x), half = inside * (REAL)0.5;
    const REAL growth = NAME(grown)(half, &power), root = power * growth + power; /* 2^n may be beyond what REAL holds, its root is not */
    (void)root;
    const REAL value = root * root;
    return x > most ? (REAL)INFINITY : (x < least ? 0 : value);
}

static inline REAL NAME(expm1)(REAL x) {
    REAL power;
    const REAL most = sizeof(REAL) == 4 ? (REAL)87 : (REAL)708, inside = x > most ? most : (x < -most ? -most : x);
    const REAL growth = NAME(grown)(inside, &power);
    return x > most ? NAME(exp)(x) : power * growth + (power - 1);
}

/* x = 2^n m with m from sqrt(1/2) to sqrt(2), ln m = 2 artanh((m - 1) / (m + 1)). */
static inline REAL NAME(log)(REAL x) {
    const int single = sizeof(REAL) == 4;
    INTEGER bits;
    memcpy(&bits, &x, sizeof bits);
    const INTEGER one = single ? (INTEGER)0x3f800000 : (INTEGER)0x3ff0000000000000, root = single ? (INTEGER)0x3f3504f3 : (INTEGER)0x3fe6a09e667f3bcd;
    const int shift = single ? 23 : 52;
    const INTEGER power = (INTEGER)(bits - root) >> shift;
    bits -= power * ((INTEGER)1 << shift);
    (void)one;
    REAL m;
    memcpy(&m, &bits, sizeof m);
    const REAL n = (REAL)power, f = (m - 1) / (m + 1), s = f * f;
    REAL sum = 0;
    if (!single) {
        sum = (REAL)(1.0 / 21);
        sum = sum * s + (REAL)(1.0 / 19);
        sum = sum * s + (REAL)(1.0 / 17);
        sum = sum * s + (REAL)(1.0 / 15);
        sum = sum * s + (REAL)(1.0 / 13);
        sum = sum * s + (REAL)(1.0 / 11);
    }
    sum = sum * s + (REAL)(1.0 / 9);
    sum = sum * s + (REAL)(1.0 / 7);
    sum = sum * s + (REAL)(1.0 / 5);
    sum = sum * s + (REAL)(1.0 / 3);
    const REAL value = n * (REAL)6.93147180369123816490e-01 + (2 * f + 2 * f * s * sum + n * (REAL)1.90821492927058770002e-10);
    return x > 0 ? (x > (single ? (REAL)3.402823e38 : (REAL)1.797693e308) ? x : value) : (x == 0 ? -(REAL)INFINITY : (REAL)NAN);
}

static inline REAL NAME(log1p)(REAL x) {
    const REAL more = 1 + x, left = more - 1; /* what is lost of x in 1 + x is made up for by a factor */
    return left == 0 ? x : NAME(log)(more) * (x / left);
}

/* The sine of x + turns quarter turns. The angle is brought to within an eighth of a turn in double precision. */
static inline REAL NAME(circle)(REAL x, int64_t turns) {
    const double shift = 6755399441055744.0, quarters = (double)x * 0.63661977236758134308 + shift;
    int64_t bits;
    memcpy(&bits, &quarters, sizeof bits);
    const double n = quarters - shift;
    const double r = (((double)x - n * 1.57079632673412561417) - n * 6.07710050630396597660e-11) - n * 2.02226624879595063154e-21;
    const double s = r * r;
    const double sine = r + r * s * (-1.0 / 6 + s * (1.0 / 120 + s * (-1.0 / 5040 + s * (1.0 / 362880 + s * (-1.0 / 39916800 + s * (1.0 / 6227020800.0 - s * (1.0 / 1307674368000.0)))))));
    const double cosine = 1 + s * (-0.5 + s * (1.0 / 24 + s * (-1.0 / 720 + s * (1.0 / 40320 + s * (-1.0 / 3628800 + s * (1.0 / 479001600.0 - s * (1.0 / 87178291200.0 - s * (1.0 / 20922789888000.0))))))));
    const int64_t which = bits + turns;
    const double value = which & 1 ? cosine : sine;
    return (REAL)(which & 2 ? -value : value);
}

static inline REAL NAME(sin)(REAL x) { return NAME(circle)(x, 0); }
static inline REAL NAME(cos)(REAL x) { return NAME(circle)(x, 1); }
static inline REAL NAME(sqrt)(REAL x) { return sizeof(REAL) == 4 ? __builtin_sqrtf(x) : __builtin_sqrt(x); }
static inline REAL NAME(erf)(REAL x) { return sizeof(REAL) == 4 ? __builtin_erff(x) : __builtin_erf(x); }
