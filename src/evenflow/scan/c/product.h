/* Matrix products in register tiles of TILE_ROWS rows by two vectors.
 *
 * A matrix on the right is packed once into panels PANEL columns wide, each panel depth * PANEL numbers in a row and the
 * last one filled up with zeros. Sums run over the depth in order, alike for every row. */

#define LANES ((int64_t)(VECTOR_BYTES / sizeof(REAL)))
#define PANEL (2 * LANES)
#define CHUNK 128 /* rows of a long sum that are packed at a time, few enough to stay in the cache */

typedef REAL NAME(vec) __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(REAL)), may_alias));

static int64_t NAME(padded)(int64_t columns) { return (columns + PANEL - 1) / PANEL * PANEL; }

/* The next `count` numbers of a thread's scratch memory, aligned to a cache line. */
static REAL *NAME(take)(char **scratch, int64_t count) {
    REAL *taken = (REAL *)*scratch;
    *scratch += (count * sizeof(REAL) + 63) / 64 * 64;
    return taken;
}

/* packed = the (depth, columns) matrix whose entry (k, j) is source[k * down + j * across]. */
static void NAME(pack)(const REAL *source, int64_t depth, int64_t columns, int64_t down, int64_t across, REAL *packed) {
    for (int64_t first = 0; first < columns; first += PANEL) {
        int64_t width = columns - first < PANEL ? columns - first : PANEL;
        for (int64_t k = 0; k < depth; k++, packed += PANEL) {
            const REAL *row = source + k * down + first * across;
            if (across == 1 && width == PANEL) memcpy(packed, row, PANEL * sizeof(REAL));
            else {
                for (int64_t j = 0; j < width; j++) packed[j] = row[j * across];
                for (int64_t j = width; j < PANEL; j++) packed[j] = 0;
            }
        }
    }
}

/* out (+)= x panel for a tile whose number of rows is known to the compiler; entry (r, k) of x is at r * down + k * across. */
static inline __attribute__((always_inline)) void NAME(tile)(const int rows, const REAL *x, int64_t down, int64_t across,
                                                             const REAL *panel, int64_t depth, REAL *out,
                                                             int64_t stride, const int add) {
    typedef NAME(vec) vec;
    vec sums[TILE_ROWS][2];
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++) sums[r][0] = sums[r][1] = (vec){0};
    for (int64_t k = 0; k < depth; k++, panel += PANEL) {
        const vec left = *(const vec *)panel, right = *(const vec *)(panel + LANES);
#pragma GCC unroll 12
        for (int r = 0; r < rows; r++) {
            const REAL value = x[r * down + k * across];
            sums[r][0] += value * left;
            sums[r][1] += value * right;
        }
    }
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++) {
        vec *to = (vec *)(out + r * stride), *next = (vec *)(out + r * stride + LANES);
        if (add) sums[r][0] += *to, sums[r][1] += *next;
        *to = sums[r][0];
        *next = sums[r][1];
    }
}

/* All rows against one panel, in tiles of about equal height. */
static inline __attribute__((always_inline)) void NAME(tiles)(int64_t rows, const REAL *x, int64_t down, int64_t across,
                                                              const REAL *panel, int64_t depth, REAL *out,
                                                              int64_t stride, const int add) {
    for (int64_t left = (rows + TILE_ROWS - 1) / TILE_ROWS; left > 0; left--) {
        int64_t height = (rows + left - 1) / left;
#define TILE(n) case n: NAME(tile)(n, x, down, across, panel, depth, out, stride, add); break;
        switch (height) {
            TILE(1) TILE(2) TILE(3) TILE(4) TILE(5) TILE(6)
#if TILE_ROWS > 6
            TILE(7) TILE(8) TILE(9) TILE(10) TILE(11) TILE(12)
#endif
        }
#undef TILE
        x += height * down;
        out += height * stride;
        rows -= height;
    }
}

/* out = x packed: x (rows, depth) with rows `down` apart, out (rows, padded columns). */
static void NAME(product)(const REAL *x, int64_t rows, int64_t depth, int64_t down, const REAL *packed, int64_t columns,
                          REAL *out) {
    int64_t stride = NAME(padded)(columns);
    for (int64_t j = 0; j < columns; j += PANEL, packed += depth * PANEL)
        NAME(tiles)(rows, x, down, 1, packed, depth, out + j, stride, 0);
}

static int64_t NAME(outer_scratch)(int64_t one, int64_t other) {
    return CHUNK * (NAME(padded)(one) + NAME(padded)(other) + LANES);
}

/* sums += left' right over `rows` rows, which lie left_down and right_down apart: sums (count, padded columns). Both
 * sides are copied chunk by chunk, the left one to rows a little longer than they need be: a distance of a power of two
 * would put them all in the same few places of the cache. */
static void NAME(outer)(const REAL *left, int64_t count, int64_t left_down, const REAL *right, int64_t columns,
                        int64_t right_down, int64_t rows, REAL *scratch, REAL *sums) {
    const int64_t stride = NAME(padded)(columns), gap = NAME(padded)(count) + LANES;
    REAL *copied = scratch + CHUNK * stride;
    for (int64_t n = 0; n < rows; n += CHUNK) {
        const int64_t depth = rows - n < CHUNK ? rows - n : CHUNK;
        NAME(pack)(right + n * right_down, depth, columns, right_down, 1, scratch);
        for (int64_t k = 0; k < depth; k++) memcpy(copied + k * gap, left + (n + k) * left_down, count * sizeof(REAL));
        for (int64_t j = 0; j < columns; j += PANEL)
            NAME(tiles)(count, copied, 1, gap, scratch + j * depth, depth, sums + j, stride, 1);
    }
}
