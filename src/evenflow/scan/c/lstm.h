/* c_t = σ(f) c_{t-1} + σ(i) tanh(n), h_t = σ(o) tanh(c_t), with (i, f, n, o) = a_t + W h_{t-1}.
 *
 * With peepholes p, p_i c_{t-1} and p_f c_{t-1} are added to i and f, and p_o c_t to o. With three blocks there is no f
 * and one stands in its place. */

/* One row of one step. The blocks of a row come as pointers of their own, which tells the compiler that they lie apart. */
static void NAME(lstm_state)(int64_t H, const REAL *restrict i, const REAL *restrict f, const REAL *restrict n,
                             const REAL *restrict o, const REAL *restrict before, REAL *restrict c, REAL *restrict h) {
    for (int64_t j = 0; j < H; j++) {
        const REAL state = f[j] * before[j] + i[j] * n[j];
        c[j] = state;
        h[j] = o[j] * NAME(tanh)(state);
    }
}

/* The same with peepholes: i, f and o come in as pre-activations and leave as gates. */
static void NAME(lstm_peep)(int64_t H, const REAL *restrict p, REAL *restrict i, REAL *restrict f,
                            const REAL *restrict n, REAL *restrict o, const REAL *restrict before, REAL *restrict c,
                            REAL *restrict h) {
    for (int64_t j = 0; j < H; j++) {
        i[j] = NAME(sigmoid)(i[j] + p[j] * before[j]);
        f[j] = NAME(sigmoid)(f[j] + p[H + j] * before[j]);
        const REAL state = f[j] * before[j] + i[j] * n[j];
        o[j] = NAME(sigmoid)(o[j] + p[2 * H + j] * state);
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

/* The same through peepholes, whose own gradients are added to `sums`, still apart for every row. */
static void NAME(lstm_pull_peep)(int64_t H, const REAL *restrict p, const REAL *restrict i, const REAL *restrict f,
                                 const REAL *restrict n, const REAL *restrict o, const REAL *restrict before,
                                 const REAL *restrict c, const REAL *restrict from_h, const REAL *restrict from_c,
                                 REAL *restrict g, REAL *restrict by_c, REAL *restrict d_i, REAL *restrict d_f,
                                 REAL *restrict d_n, REAL *restrict d_o, double *restrict sums) {
    for (int64_t j = 0; j < H; j++) {
        const REAL squashed = NAME(tanh)(c[j]), by_h = from_h[j] + g[j];
        const REAL by_o = by_h * squashed * o[j] * (1 - o[j]);
        const REAL by_state = by_c[j] + from_c[j] + by_h * o[j] * (1 - squashed * squashed) + by_o * p[2 * H + j];
        g[j] = by_h;
        d_i[j] = by_state * n[j] * i[j] * (1 - i[j]);
        d_f[j] = by_state * before[j] * f[j] * (1 - f[j]);
        d_n[j] = by_state * i[j] * (1 - n[j] * n[j]);
        d_o[j] = by_o;
        by_c[j] = by_state * f[j] + d_i[j] * p[j] + d_f[j] * p[H + j];
    }
    for (int64_t j = 0; j < H; j++) sums[j] += d_i[j] * before[j];
    for (int64_t j = 0; j < H; j++) sums[H + j] += d_f[j] * before[j];
    for (int64_t j = 0; j < H; j++) sums[2 * H + j] += d_o[j] * c[j];
}

static void NAME(lstm_forward_rows)(const void *argument, int64_t first, int64_t last, char *scratch) {
    const struct lstm *job = argument;
    const int64_t B = job->batch, H = job->hidden, K = job->blocks, wide = NAME(padded)(K * H);
    const int64_t n = (K - 2) * H, o = n + H; /* where these blocks begin; i is first, and f second of four */
    REAL *packed = NAME(take)(&scratch, H * wide), *z = NAME(take)(&scratch, (last - first) * wide);
    REAL *ones = NAME(take)(&scratch, H);
    for (int64_t j = 0; j < H; j++) ones[j] = 1;
    for (int64_t m = first / B; m * B < last; m++) {
        const int64_t low = first > m * B ? first - m * B : 0, high = last < (m + 1) * B ? last - m * B : B;
        const int64_t base = m * job->steps * B * H;
        const REAL *h_before = (const REAL *)job->h0 + m * B * H, *c_before = (const REAL *)job->c0 + m * B * H;
        const REAL *peephole = job->peephole ? (const REAL *)job->peephole + m * 3 * H : NULL;
        NAME(pack)((const REAL *)job->weight + m * K * H * H, H, K * H, 1, H, packed);
        for (int64_t t = 0; t < job->steps; t++) {
            const int64_t running = !job->batch_sizes || job->batch_sizes[t] > high ? high : job->batch_sizes[t];
            if (running > low) NAME(product)(h_before + low * H, running - low, H, H, packed, K * H, z);
            for (int64_t b = low; b < high; b++) {
                const int64_t at = base + (t * B + b) * H;
                REAL *h = (REAL *)job->h + at, *c = (REAL *)job->c + at;
                REAL *restrict gate = (REAL *)job->gates + K * at;
                if (b >= running) {
                    memset(h, 0, H * sizeof(REAL)), memset(c, 0, H * sizeof(REAL)), memset(gate, 0, K * H * sizeof(REAL));
                    continue;
                }
                const REAL *restrict in = (const REAL *)job->a + K * at, *restrict from = z + (b - low) * wide;
                const REAL *restrict before = c_before + b * H;
                for (int64_t j = n; j < o; j++) gate[j] = NAME(tanh)(in[j] + from[j]);
                if (peephole) {
                    for (int64_t j = 0; j < n; j++) gate[j] = in[j] + from[j];
                    for (int64_t j = o; j < K * H; j++) gate[j] = in[j] + from[j];
                    NAME(lstm_peep)(H, peephole, gate, gate + H, gate + n, gate + o, before, c, h);
                } else {
                    for (int64_t j = 0; j < n; j++) gate[j] = NAME(sigmoid)(in[j] + from[j]);
                    for (int64_t j = o; j < K * H; j++) gate[j] = NAME(sigmoid)(in[j] + from[j]);
                    NAME(lstm_state)(H, gate, K == 4 ? gate + H : ones, gate + n, gate + o, before, c, h);
                }
            }
            h_before = (const REAL *)job->h + base + t * B * H;
            c_before = (const REAL *)job->c + base + t * B * H;
        }
    }
}

/* With G = ∂L/∂h_t and C = ∂L/∂c_t:  G_t = grad_t + D_{t+1} W,  C_t = grad_t + o (1 - tanh² c) G_t + f_{t+1} C_{t+1}.
 * A truncated gradient has no D W. */
static void NAME(lstm_backward_rows)(const void *argument, int64_t first, int64_t last, char *scratch) {
    const struct lstm *job = argument;
    const int64_t B = job->batch, H = job->hidden, K = job->blocks, wide = NAME(padded)(H), rows = last - first;
    const int64_t n = (K - 2) * H, o = n + H;
    REAL *packed = NAME(take)(&scratch, K * H * wide), *z = NAME(take)(&scratch, rows * wide);
    REAL *carried = NAME(take)(&scratch, rows * wide), *nothing = NAME(take)(&scratch, wide);
    REAL *ones = NAME(take)(&scratch, H), *unused = NAME(take)(&scratch, H);
    memset(nothing, 0, wide * sizeof(REAL));
    for (int64_t j = 0; j < H; j++) ones[j] = 1;
    for (int64_t m = first / B; m * B < last; m++) {
        const int64_t low = first > m * B ? first - m * B : 0, high = last < (m + 1) * B ? last - m * B : B;
        const int64_t base = m * job->steps * B * H;
        const REAL *peephole = job->peephole ? (const REAL *)job->peephole + m * 3 * H : NULL;
        REAL *d_a = (REAL *)job->d_a + K * base;
        NAME(pack)((const REAL *)job->weight + m * K * H * H, K * H, H, H, 1, packed);
        memset(carried, 0, rows * wide * sizeof(REAL));
        memset(z, 0, rows * wide * sizeof(REAL));
        for (int64_t t = job->steps - 1; t >= 0; t--) {
            const int64_t running = !job->batch_sizes || job->batch_sizes[t] > high ? high : job->batch_sizes[t];
            if (job->truncated) memset(z, 0, rows * wide * sizeof(REAL));
            else if (t + 1 < job->steps && running > low)
                NAME(product)(d_a + ((t + 1) * B + low) * K * H, running - low, K * H, K * H, packed, H, z);
            for (int64_t b = low; b < high; b++) {
                const int64_t at = base + (t * B + b) * H;
                REAL *d = (REAL *)job->d_a + K * at, *d_f = K == 4 ? d + H : unused;
                REAL *g = z + (b - low) * wide, *by_c = carried + (b - low) * wide;
                REAL *d_state = job->d_states ? (REAL *)job->d_states + at : NULL;
                if (b >= running) {
                    memset(d, 0, K * H * sizeof(REAL));
                    if (d_state) memset(d_state, 0, H * sizeof(REAL));
                    continue;
                }
                const REAL *restrict from_h = job->grad_h ? (const REAL *)job->grad_h + at : nothing;
                const REAL *restrict from_c = job->grad_c ? (const REAL *)job->grad_c + at : nothing;
                const REAL *restrict gate = (const REAL *)job->gates + K * at, *restrict c = (const REAL *)job->c + at;
                const REAL *restrict before = t ? c - B * H : (const REAL *)job->c0 + (m * B + b) * H;
                if (peephole)
                    NAME(lstm_pull_peep)(H, peephole, gate, gate + H, gate + n, gate + o, before, c, from_h, from_c, g, by_c,
                                         d, d_f, d + n, d + o, job->sums + (m * B + b) * 3 * H);
                else
                    NAME(lstm_pull)(H, gate, K == 4 ? gate + H : ones, gate + n, gate + o, before, c, from_h, from_c, g, by_c,
                                    d, d_f, d + n, d + o);
                if (d_state) memcpy(d_state, g, H * sizeof(REAL));
            }
        }
        if (job->truncated) memset(z, 0, rows * wide * sizeof(REAL));
        else if (job->steps) NAME(product)(d_a + low * K * H, high - low, K * H, K * H, packed, H, z);
        for (int64_t b = low; b < high; b++) {
            memcpy((REAL *)job->d_h0 + (m * B + b) * H, z + (b - low) * wide, H * sizeof(REAL));
            memcpy((REAL *)job->d_c0 + (m * B + b) * H, carried + (b - low) * wide, H * sizeof(REAL));
        }
    }
}

static int NAME(lstm_run)(const struct lstm *job, work *run) {
    const int64_t H = job->hidden, K = job->blocks, wide = NAME(padded)(K * H), narrow = NAME(padded)(H);
    int64_t bounds[MOST_THREADS + 1];
    const int64_t threads = worthwhile(job->threads, (double)job->models * job->steps * job->batch * H * K * H);
    split_rows(job->models, job->batch, job->steps, job->batch_sizes, threads, bounds);
    const int64_t rows = longest(bounds, threads);
    const int64_t numbers = K * H * narrow + H * wide + rows * (wide + 2 * narrow) + 3 * narrow;
    return parallel(run, job, bounds, threads, numbers * sizeof(REAL) + 6 * 64);
}

int NAME(lstm_forward)(const struct lstm *job) {
    const size_t bytes = sizeof(REAL) * job->models * job->steps * job->batch * job->hidden;
    expect(job->h, bytes), expect(job->c, bytes), expect(job->gates, job->blocks * bytes);
    return NAME(lstm_run)(job, NAME(lstm_forward_rows));
}

int NAME(lstm_backward)(const struct lstm *job) {
    const size_t bytes = sizeof(REAL) * job->models * job->steps * job->batch * job->hidden;
    expect(job->d_a, job->blocks * bytes), expect(job->d_states, bytes);
    return NAME(lstm_run)(job, NAME(lstm_backward_rows));
}
