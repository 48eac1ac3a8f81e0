/* h_t = α f(a_t + W h_{t-1}) + β h_{t-1}; without gates α = 1, β = 0. Fields as in elman_native.py. */

struct Elman {
    long long models, steps, batch, begin, end; /* rows of the batch from begin to end run; the others do elsewhere */
    double slope;
    const int *lengths; /* of the rows, longest first; absent when all run to the end */
    const float *a, *weight, *h0, *alpha, *beta, *parameter;
    float *states;
    void *kept; /* pre-activations or, as bytes, marks; see Activation.kept_as */
    const float *grad;
    float *d_a, *d_states, *d_h0;
    double *sums; /* per row and unit: shares in the gradients by α, β and the parameter */
    float *far; /* room for the weights of tiles with a ring */
};

/* The parameter of each item: a slope, or modrelu's bias, of a unit or of a pair. */
template <int KIND, class T> DEVICE void parameters(const Seat<T> &seat, const Elman &job, float (&p)[T::ITEMS]) {
    UNROLL for (int q = 0; q < T::ITEMS; q++) {
        p[q] = (float)job.slope;
        if (KIND == PRELU) p[q] = job.parameter[seat.model];
        if (KIND == MODRELU) p[q] = seat.exists(q) ? job.parameter[seat.model * T::H + seat.unit(q)] : 0.0f;
        if (KIND == COMPLEX_MODRELU)
            p[q] = seat.exists(q) ? job.parameter[seat.model * (T::H / 2) + seat.unit(q) % (T::H / 2)] : 0.0f;
    }
}

template <class T, int KIND, bool GATED> DEVICE void elman_forward(const Elman &job) {
    constexpr bool MARKS = marks(KIND) && !GATED, KEEPS = (GATED || !reads_output(KIND)) && !MARKS;
    const Seat<T> seat(job);
    float *states = block_memory();
    Exchange<T> exchange(states);
    const Fetch<T> fetch(seat, states + 2 * T::STATE);
    const Product<T, true> product(seat, job.weight + seat.model * T::H * T::H,
                                   states + 2 * T::STATE + (AHEAD + 1) * T::SLOT, job.far);
    const size_t stride = (size_t)job.batch * T::H, start = (seat.model * job.batch + seat.row) * T::H;
    const size_t first = (seat.model * job.steps * job.batch + seat.row) * T::H;
    const float share = GATED ? job.alpha[seat.model] : 1.0f, carry = GATED ? job.beta[seat.model] : 0.0f;
    float p[T::ITEMS], x[T::ITEMS], h[T::ITEMS];
    parameters<KIND>(seat, job, p);
    UNROLL for (int q = 0; q < T::ITEMS; q++)
        h[q] = GATED && seat.runs() && seat.exists(q) ? job.h0[start + seat.unit(q)] : 0.0f;

    auto ask = [&](int step) {
        UNROLL for (int q = 0; q < T::ITEMS; q++)
            if (step < seat.length && seat.exists(q))
                fetch.start(step, 0, q, job.a + first + step * stride + seat.unit(q));
        copy_close();
    };
    auto take = [&](int step) {
        fetch.wait(step);
        fetch.read(step, 0, x);
        ask(step + AHEAD);
    };

    for (int step = 0; step < AHEAD; step++) ask(step);
    take(0);
    exchange.open(seat, job.h0 + seat.model * job.batch * T::H);
    for (int step = 0; step < seat.steps; step++) {
        float sum[T::SUMS][T::OUT], pre[T::ITEMS], out[T::ITEMS];
        product(seat, exchange, step, sum);
        UNROLL for (int q = 0; q < T::ITEMS; q++) pre[q] = x[q] + sum[q][0];
        activate<KIND>(seat, pre, p, out);
        UNROLL for (int q = 0; q < T::ITEMS; q++) {
            if (GATED) out[q] = share * out[q] + carry * h[q];
            /* Padding and rows at their end stay at zero, whatever else is in the row. */
            if (step >= seat.length || !seat.exists(q)) out[q] = 0;
            h[q] = out[q];
        }
        exchange.publish(seat, step, 0, out);
        exchange.arrive();
        signed char marked[T::ITEMS];
        if (MARKS) mark<KIND>(seat, pre, marked);
        if (seat.copy == 0 && step < seat.length) {
            const size_t at = first + step * stride;
            write(seat, job.states + at, out);
            if (KEEPS) write(seat, (float *)job.kept + at, pre);
            if (MARKS) write(seat, (signed char *)job.kept + at, marked);
        }
        take(step + 1);
        exchange.wait(seat, step);
    }
    exchange.close();
}

#define SHORT 8 /* steps whose shares in a sum are added up in single precision */

