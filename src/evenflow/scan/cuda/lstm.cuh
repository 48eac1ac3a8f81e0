/* i, f = σ(a_if + p_if c),  g = tanh(a_g),  c' = f c + i g,  o = σ(a_o + p_o c'),  h' = o tanh c', with a + W h for a.
   GATES is 4 (i, f, g, o) or 3: the cell of 1997 has no f. Fields as in lstm_native.py. */

struct Lstm {
    long long models, steps, batch, begin, end; /* rows of the batch from begin to end run; the others do elsewhere */
    const int *lengths; /* of the rows, longest first; absent when all run to the end */
    const float *a, *weight, *h0, *c0, *peephole;
    float *h, *c, *gates;
    const float *grad_h, *grad_c; /* either may be absent */
    float *d_a, *d_h, *d_h0, *d_c0;
    float *far; /* room for the weights of tiles with a ring */
};

/* p_i, p_f and p_o of each item, or zeros. */
template <class T> DEVICE void peepholes(const Seat<T> &seat, const float *peephole, float (&p)[3][T::ITEMS]) {
    UNROLL for (int gate = 0; gate < 3; gate++) UNROLL for (int q = 0; q < T::ITEMS; q++)
        p[gate][q] = peephole && seat.exists(q) ? peephole[(seat.model * 3 + gate) * T::H + seat.unit(q)] : 0.0f;
}

template <class T, bool PEEPHOLE> DEVICE void lstm_forward(const Lstm &job) {
    constexpr int GATES = T::OUT, G = GATES - 2, O = GATES - 1;
    const Seat<T> seat(job);
    float *states = block_memory();
    Exchange<T> exchange(states);
    const Fetch<T> fetch(seat, states + 2 * T::STATE);
    const Product<T, true> product(seat, job.weight + seat.model * GATES * T::H * T::H,
                                   states + 2 * T::STATE + (AHEAD + 1) * T::SLOT, job.far);
    /* In rows of the batch: row `at` is H numbers of h and c and GATES * H of a and of the gates. */
    const size_t first = seat.model * job.steps * job.batch + seat.row, start = seat.model * job.batch + seat.row;
    float x[GATES][T::ITEMS], c[T::ITEMS], h[T::ITEMS], p[3][T::ITEMS];
    peepholes(seat, PEEPHOLE ? job.peephole : (const float *)0, p);
    UNROLL for (int q = 0; q < T::ITEMS; q++)
        c[q] = seat.runs() && seat.exists(q) ? job.c0[start * T::H + seat.unit(q)] : 0.0f;

    auto ask = [&](int step) {
        UNROLL for (int q = 0; q < T::ITEMS; q++)
            if (step < seat.length && seat.exists(q)) {
                const float *from = job.a + (first + step * job.batch) * GATES * T::H + seat.unit(q);
                UNROLL for (int gate = 0; gate < GATES; gate++) copy_start(fetch.at(step, gate, q), from + gate * T::H);
            }
        copy_close();
    };
    auto take = [&](int step) {
        fetch.wait(step);
        UNROLL for (int gate = 0; gate < GATES; gate++)
            UNROLL for (int q = 0; q < T::ITEMS; q++) x[gate][q] = *fetch.at(step, gate, q);
        ask(step + AHEAD);
    };

    for (int step = 0; step < AHEAD; step++) ask(step);
    take(0);
    exchange.open(seat, job.h0 + seat.model * job.batch * T::H);
    for (int step = 0; step < seat.steps; step++) {
        float sum[T::SUMS][T::OUT];
        product(seat, exchange, step, sum);
        UNROLL for (int q = 0; q < T::ITEMS; q++) {
            UNROLL for (int gate = 0; gate < GATES; gate++) x[gate][q] += sum[q][gate];
            if (PEEPHOLE) x[0][q] += p[0][q] * c[q];
            if (PEEPHOLE) x[1][q] += p[1][q] * c[q];
            x[0][q] = sigmoid(x[0][q]);
            x[G][q] = tanhf(x[G][q]);
            if (GATES == 4) x[1][q] = sigmoid(x[1][q]);
            c[q] = (GATES == 4 ? x[1][q] * c[q] : c[q]) + x[0][q] * x[G][q];
            if (PEEPHOLE) x[O][q] += p[2][q] * c[q];
            x[O][q] = sigmoid(x[O][q]);
            h[q] = x[O][q] * tanhf(c[q]);
            if (step >= seat.length || !seat.exists(q)) h[q] = c[q] = 0;
        }
        exchange.publish(seat, step, 0, h);
        exchange.arrive();
        UNROLL for (int q = 0; q < T::ITEMS; q++)
            if (seat.copy == 0 && step < seat.length && seat.exists(q)) {
                const size_t at = first + step * job.batch;
                job.h[at * T::H + seat.unit(q)] = h[q];
                job.c[at * T::H + seat.unit(q)] = c[q];
                UNROLL for (int gate = 0; gate < GATES; gate++)
                    job.gates[(at * GATES + gate) * T::H + seat.unit(q)] = x[gate][q];
            }
        take(step + 1);
        exchange.wait(seat, step);
    }
    exchange.close();
}

/* With G = ∂L/∂h_t, C = ∂L/∂c_t and D = ∂L/∂a_t:  G_t = grad_t + D_{t+1} W,
   C_t = grad_t + o (1 - tanh² c) G_t + p_o D^o_t + f_{t+1} C_{t+1} + p_i D^i_{t+1} + p_f D^f_{t+1}.
   A TRUNCATED gradient does not pass through W. */
