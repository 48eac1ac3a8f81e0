/* c_t = σ(f) c_{t-1} + σ(i) tanh(g), h_t = σ(o) tanh(c_t), with (i, f, g, o) = a_t + W h_{t-1}. */

/* One row of one step. The four blocks of a row come as pointers of their own, which tells the compiler that they lie apart. */
static void NAME(lstm_state)(int64_t H, const REAL *restrict i, const REAL *restrict f, const REAL *restrict n,
                             const REAL *restrict o, const REAL *restrict before, REAL *restrict c, REAL *restrict h) {
    for (int64_t j = 0; j < H; j++) {
        const REAL state = f[j] * before[j] + i[j] * n[j];
        c[j] = state;
        h[j] = o[j] * NAME(tanh)(state);
    }
}

/* One row of one step back: g comes in as D_{t+1} W and leaves as G_t, by_c as what reaches c_t from later and leaves
 * as what reaches c_{t-1}. */
static void NAME(lstm_pull)(int64_t H, const REAL *restrict i, const REAL *restrict f, const REAL *restrict n,
                            const REAL *restrict o, const REAL *restrict before, const REAL *restrict c,
                            const REAL *restrict from_h, const REAL *restrict from_c, REAL *restrict g,
                            REAL *restrict by_c, REAL *restrict d_i, REAL *restrict d_f, REAL *restrict d_n,
                            REAL *restrict d_o) {
    for (int64_t j = 0; j < H; j++) {
        const REAL squashed = NAME(tanh)(c[j]), by_h = from_h[j] + g[j];
        const REAL by_state = by_c[j] + from_c[j] + by_h * o[j] * (1 - squashed * squashed);
        g[j] = by_h;
        d_i[j] = by_state * n[j] * i[j] * (1 - i[j]);
        d_f[j] = by_state * before[j] * f[j] * (1 - f[j]);
        d_n[j] = by_state * i[j] * (1 - n[j] * n[j]);
        d_o[j] = by_h * squashed * o[j] * (1 - o[j]);
        by_c[j] = by_state * f[j];
    }
}

static void NAME(lstm_forward_rows)(const void *argument, int64_t first, int64_t last, char *scratch) {
    const struct lstm *job = argument;
    const int64_t B = job->batch, H = job->hidden, wide = NAME(padded)(4 * H);
    REAL *packed = NAME(take)(&scratch, H * wide), *z = NAME(take)(&scratch, (last - first) * wide);
    for (int64_t m = first / B; m * B < last; m++) {
        const int64_t low = first > m * B ? first - m * B : 0, high = last < (m + 1) * B ? last - m * B : B;
        const int64_t base = m * job->steps * B * H;
        const REAL *h_before = (const REAL *)job->h0 + m * B * H, *c_before = (const REAL *)job->c0 + m * B * H;
        NAME(pack)((const REAL *)job->weight + m * 4 * H * H, H, 4 * H, 1, H, packed);
        for (int64_t t = 0; t < job->steps; t++) {
            const int64_t running = !job->batch_sizes || job->batch_sizes[t] > high ? high : job->batch_sizes[t];
            if (running > low) NAME(product)(h_before + low * H, running - low, H, H, packed, 4 * H, z);
            for (int64_t b = low; b < high; b++) {
                const int64_t at = base + (t * B + b) * H;
                REAL *h = (REAL *)job->h + at, *c = (REAL *)job->c + at;
                REAL *restrict gate = (REAL *)job->gates + 4 * at;
                if (b >= running) {
                    memset(h, 0, H * sizeof(REAL)), memset(c, 0, H * sizeof(REAL)), memset(gate, 0, 4 * H * sizeof(REAL));
                    continue;
                }
                const REAL *restrict in = (const REAL *)job->a + 4 * at, *restrict from = z + (b - low) * wide;
                const REAL *restrict before = c_before + b * H;
                for (int64_t j = 0; j < 2 * H; j++) gate[j] = NAME(sigmoid)(in[j] + from[j]);
                for (int64_t j = 2 * H; j < 3 * H; j++) gate[j] = NAME(tanh)(in[j] + from[j]);
                for (int64_t j = 3 * H; j < 4 * H; j++) gate[j] = NAME(sigmoid)(in[j] + from[j]);
                NAME(lstm_state)(H, gate, gate + H, gate + 2 * H, gate + 3 * H, before, c, h);
            }
            h_before = (const REAL *)job->h + base + t * B * H;
            c_before = (const REAL *)job->c + base + t * B * H;
        }
    }
}

