/* Matrix products in register tiles of TILE_ROWS rows by two vectors.
 *
 * The right matrix is packed once into panels of PANEL columns, each panel depth * PANEL contiguous numbers, the last one
 * padded with zeros. Sums run over the depth in order, in the same way for every row. */

#define LANES ((int64_t)(VECTOR_BYTES / sizeof(REAL)))
#define PANEL (2 * LANES)
#define LARGE ((REAL)0.75) /* an orthogonal matrix has at most one such entry in a row or column */
#define CHUNK 128 /* rows of a long sum that are packed at a time, few enough to stay in the cache */

typedef REAL NAME(vec) __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(REAL)), may_alias));

static int64_t NAME(padded)(int64_t columns) { return (columns + PANEL - 1) / PANEL * PANEL; }

/* The next `count` numbers of a thread's scratch memory, aligned to a cache line. */
static REAL *NAME(take)(char **scratch, int64_t count) {
    REAL *taken = (REAL *)*scratch;
    *scratch += (count * sizeof(REAL) + 63) / 64 * 64 + FENCE;
    ASAN_POISON_MEMORY_REGION(taken + count, *scratch - (char *)(taken + count));
    return taken;
}

/* packed = the (depth, columns) matrix whose entry (k, j) is source[k * down + j * across], of panels `total` deep: several
 * matrices below each other begin at packed, packed + depth * PANEL, and so on. */
static void NAME(pack)(const REAL *source, int64_t depth, int64_t columns, int64_t down, int64_t across, REAL *packed,
                       int64_t total) {
    for (int64_t first = 0; first < columns; first += PANEL, packed += (total - depth) * PANEL) {
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

/* The product of all rows and one panel, in tiles of about equal height. */
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

/* A square matrix in two parts: packed without its large entries, and these in a list.
 *
 * A term much larger than the others is best added last: a term added after it is rounded to the last digit of the large
 * one, and a recurrence that keeps its norm makes the same error at every step. In place of a large entry there is
 * a zero in `packed`, so that an infinite x gives nan, as beside any zero. */
typedef struct {
    REAL *packed, *large;
    int32_t *count; /* of the large entries; in scratch memory, which may be kept for further calls */
    int32_t *at;    /* row and column of each large entry */
} NAME(split);

static int64_t NAME(split_scratch)(int64_t size) { return size * (NAME(padded)(size) + 3) + 1; }

static NAME(split) NAME(take_split)(char **scratch, int64_t size) {
    NAME(split) matrix = {0};
    matrix.packed = NAME(take)(scratch, size * NAME(padded)(size));
    matrix.large = NAME(take)(scratch, size);
    matrix.count = (int32_t *)NAME(take)(scratch, 2 * size + 1);
    matrix.at = matrix.count + 1;
    return matrix;
}

static inline int NAME(is_large)(REAL entry) { return entry >= LARGE || entry <= -LARGE; }

/* matrix = the one whose entry (k, j) is source[k * down + j * across], of the two one and the other `size`. With more
 * large entries than rows it cannot be orthogonal and is packed whole. */
static void NAME(pack_split)(const REAL *source, int64_t size, int64_t down, int64_t across, NAME(split) *matrix) {
    int64_t left = 0;
    for (int64_t n = 0; n < size * size; n++) left += NAME(is_large)(source[n]);
    NAME(pack)(source, size, size, down, across, matrix->packed, size);
    *matrix->count = 0;
    if (left > size) return;
    for (int64_t n = 0; left > 0; n++) {
        if (!NAME(is_large)(source[n])) continue;
        const int64_t row = down == 1 ? n % size : n / size, column = down == 1 ? n / size : n % size;
        matrix->at[2 * *matrix->count] = (int32_t)row;
        matrix->at[2 * *matrix->count + 1] = (int32_t)column;
        matrix->large[(*matrix->count)++] = source[n];
        matrix->packed[column / PANEL * PANEL * size + row * PANEL + column % PANEL] = 0;
        left--;
    }
}

/* out = x matrix: x (rows, size) with rows `down` apart, out (rows, padded size). */
static void NAME(product_split)(const REAL *x, int64_t rows, int64_t size, int64_t down, const NAME(split) *matrix,
                                REAL *out) {
    enum { TOGETHER = 8 }; /* rows at a time, few enough to stay in the cache */
    const int64_t stride = NAME(padded)(size);
    NAME(product)(x, rows, size, down, matrix->packed, size, out);
    for (int64_t left = rows; left > 0; left -= TOGETHER, x += TOGETHER * down, out += TOGETHER * stride)
        for (int64_t n = 0; n < *matrix->count; n++) {
            const REAL large = matrix->large[n], *from = x + matrix->at[2 * n];
            REAL *to = out + matrix->at[2 * n + 1];
            const int64_t height = left < TOGETHER ? left : TOGETHER;
            for (int64_t r = 0; r < height; r++, from += down, to += stride) *to += large * *from;
        }
}

static int64_t NAME(outer_scratch)(int64_t one, int64_t other) {
    return CHUNK * (NAME(padded)(one) + NAME(padded)(other) + LANES);
}

/* sums += left' right over `rows` rows with strides left_down and right_down, without those where `skipped` is not zero
 * (or all, where it is NULL): sums (count, padded columns). Both sides are copied chunk by chunk. The copied rows of the
 * left side are a little longer than needed: with a stride of a power of two they would all map to the same few sets of
 * the cache. */
static void NAME(outer)(const REAL *left, int64_t count, int64_t left_down, const REAL *right, int64_t columns,
                        int64_t right_down, int64_t rows, const REAL *skipped, REAL *scratch, REAL *sums) {
    const int64_t stride = NAME(padded)(columns), gap = NAME(padded)(count) + LANES;
    REAL *copied = scratch + CHUNK * stride;
    for (int64_t n = 0; n < rows; n += CHUNK) {
        const int64_t depth = rows - n < CHUNK ? rows - n : CHUNK;
        NAME(pack)(right + n * right_down, depth, columns, right_down, 1, scratch, depth);
        for (int64_t k = 0; k < depth; k++) {
            if (skipped && skipped[n + k] != 0) memset(copied + k * gap, 0, count * sizeof(REAL));
            else memcpy(copied + k * gap, left + (n + k) * left_down, count * sizeof(REAL));
        }
        for (int64_t j = 0; j < columns; j += PANEL)
            NAME(tiles)(count, copied, 1, gap, scratch + j * depth, depth, sums + j, stride, 1);
    }
}