/* With G_t = ∂L/∂h_t and D_t = ∂L/∂a_t:  G_t = grad_t + D_{t+1} W + β G_{t+1},  D_t = α f'(a_t) G_t. */
template <class T, int KIND, bool GATED> DEVICE void elman_backward(const Elman &job) {
    constexpr bool MARKS = marks(KIND) && !GATED, KEEPS = (GATED || !reads_output(KIND)) && !MARKS;
    constexpr bool TRAINED = KIND == PRELU || KIND == MODRELU || KIND == COMPLEX_MODRELU;
    constexpr bool READS = GATED && reads_output(KIND), PAIRED = KIND == COMPLEX_MODRELU;
    const Seat<T> seat(job);
    float *states = block_memory();
    Exchange<T> exchange(states);
    const Fetch<T> fetch(seat, states + 2 * T::STATE);
    const Product<T, false> product(seat, job.weight + seat.model * T::H * T::H,
                                    states + 2 * T::STATE + (AHEAD + 1) * T::SLOT, job.far);
    const size_t stride = (size_t)job.batch * T::H, start = (seat.model * job.batch + seat.row) * T::H;
    const size_t first = (seat.model * job.steps * job.batch + seat.row) * T::H;
    const float share = GATED ? job.alpha[seat.model] : 1.0f, carry = GATED ? job.beta[seat.model] : 0.0f;
    const float *known_at_all = KEEPS ? (const float *)job.kept : job.states;
    const signed char *marked = (const signed char *)job.kept + first;
    const unsigned nearby = (unsigned)(size_t)marked;
    float p[T::ITEMS], grad[T::ITEMS], known[T::ITEMS], before[T::ITEMS], value[T::ITEMS], g[T::ITEMS] = {};
    Pair<T> pair;
    double by_share[T::ITEMS] = {}, by_carry[T::ITEMS] = {}, by_trained[T::ITEMS] = {};
    float lately[3][T::ITEMS] = {}; /* shares of the last few steps: to widen each of them would take time */
    parameters<KIND>(seat, job, p);

    auto ask = [&](int back) {
        const int t = seat.steps - 1 - back;
        UNROLL for (int q = 0; q < T::ITEMS; q++)
            if (t >= 0 && t < seat.length && seat.exists(q)) {
                const size_t at = first + t * stride + seat.unit(q);
                fetch.start(back, 0, q, job.grad + at);
                if (MARKS && q % T::SIDE == 0) /* up to four marks lie in one word */
                    copy_start(fetch.at(back, 1, q), word_of(marked + t * stride + seat.unit(q)));
                if (!MARKS && (KIND != IDENTITY || GATED)) fetch.start(back, 1, q, known_at_all + at);
                if (GATED) fetch.start(back, 2, q, t ? job.states + at - stride : job.h0 + start + seat.unit(q));
            }
        copy_close();
    };
    auto take = [&](int back) {
        fetch.wait(back);
        fetch.read(back, 0, grad);
        if (!MARKS && (KIND != IDENTITY || GATED)) fetch.read(back, 1, known);
        if (MARKS) UNROLL for (int q = 0; q < T::ITEMS; q++)
            known[q] = byte_of(*fetch.at(back, 1, q / T::SIDE * T::SIDE),
                               nearby + (seat.steps - 1 - back) * (unsigned)stride + seat.unit(q));
        if (GATED) fetch.read(back, 2, before);
        if (GATED && PAIRED) activate<KIND>(seat, known, p, value);
        pair.template look<KIND>(seat, READS ? value : known, p);
        ask(back + AHEAD);
    };

    for (int back = 0; back < AHEAD; back++) ask(back);
    take(0);
    exchange.open(seat, (const float *)0);
    for (int back = 0;; back++) {
        const int t = seat.steps - 1 - back;
        float sum[T::SUMS][T::OUT], d[T::ITEMS];
        product(seat, exchange, back, sum);
        if (t < 0) { /* one product more than steps, for the start */
            UNROLL for (int q = 0; q < T::ITEMS; q++)
                if (seat.copy == 0 && seat.runs() && seat.exists(q))
                    job.d_h0[start + seat.unit(q)] = sum[q][0] + (GATED ? carry * g[q] : 0.0f);
            break;
        }
        UNROLL for (int q = 0; q < T::ITEMS; q++) {
            g[q] = grad[q] + sum[q][0] + (GATED ? carry * g[q] : 0.0f);
            if (t >= seat.length || !seat.exists(q)) g[q] = 0;
        }
        if (GATED && !PAIRED) activate<KIND>(seat, known, p, value);
        pull<KIND>(seat, READS ? value : known, p, pair, g, d);
        UNROLL for (int q = 0; q < T::ITEMS; q++) {
            d[q] *= share;
            if (t >= seat.length || !seat.exists(q)) d[q] = 0;
        }
        exchange.publish(seat, back, 0, d);
        exchange.arrive();
        if (seat.copy == 0 && t < seat.length) {
            write(seat, job.d_a + first + t * stride, d);
            if (job.d_states) write(seat, job.d_states + first + t * stride, g);
        }
        if (GATED || TRAINED) UNROLL for (int q = 0; q < T::ITEMS; q++) {
            /* Past the end of a row and of its units g is zero, but what it would be multiplied by may be anything. */
            if (t < seat.length && seat.exists(q)) {
                if (GATED) lately[0][q] = fmaf(value[q], g[q], lately[0][q]);
                if (GATED) lately[1][q] = fmaf(before[q], g[q], lately[1][q]);
                const float by = TRAINED ? by_parameter<KIND>(READS ? value[q] : known[q], pair.mine[q]) : 0.0f;
                if (TRAINED) lately[2][q] = fmaf(by, g[q], lately[2][q]);
            }
            if (T::TENSOR || t % SHORT == 0) { /* the former have no registers to spare */
                by_share[q] += lately[0][q], by_carry[q] += lately[1][q], by_trained[q] += lately[2][q];
                lately[0][q] = lately[1][q] = lately[2][q] = 0;
            }
        }
        take(back + 1);
        exchange.wait(seat, back);
    }
    exchange.close();
    UNROLL for (int q = 0; q < T::ITEMS; q++)
        if ((GATED || TRAINED) && seat.copy == 0 && seat.runs() && seat.exists(q)) {
            const size_t at = start + seat.unit(q), layer = (size_t)job.models * job.batch * T::H;
            if (GATED) job.sums[at] = by_share[q];
            if (GATED) job.sums[layer + at] = by_carry[q];
            if (TRAINED) job.sums[2 * layer + at] = (double)share * by_trained[q];
        }
}
