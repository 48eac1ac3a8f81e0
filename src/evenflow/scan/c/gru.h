/* h_t = (1 - z) n + z h_{t-1} with (r, z) = σ(a_t + U h_{t-1}), n = tanh(a_t + r q), q = U_n h_{t-1} + c. */

/* One row of one step: `from` holds U h and U_n h, `kept` takes r, z, n and q. */
static void NAME(gru_gates)(int64_t H, const REAL *restrict in, const REAL *restrict from, const REAL *restrict bias,
                            REAL *restrict gate, REAL *restrict n, REAL *restrict q) {
    for (int64_t j = 0; j < 2 * H; j++) gate[j] = NAME(sigmoid)(in[j] + from[j]);
    for (int64_t j = 0; j < H; j++) {
        q[j] = from[2 * H + j] + bias[j];
        n[j] = NAME(tanh)(in[2 * H + j] + gate[j] * q[j]);
    }
}

static void NAME(gru_state)(int64_t H, const REAL *restrict z, const REAL *restrict n, const REAL *restrict before,
                            REAL *restrict h) {
    for (int64_t j = 0; j < H; j++) h[j] = z[j] * before[j] + (1 - z[j]) * n[j]; /* exactly h where z = 1 */
}

/* One row of one step back: g comes in as what reaches h_t from later and leaves as G_t; `passed` leaves as z G_t. */
static void NAME(gru_pull)(int64_t H, const REAL *restrict r, const REAL *restrict z, const REAL *restrict n,
                           const REAL *restrict q, const REAL *restrict before, const REAL *restrict in,
                           REAL *restrict g, REAL *restrict passed, REAL *restrict d_r, REAL *restrict d_z,
                           REAL *restrict d_n, REAL *restrict d_q) {
    for (int64_t j = 0; j < H; j++) {
        const REAL by_h = in[j] + g[j] + passed[j];
        const REAL by_n = by_h * (1 - z[j]) * (1 - n[j] * n[j]), by_q = by_n * r[j];
        g[j] = by_h;
        passed[j] = by_h * z[j];
        d_r[j] = by_q * q[j] * (1 - r[j]);
        d_z[j] = by_h * (before[j] - n[j]) * z[j] * (1 - z[j]);
        d_n[j] = by_n;
        d_q[j] = by_q;
    }
}

static void NAME(gru_forward_rows)(const void *argument, int64_t first, int64_t last, char *scratch) {
    const struct gru *job = argument;
    const int64_t B = job->batch, H = job->hidden, wide = NAME(padded)(3 * H);
    REAL *packed = NAME(take)(&scratch, H * wide), *z = NAME(take)(&scratch, (last - first) * wide);
    REAL *nothing = NAME(take)(&scratch, H);
    memset(nothing, 0, H * sizeof(REAL));
    for (int64_t m = first / B; m * B < last; m++) {
        const int64_t low = first > m * B ? first - m * B : 0, high = last < (m + 1) * B ? last - m * B : B;
        const int64_t base = m * job->steps * B * H;
        const REAL *before = (const REAL *)job->h0 + m * B * H;
        const REAL *bias = job->bias ? (const REAL *)job->bias + m * H : nothing;
        NAME(pack)((const REAL *)job->weight + m * 3 * H * H, H, 3 * H, 1, H, packed);
        for (int64_t t = 0; t < job->steps; t++) {
            const int64_t running = !job->batch_sizes || job->batch_sizes[t] > high ? high : job->batch_sizes[t];
            if (running > low) NAME(product)(before + low * H, running - low, H, H, packed, 3 * H, z);
            for (int64_t b = low; b < high; b++) {
                const int64_t at = base + (t * B + b) * H;
                REAL *h = (REAL *)job->states + at, *kept = (REAL *)job->kept + 4 * at;
                if (b >= running) {
                    memset(h, 0, H * sizeof(REAL)), memset(kept, 0, 4 * H * sizeof(REAL));
                    continue;
                }
                NAME(gru_gates)(H, (const REAL *)job->a + 3 * at, z + (b - low) * wide, bias, kept, kept + 2 * H, kept + 3 * H);
                NAME(gru_state)(H, kept + H, kept + 2 * H, before + b * H, h);
            }
            before = (const REAL *)job->states + base + t * B * H;
        }
    }
}

/* With G_t = ∂L/∂h_t and D = (d_r, d_z, d_q):  G_t = grad_t + D_{t+1} W + z_{t+1} G_{t+1}. D of one step lies in the
 * scratch memory, since d_a has d_n where it has d_q. */
