/* Products over all steps at once: the input's share before the recurrence, and weight gradients after it. */

static void NAME(linear_rows)(const void *argument, int64_t first, int64_t last, char *scratch) {
    const struct linear *job = argument;
    const int64_t I = job->in, O = job->out, wide = NAME(padded)(O);
    const REAL *bias = job->bias;
    REAL *packed = NAME(take)(&scratch, I * wide), *z = NAME(take)(&scratch, CHUNK * wide);
    NAME(pack)(job->weight, I, O, job->down, job->across, packed, I);
    for (int64_t n = first; n < last; n += CHUNK) {
        const int64_t rows = last - n < CHUNK ? last - n : CHUNK;
        NAME(product)((const REAL *)job->x + n * I, rows, I, I, packed, O, z);
        for (int64_t r = 0; r < rows; r++) {
            REAL *restrict y = (REAL *)job->y + (n + r) * O;
            const REAL *restrict from = z + r * wide;
            if (bias)
                for (int64_t j = 0; j < O; j++) y[j] = from[j] + bias[j];
            else memcpy(y, from, O * sizeof(REAL));
        }
    }
}

/* y = x W + b. */
int NAME(linear)(const struct linear *job) {
    int64_t bounds[MOST_THREADS + 1];
    const int64_t threads = worthwhile(job->threads, (double)job->rows * job->in * job->out);
    split_evenly(job->rows, threads, bounds);
    expect(job->y, sizeof(REAL) * job->rows * job->out);
    const int64_t numbers = NAME(padded)(job->out) * (job->in + CHUNK);
    return parallel(NAME(linear_rows), job, bounds, threads, numbers * sizeof(REAL) + 2 * 64);
}

/* A thread sums all steps of some rows of the result, so that nothing is reduced across threads. Where x has few columns,
 * vectors run over d instead, and the result is transposed at the end. */
static void NAME(gradient_rows)(const void *argument, int64_t first, int64_t last, char *scratch) {
    const struct gradient *job = argument;
    const int64_t L = job->left, R = job->right, down = job->down, wide_x = job->x_down, all = job->steps * job->batch, before = job->x0 ? job->batch : 0;
    const int64_t thin = R < PANEL, most = last - first, wide = NAME(padded)(thin ? most : R);
    REAL *copies = NAME(take)(&scratch, NAME(outer_scratch)(most, R));
    REAL *sums = NAME(take)(&scratch, (thin ? R : most) * wide);
    for (int64_t m = first / L; m * L < last; m++) {
        const int64_t low = first > m * L ? first - m * L : 0, high = last < (m + 1) * L ? last - m * L : L;
        const int64_t count = high - low;
        const REAL *d = (const REAL *)job->d + m * all * down + low, *x = (const REAL *)job->x + m * all * wide_x;
        const REAL *x0 = (const REAL *)job->x0 + (job->x0 ? m * before * job->x0_down : 0);
        const REAL *resets = job->resets ? (const REAL *)job->resets + m * all : NULL;
        const REAL *later = resets ? resets + before : NULL;
        REAL *out = (REAL *)job->d_weight + (m * L + low) * R;
        memset(sums, 0, (thin ? R : most) * wide * sizeof(REAL));
        if (thin) {
            const int64_t stride = NAME(padded)(count);
            NAME(outer)(x0, R, job->x0_down, d, count, down, before, resets, copies, sums);
            NAME(outer)(x, R, wide_x, d + before * down, count, down, all - before, later, copies, sums);
            for (int64_t i = 0; i < count; i++)
                for (int64_t r = 0; r < R; r++) out[i * R + r] = sums[r * stride + i];
        } else {
            NAME(outer)(d, count, down, x0, R, job->x0_down, before, resets, copies, sums);
            NAME(outer)(d + before * down, count, down, x, R, wide_x, all - before, later, copies, sums);
            for (int64_t i = 0; i < count; i++) memcpy(out + i * R, sums + i * wide, R * sizeof(REAL));
        }
    }
}

/* d_weight = Σ_t d_t' x_{t-1}, with x_{-1} = x0; or Σ_t d_t' x_t where x0 is NULL. */
int NAME(gradient)(const struct gradient *job) {
    int64_t bounds[MOST_THREADS + 1];
    const double size = (double)job->models * job->steps * job->batch * job->left * job->right;
    const int64_t threads = worthwhile(job->threads, size), R = job->right;
    split_evenly(job->models * job->left, threads, bounds);
    const int64_t most = longest(bounds, threads);
    const int64_t numbers = NAME(outer_scratch)(most, R) + NAME(padded)(most) * NAME(padded)(R);
    return parallel(NAME(gradient_rows), job, bounds, threads, numbers * sizeof(REAL) + 2 * 64);
}
