/* h_t = α f(a_t + W h_{t-1}) + β h_{t-1}; without gates α = 1, β = 0. */

/* Whether the slopes are told from f(a); the others need a. */
static int NAME(reads_output)(int64_t kind) { return kind != PRELU && kind != ABS && kind != OPLU; }

/* Whether what is kept are marks, a byte for each unit, and not the pre-activations. */
static int NAME(marked)(const struct elman *job) { return !job->alpha && (job->activation == ABS || job->activation == OPLU); }

/* How many numbers a model trains of its activation. */
static int64_t NAME(parameters)(const struct elman *job) {
    return job->activation == PRELU ? 1 : job->activation == COMPLEX_MODRELU ? job->hidden / 2 : job->hidden;
}

/* Small numbers that have the slopes of a row: signs, or which pairs were swapped. */
static void NAME(mark)(int64_t kind, int64_t n, const REAL *restrict a, int8_t *restrict marks) {
    const int64_t half = kind == OPLU ? n / 2 : 0;
    for (int64_t j = 0; j < half; j++) marks[j] = 0, marks[j + half] = a[j] < a[j + half];
    if (kind == ABS)
        for (int64_t j = 0; j < n; j++) marks[j] = (a[j] > 0) - (a[j] < 0);
}

static void NAME(elman_forward_rows)(const void *argument, int64_t first, int64_t last, char *scratch) {
    const struct elman *job = argument;
    const int64_t B = job->batch, H = job->hidden, wide = NAME(padded)(H), marked = NAME(marked)(job);
    NAME(split) matrix = NAME(take_split)(&scratch, H);
    REAL *z = NAME(take)(&scratch, (last - first) * wide);
    REAL *row = NAME(take)(&scratch, wide);
    for (int64_t m = first / B; m * B < last; m++) {
        const int64_t low = first > m * B ? first - m * B : 0, high = last < (m + 1) * B ? last - m * B : B;
        const int64_t base = m * job->steps * B * H;
        const REAL *a = (const REAL *)job->a + base, *before = (const REAL *)job->h0 + m * B * H;
        const REAL *parameter = job->parameter ? (const REAL *)job->parameter + m * NAME(parameters)(job) : NULL;
        const REAL slope = job->activation == PRELU ? parameter[0] : (REAL)job->slope;
        const REAL share = job->alpha ? ((const REAL *)job->alpha)[m] : 1;
        const REAL carry = job->alpha ? ((const REAL *)job->beta)[m] : 0;
        REAL *states = (REAL *)job->states + base, *kept = job->kept && !marked ? (REAL *)job->kept + base : NULL;
        int8_t *marks = marked ? (int8_t *)job->kept + base : NULL;
        NAME(pack_split)((const REAL *)job->weight + m * H * H, H, 1, H, &matrix);
        for (int64_t t = 0; t < job->steps; t++) {
            const int64_t running = !job->batch_sizes || job->batch_sizes[t] > high ? high : job->batch_sizes[t];
            if (running > low) NAME(product_split)(before + low * H, running - low, H, &matrix, z);
            for (int64_t b = low; b < running; b++) {
                const REAL *restrict from = z + (b - low) * wide, *restrict in = a + (t * B + b) * H;
                REAL *pre = kept ? kept + (t * B + b) * H : row, *restrict out = states + (t * B + b) * H;
                for (int64_t j = 0; j < H; j++) pre[j] = in[j] + from[j];
                NAME(activate)(job->activation, H, slope, parameter, pre, out);
                if (marks) NAME(mark)(job->activation, H, pre, marks + (t * B + b) * H);
                if (job->alpha) {
                    const REAL *restrict h = before + b * H;
                    for (int64_t j = 0; j < H; j++) out[j] = share * out[j] + carry * h[j];
                }
            }
            for (int64_t b = running > low ? running : low; b < high; b++) {
                memset(states + (t * B + b) * H, 0, H * sizeof(REAL));
                if (kept) memset(kept + (t * B + b) * H, 0, H * sizeof(REAL));
                if (marks) memset(marks + (t * B + b) * H, 0, H);
            }
            before = states + t * B * H;
        }
    }
}