template <class T, bool PEEPHOLE, bool TRUNCATED> DEVICE void lstm_backward(const Lstm &job) {
    constexpr int GATES = T::IN, G = GATES - 2, O = GATES - 1, BEFORE = GATES + 2;
    const Seat<T> seat(job);
    float *states = block_memory();
    Exchange<T> exchange(states);
    const Fetch<T> fetch(seat, states + 2 * T::STATE);
    const Product<T, false> product(seat, job.weight + seat.model * GATES * T::H * T::H,
                                    states + 2 * T::STATE + (AHEAD + 1) * T::SLOT, job.far);
    const size_t first = seat.model * job.steps * job.batch + seat.row, start = seat.model * job.batch + seat.row;
    /* x: the gradients by h and c, the gates, and the c before, which is the c of the next step back. */
    float x[GATES + 3][T::ITEMS], c[T::ITEMS], carried[T::ITEMS] = {}, p[3][T::ITEMS];
    peepholes(seat, PEEPHOLE ? job.peephole : (const float *)0, p);
    UNROLL for (int q = 0; q < T::ITEMS; q++) {
        const bool ends = seat.steps > 0 && seat.length == seat.steps && seat.exists(q);
        c[q] = ends ? job.c[(first + (seat.steps - 1) * job.batch) * T::H + seat.unit(q)] : 0.0f;
    }

    auto ask = [&](int back) {
        const int t = seat.steps - 1 - back;
        UNROLL for (int q = 0; q < T::ITEMS; q++) {
            const size_t at = first + t * job.batch;
            const int unit = seat.unit(q);
            if (t >= 0 && t < seat.length && seat.exists(q)) {
                if (job.grad_h) copy_start(fetch.at(back, 0, q), job.grad_h + at * T::H + unit);
                if (job.grad_c) copy_start(fetch.at(back, 1, q), job.grad_c + at * T::H + unit);
                UNROLL for (int gate = 0; gate < GATES; gate++)
                    copy_start(fetch.at(back, 2 + gate, q), job.gates + (at * GATES + gate) * T::H + unit);
            }
            if (t >= 0 && t <= seat.length && seat.runs() && seat.exists(q)) /* one step before a row's end */
                copy_start(fetch.at(back, BEFORE, q), (t ? job.c + (at - job.batch) * T::H : job.c0 + start * T::H) + unit);
        }
        copy_close();
    };
    auto take = [&](int back) {
        fetch.wait(back, !TRUNCATED);
        UNROLL for (int stream = 0; stream < GATES + 3; stream++)
            UNROLL for (int q = 0; q < T::ITEMS; q++) x[stream][q] = *fetch.at(back, stream, q);
        ask(back + AHEAD);
    };

    for (int back = 0; back < AHEAD; back++) ask(back);
    take(0);
    exchange.open(seat, (const float *)0);
    for (int back = 0;; back++) {
        const int t = seat.steps - 1 - back;
        float sum[T::SUMS][T::OUT], g[T::ITEMS], d[GATES][T::ITEMS];
        if (TRUNCATED)
            UNROLL for (int q = 0; q < T::ITEMS; q++) sum[q][0] = 0;
        else
            product(seat, exchange, back, sum);
        if (t < 0) { /* one product more than steps, for the start */
            UNROLL for (int q = 0; q < T::ITEMS; q++)
                if (seat.copy == 0 && seat.runs() && seat.exists(q)) {
                    job.d_h0[start * T::H + seat.unit(q)] = sum[q][0];
                    job.d_c0[start * T::H + seat.unit(q)] = carried[q];
                }
            break;
        }
        UNROLL for (int q = 0; q < T::ITEMS; q++) {
            const float i = x[2][q], f = GATES == 4 ? x[3][q] : 1.0f, candidate = x[2 + G][q], o = x[2 + O][q];
            const float before = x[BEFORE][q], tanh_c = tanhf(c[q]);
            const bool live = t < seat.length && seat.exists(q);
            g[q] = (job.grad_h ? x[0][q] : 0.0f) + sum[q][0];
            d[O][q] = tanh_c * o * (1 - o) * g[q];
            float by_c = carried[q] + (job.grad_c ? x[1][q] : 0.0f) + o * (1 - tanh_c * tanh_c) * g[q];
            if (PEEPHOLE) by_c += p[2][q] * d[O][q];
            d[0][q] = candidate * i * (1 - i) * by_c;
            d[G][q] = i * (1 - candidate * candidate) * by_c;
            if (GATES == 4) d[1][q] = before * f * (1 - f) * by_c;
            carried[q] = f * by_c;
            if (PEEPHOLE) carried[q] += p[0][q] * d[0][q] + p[1][q] * d[1][q];
            UNROLL for (int gate = 0; gate < GATES; gate++) if (!live) d[gate][q] = 0;
            if (!live) carried[q] = 0;
            c[q] = before;
        }
        if (!TRUNCATED)
            UNROLL for (int gate = 0; gate < GATES; gate++)
                exchange.publish(seat, back, gate, d[gate]);
        if (!TRUNCATED) exchange.arrive();
        UNROLL for (int q = 0; q < T::ITEMS; q++)
            if (seat.copy == 0 && t < seat.length && seat.exists(q)) {
                const size_t at = first + t * job.batch;
                UNROLL for (int gate = 0; gate < GATES; gate++)
                    job.d_a[(at * GATES + gate) * T::H + seat.unit(q)] = d[gate][q];
                if (job.d_h) job.d_h[at * T::H + seat.unit(q)] = g[q];
            }
        take(back + 1);
        if (!TRUNCATED) exchange.wait(seat, back);
    }
    exchange.close();
}