static void NAME(gru_backward_rows)(const void *argument, int64_t first, int64_t last, char *scratch) {
    const struct gru *job = argument;
    const int64_t B = job->batch, H = job->hidden, wide = NAME(padded)(H), rows = last - first;
    REAL *packed = NAME(take)(&scratch, 3 * H * wide), *z = NAME(take)(&scratch, rows * wide);
    REAL *passed = NAME(take)(&scratch, rows * wide), *after = NAME(take)(&scratch, rows * 3 * H);
    for (int64_t m = first / B; m * B < last; m++) {
        const int64_t low = first > m * B ? first - m * B : 0, high = last < (m + 1) * B ? last - m * B : B;
        const int64_t base = m * job->steps * B * H;
        NAME(pack)((const REAL *)job->weight + m * 3 * H * H, 3 * H, H, H, 1, packed);
        memset(passed, 0, rows * wide * sizeof(REAL));
        memset(z, 0, rows * wide * sizeof(REAL));
        memset(after, 0, rows * 3 * H * sizeof(REAL));
        for (int64_t t = job->steps - 1; t >= 0; t--) {
            const int64_t running = !job->batch_sizes || job->batch_sizes[t] > high ? high : job->batch_sizes[t];
            if (t + 1 < job->steps && running > low)
                NAME(product)(after, running - low, 3 * H, 3 * H, packed, H, z);
            for (int64_t b = low; b < high; b++) {
                const int64_t at = base + (t * B + b) * H;
                REAL *d = (REAL *)job->d_a + 3 * at, *d_q = (REAL *)job->d_q + at;
                REAL *g = z + (b - low) * wide, *next = after + (b - low) * 3 * H;
                REAL *d_state = job->d_states ? (REAL *)job->d_states + at : NULL;
                if (b >= running) {
                    memset(d, 0, 3 * H * sizeof(REAL)), memset(d_q, 0, H * sizeof(REAL));
                    if (d_state) memset(d_state, 0, H * sizeof(REAL));
                    continue;
                }
                const REAL *kept = (const REAL *)job->kept + 4 * at, *h = (const REAL *)job->states + at;
                const REAL *before = t ? h - B * H : (const REAL *)job->h0 + (m * B + b) * H;
                NAME(gru_pull)(H, kept, kept + H, kept + 2 * H, kept + 3 * H, before, (const REAL *)job->grad + at, g,
                               passed + (b - low) * wide, d, d + H, d + 2 * H, d_q);
                memcpy(next, d, 2 * H * sizeof(REAL)), memcpy(next + 2 * H, d_q, H * sizeof(REAL));
                if (d_state) memcpy(d_state, g, H * sizeof(REAL));
            }
        }
        if (job->steps) NAME(product)(after, high - low, 3 * H, 3 * H, packed, H, z);
        for (int64_t b = low; b < high; b++) {
            REAL *d_h0 = (REAL *)job->d_h0 + (m * B + b) * H;
            for (int64_t j = 0; j < H; j++) d_h0[j] = z[(b - low) * wide + j] + passed[(b - low) * wide + j];
        }
    }
}

static int NAME(gru_run)(const struct gru *job, work *run) {
    const int64_t H = job->hidden, wide = NAME(padded)(3 * H), narrow = NAME(padded)(H);
    int64_t bounds[MOST_THREADS + 1];
    const int64_t threads = worthwhile(job->threads, (double)job->models * job->steps * job->batch * H * 3 * H);
    split_rows(job->models, job->batch, job->steps, job->batch_sizes, threads, bounds);
    const int64_t rows = longest(bounds, threads);
    const int64_t numbers = 3 * H * narrow + H * wide + rows * (wide + 2 * narrow + 3 * H) + H;
    return parallel(run, job, bounds, threads, numbers * sizeof(REAL) + 4 * 64);
}

int NAME(gru_forward)(const struct gru *job) {
    const size_t bytes = sizeof(REAL) * job->models * job->steps * job->batch * job->hidden;
    expect(job->states, bytes), expect(job->kept, 4 * bytes);
    return NAME(gru_run)(job, NAME(gru_forward_rows));
}

int NAME(gru_backward)(const struct gru *job) {
    const size_t bytes = sizeof(REAL) * job->models * job->steps * job->batch * job->hidden;
    expect(job->d_a, 3 * bytes), expect(job->d_q, bytes), expect(job->d_states, bytes);
    return NAME(gru_run)(job, NAME(gru_backward_rows));
}