/* With G = ∂L/∂h_t and C = ∂L/∂c_t:  G_t = grad_t + D_{t+1} W,  C_t = grad_t + o (1 - tanh² c) G_t + f_{t+1} C_{t+1}. */
static void NAME(lstm_backward_rows)(const void *argument, int64_t first, int64_t last, char *scratch) {
    const struct lstm *job = argument;
    const int64_t B = job->batch, H = job->hidden, wide = NAME(padded)(H), rows = last - first;
    REAL *packed = NAME(take)(&scratch, 4 * H * wide), *z = NAME(take)(&scratch, rows * wide);
    REAL *carried = NAME(take)(&scratch, rows * wide), *nothing = NAME(take)(&scratch, wide);
    memset(nothing, 0, wide * sizeof(REAL));
    for (int64_t m = first / B; m * B < last; m++) {
        const int64_t low = first > m * B ? first - m * B : 0, high = last < (m + 1) * B ? last - m * B : B;
        const int64_t base = m * job->steps * B * H;
        REAL *d_a = (REAL *)job->d_a + 4 * base;
        NAME(pack)((const REAL *)job->weight + m * 4 * H * H, 4 * H, H, H, 1, packed);
        memset(carried, 0, rows * wide * sizeof(REAL));
        memset(z, 0, rows * wide * sizeof(REAL));
        for (int64_t t = job->steps - 1; t >= 0; t--) {
            const int64_t running = !job->batch_sizes || job->batch_sizes[t] > high ? high : job->batch_sizes[t];
            if (t + 1 < job->steps && running > low)
                NAME(product)(d_a + ((t + 1) * B + low) * 4 * H, running - low, 4 * H, 4 * H, packed, H, z);
            for (int64_t b = low; b < high; b++) {
                const int64_t at = base + (t * B + b) * H;
                REAL *d = (REAL *)job->d_a + 4 * at;
                REAL *g = z + (b - low) * wide, *by_c = carried + (b - low) * wide;
                REAL *d_state = job->d_states ? (REAL *)job->d_states + at : NULL;
                if (b >= running) {
                    memset(d, 0, 4 * H * sizeof(REAL));
                    if (d_state) memset(d_state, 0, H * sizeof(REAL));
                    continue;
                }
                const REAL *restrict from_h = job->grad_h ? (const REAL *)job->grad_h + at : nothing;
                const REAL *restrict from_c = job->grad_c ? (const REAL *)job->grad_c + at : nothing;
                const REAL *restrict gate = (const REAL *)job->gates + 4 * at, *restrict c = (const REAL *)job->c + at;
                const REAL *restrict before = t ? c - B * H : (const REAL *)job->c0 + (m * B + b) * H;
                NAME(lstm_pull)(H, gate, gate + H, gate + 2 * H, gate + 3 * H, before, c, from_h, from_c, g, by_c, d,
                                d + H, d + 2 * H, d + 3 * H);
                if (d_state) memcpy(d_state, g, H * sizeof(REAL));
            }
        }
        if (job->steps) NAME(product)(d_a + low * 4 * H, high - low, 4 * H, 4 * H, packed, H, z);
        for (int64_t b = low; b < high; b++) {
            memcpy((REAL *)job->d_h0 + (m * B + b) * H, z + (b - low) * wide, H * sizeof(REAL));
            memcpy((REAL *)job->d_c0 + (m * B + b) * H, carried + (b - low) * wide, H * sizeof(REAL));
        }
    }
}

static int NAME(lstm_run)(const struct lstm *job, work *run) {
    const int64_t H = job->hidden, wide = NAME(padded)(4 * H), narrow = NAME(padded)(H);
    int64_t bounds[MOST_THREADS + 1];
    const int64_t threads = worthwhile(job->threads, (double)job->models * job->steps * job->batch * H * 4 * H);
    split_rows(job->models, job->batch, job->steps, job->batch_sizes, threads, bounds);
    const int64_t rows = longest(bounds, threads);
    const int64_t numbers = 4 * H * narrow + H * wide + rows * (wide + 2 * narrow) + narrow;
    return parallel(run, job, bounds, threads, numbers * sizeof(REAL) + 4 * 64);
}

int NAME(lstm_forward)(const struct lstm *job) {
    const size_t bytes = sizeof(REAL) * job->models * job->steps * job->batch * job->hidden;
    expect(job->h, bytes), expect(job->c, bytes), expect(job->gates, 4 * bytes);
    return NAME(lstm_run)(job, NAME(lstm_forward_rows));
}

int NAME(lstm_backward)(const struct lstm *job) {
    const size_t bytes = sizeof(REAL) * job->models * job->steps * job->batch * job->hidden;
    expect(job->d_a, 4 * bytes), expect(job->d_states, bytes);
    return NAME(lstm_run)(job, NAME(lstm_backward_rows));
}