/* One row of one step back: g comes in as G_{t+1} and leaves as G_t, and its shares in the gates' gradients are added. */
static void NAME(gather)(int64_t H, const REAL *restrict from, const REAL *restrict in, REAL *restrict g) {
    for (int64_t j = 0; j < H; j++) g[j] = in[j] + from[j];
}

static void NAME(gather_gated)(int64_t H, const REAL *restrict from, const REAL *restrict in, REAL carry,
                               const REAL *restrict value, const REAL *restrict h, REAL *restrict g,
                               double *restrict by_alpha, double *restrict by_beta) {
    for (int64_t j = 0; j < H; j++) g[j] = in[j] + from[j] + carry * g[j];
    for (int64_t j = 0; j < H; j++) by_alpha[j] += value[j] * g[j];
    for (int64_t j = 0; j < H; j++) by_beta[j] += h[j] * g[j];
}

/* With G_t = ∂L/∂h_t and D_t = ∂L/∂a_t:  G_t = grad_t + D_{t+1} W + β G_{t+1},  D_t = α f'(a_t) G_t. */
static void NAME(elman_backward_rows)(const void *argument, int64_t first, int64_t last, char *scratch) {
    const struct elman *job = argument;
    const int64_t B = job->batch, H = job->hidden, wide = NAME(padded)(H), rows = last - first;
    const int64_t sums = job->models * B * H, kind = job->activation, marked = NAME(marked)(job);
    NAME(split) matrix = NAME(take_split)(&scratch, H);
    REAL *z = NAME(take)(&scratch, rows * wide);
    REAL *g_rows = NAME(take)(&scratch, rows * wide), *value = NAME(take)(&scratch, wide);
    for (int64_t m = first / B; m * B < last; m++) {
        const int64_t low = first > m * B ? first - m * B : 0, high = last < (m + 1) * B ? last - m * B : B;
        const int64_t base = m * job->steps * B * H;
        const REAL *grad = (const REAL *)job->grad + base, *states = (const REAL *)job->states + base;
        const REAL *h0 = (const REAL *)job->h0 + m * B * H;
        const REAL *kept = job->kept && !marked ? (const REAL *)job->kept + base : NULL;
        const int8_t *marks = marked ? (const int8_t *)job->kept + base : NULL;
        const REAL *parameter = job->parameter ? (const REAL *)job->parameter + m * NAME(parameters)(job) : NULL;
        const REAL slope = kind == PRELU ? parameter[0] : (REAL)job->slope;
        const REAL share = job->alpha ? ((const REAL *)job->alpha)[m] : 1;
        const REAL carry = job->alpha ? ((const REAL *)job->beta)[m] : 0;
        REAL *d_a = (REAL *)job->d_a + base, *d_states = job->d_states ? (REAL *)job->d_states + base : NULL;
        NAME(pack_split)((const REAL *)job->weight + m * H * H, H, H, 1, &matrix);
        memset(g_rows, 0, rows * H * sizeof(REAL));
        memset(z, 0, rows * wide * sizeof(REAL));
        for (int64_t t = job->steps - 1; t >= 0; t--) {
            const int64_t running = !job->batch_sizes || job->batch_sizes[t] > high ? high : job->batch_sizes[t];
            if (t + 1 < job->steps && running > low)
                NAME(product_split)(d_a + ((t + 1) * B + low) * H, running - low, H, &matrix, z);
            for (int64_t b = low; b < running; b++) {
                const int64_t at = (t * B + b) * H;
                const REAL *from = z + (b - low) * wide, *in = grad + at;
                REAL *g = g_rows + (b - low) * H;
                const REAL *known = kept ? kept + at : states + at;
                if (marks) {
                    for (int64_t j = 0; j < H; j++) value[j] = marks[at + j];
                    known = value;
                }
                if (job->alpha) {
                    const REAL *h = t ? states + at - B * H : h0 + b * H;
                    double *by_alpha = job->sums + (m * B + b) * H;
                    NAME(activate)(kind, H, slope, parameter, known, value);
                    NAME(gather_gated)(H, from, in, carry, value, h, g, by_alpha, by_alpha + sums);
                    if (NAME(reads_output)(kind)) known = value;
                } else {
                    NAME(gather)(H, from, in, g);
                }
                NAME(pull)(kind, H, slope, parameter, share, known, g, d_a + at);
                if (parameter)
                    NAME(pull_parameter)(kind, H, share, known, g, job->sums + 2 * sums + (m * B + b) * H);
                if (d_states) memcpy(d_states + at, g, H * sizeof(REAL));
            }
            for (int64_t b = running > low ? running : low; b < high; b++) {
                memset(d_a + (t * B + b) * H, 0, H * sizeof(REAL));
                if (d_states) memset(d_states + (t * B + b) * H, 0, H * sizeof(REAL));
            }
        }
        if (job->steps) NAME(product_split)(d_a + low * H, high - low, H, &matrix, z);
        for (int64_t b = low; b < high; b++) {
            REAL *d_h0 = (REAL *)job->d_h0 + (m * B + b) * H;
            for (int64_t j = 0; j < H; j++) d_h0[j] = z[(b - low) * wide + j] + carry * g_rows[(b - low) * H + j];
        }
    }
}

static int NAME(elman_run)(const struct elman *job, work *run) {
    const int64_t H = job->hidden, wide = NAME(padded)(H);
    int64_t bounds[MOST_THREADS + 1];
    const int64_t threads = worthwhile(job->threads, (double)job->models * job->steps * job->batch * H * H);
    split_rows(job->models, job->batch, job->steps, job->batch_sizes, threads, bounds);
    const int64_t numbers = NAME(split_scratch)(H) + wide * (2 * longest(bounds, threads) + 1);
    return parallel(run, job, bounds, threads, numbers * sizeof(REAL) + 6 * 64);
}

int NAME(elman_forward)(const struct elman *job) {
    const size_t bytes = sizeof(REAL) * job->models * job->steps * job->batch * job->hidden;
    expect(job->states, bytes), expect(job->kept, NAME(marked)(job) ? bytes / sizeof(REAL) : bytes);
    return NAME(elman_run)(job, NAME(elman_forward_rows));
}

/* The sums of every row and unit to one number per model or, for modrelu, per unit or pair, which has its sum at the first
 * of the two; in order, so always the same bits. */
static void NAME(add_up)(const struct elman *job, const double *sums, int64_t numbers, REAL *out) {
    const int64_t H = job->hidden;
    for (int64_t m = 0; m < job->models; m++, out += numbers) {
        double total = 0;
        for (int64_t j = 0; j < H; j++) {
            double unit = 0;
            for (int64_t b = 0; b < job->batch; b++) unit += sums[(m * job->batch + b) * H + j];
            if (numbers > 1 && j < numbers) out[j] = (REAL)unit;
            total += unit;
        }
        if (numbers == 1) out[0] = (REAL)total;
    }
}

int NAME(elman_backward)(const struct elman *job) {
    const int64_t each = job->models * job->batch * job->hidden;
    const size_t bytes = sizeof(REAL) * job->steps * each;
    expect(job->d_a, bytes), expect(job->d_states, bytes);
    if (NAME(elman_run)(job, NAME(elman_backward_rows))) return 1;
    if (job->alpha) {
        NAME(add_up)(job, job->sums, 1, job->d_alpha);
        NAME(add_up)(job, job->sums + each, 1, job->d_beta);
    }
    if (job->parameter)
        NAME(add_up)(job, job->sums + 2 * each, NAME(parameters)(job), job->d_parameter);
    return 0;
}
