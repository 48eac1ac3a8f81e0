/* r, z = σ(a_rz + U h),  q = U_n h + c,  n = tanh(a_n + r q),  h' = n + z (h - n). Fields as in gru_native.py. */

struct Gru {
    long long models, steps, batch, begin, end; /* rows of the batch from begin to end run; the others do elsewhere */
    const int *lengths; /* of the rows, longest first; absent when all run to the end */
    const float *a, *weight, *bias, *h0;
    float *states, *kept; /* kept: r, z, n and q */
    const float *grad;
    float *d_a, *d_q, *d_states, *d_h0;
    float *far; /* room for the weights of tiles with a ring */
};

template <class T> DEVICE void gru_forward(const Gru &job) {
    const Seat<T> seat(job);
    float *states = block_memory();
    Exchange<T> exchange(states);
    const Fetch<T> fetch(seat, states + 2 * T::STATE);
    const Product<T, true> product(seat, job.weight + seat.model * 3 * T::H * T::H,
                                   states + 2 * T::STATE + (AHEAD + 1) * T::SLOT, job.far);
    /* In rows of the batch: row `at` is H numbers of a state, 3 H of a and 4 H of what is kept. */
    const size_t first = seat.model * job.steps * job.batch + seat.row, start = seat.model * job.batch + seat.row;
    float x[3][T::ITEMS], h[T::ITEMS], shift[T::ITEMS];
    UNROLL for (int q = 0; q < T::ITEMS; q++) {
        h[q] = seat.runs() && seat.exists(q) ? job.h0[start * T::H + seat.unit(q)] : 0.0f;
        shift[q] = job.bias && seat.exists(q) ? job.bias[seat.model * T::H + seat.unit(q)] : 0.0f;
    }

    auto ask = [&](int step) {
        UNROLL for (int q = 0; q < T::ITEMS; q++)
            if (step < seat.length && seat.exists(q)) {
                const float *from = job.a + (first + step * job.batch) * 3 * T::H + seat.unit(q);
                UNROLL for (int gate = 0; gate < 3; gate++) copy_start(fetch.at(step, gate, q), from + gate * T::H);
            }
        copy_close();
    };
    auto take = [&](int step) {
        fetch.wait(step);
        UNROLL for (int gate = 0; gate < 3; gate++)
            UNROLL for (int q = 0; q < T::ITEMS; q++) x[gate][q] = *fetch.at(step, gate, q);
        ask(step + AHEAD);
    };

    for (int step = 0; step < AHEAD; step++) ask(step);
    take(0);
    exchange.open(seat, job.h0 + seat.model * job.batch * T::H);
    for (int step = 0; step < seat.steps; step++) {
        float sum[T::SUMS][T::OUT], r[T::ITEMS], z[T::ITEMS], n[T::ITEMS], u[T::ITEMS];
        product(seat, exchange, step, sum);
        UNROLL for (int q = 0; q < T::ITEMS; q++) {
            r[q] = sigmoid(x[0][q] + sum[q][0]);
            z[q] = sigmoid(x[1][q] + sum[q][1]);
            u[q] = shift[q] + sum[q][2];
            n[q] = tanhf(x[2][q] + r[q] * u[q]);
            h[q] = n[q] + z[q] * (h[q] - n[q]);
            if (step >= seat.length || !seat.exists(q)) h[q] = 0;
        }
        exchange.publish(seat, step, 0, h);
        exchange.arrive();
        UNROLL for (int q = 0; q < T::ITEMS; q++)
            if (seat.copy == 0 && step < seat.length && seat.exists(q)) {
                const size_t at = first + step * job.batch;
                float *kept = job.kept + at * 4 * T::H + seat.unit(q);
                job.states[at * T::H + seat.unit(q)] = h[q];
                kept[0] = r[q];
                kept[T::H] = z[q];
                kept[2 * T::H] = n[q];
                kept[3 * T::H] = u[q];
            }
        take(step + 1);
        exchange.wait(seat, step);
    }
    exchange.close();
}

/* With G_t = ∂L/∂h_t and D = ∂L/∂(r, z, q) before their activations:  G_t = grad_t + D_{t+1} W + z_{t+1} G_{t+1}. */
template <class T> DEVICE void gru_backward(const Gru &job) {
    const Seat<T> seat(job);
    float *states = block_memory();
    Exchange<T> exchange(states);
    const Fetch<T> fetch(seat, states + 2 * T::STATE);
    const Product<T, false> product(seat, job.weight + seat.model * 3 * T::H * T::H,
                                    states + 2 * T::STATE + (AHEAD + 1) * T::SLOT, job.far);
    const size_t first = seat.model * job.steps * job.batch + seat.row, start = seat.model * job.batch + seat.row;
    float x[6][T::ITEMS], passed[T::ITEMS] = {}; /* x: grad, r, z, n, q and the state before */

    auto ask = [&](int back) {
        const int t = seat.steps - 1 - back;
        UNROLL for (int q = 0; q < T::ITEMS; q++)
            if (t >= 0 && t < seat.length && seat.exists(q)) {
                const size_t at = first + t * job.batch;
                const int unit = seat.unit(q);
                copy_start(fetch.at(back, 0, q), job.grad + at * T::H + unit);
                UNROLL for (int gate = 0; gate < 4; gate++)
                    copy_start(fetch.at(back, 1 + gate, q), job.kept + (at * 4 + gate) * T::H + unit);
                copy_start(fetch.at(back, 5, q),
                           (t ? job.states + (at - job.batch) * T::H : job.h0 + start * T::H) + unit);
            }
        copy_close();
    };
    auto take = [&](int back) {
        fetch.wait(back);
        UNROLL for (int stream = 0; stream < 6; stream++)
            UNROLL for (int q = 0; q < T::ITEMS; q++) x[stream][q] = *fetch.at(back, stream, q);
        ask(back + AHEAD);
    };

    for (int back = 0; back < AHEAD; back++) ask(back);
    take(0);
    exchange.open(seat, (const float *)0);
    for (int back = 0;; back++) {
        const int t = seat.steps - 1 - back;
        float sum[T::SUMS][T::OUT], g[T::ITEMS], d[3][T::ITEMS], d_n[T::ITEMS];
        product(seat, exchange, back, sum);
        if (t < 0) { /* one product more than steps, for the start */
            UNROLL for (int q = 0; q < T::ITEMS; q++)
                if (seat.copy == 0 && seat.runs() && seat.exists(q))
                    job.d_h0[start * T::H + seat.unit(q)] = sum[q][0] + passed[q];
            break;
        }
        UNROLL for (int q = 0; q < T::ITEMS; q++) {
            const float r = x[1][q], z = x[2][q], n = x[3][q], u = x[4][q], before = x[5][q];
            g[q] = x[0][q] + sum[q][0] + passed[q];
            d_n[q] = (1 - z) * (1 - n * n) * g[q];
            d[2][q] = d_n[q] * r;
            d[0][q] = d[2][q] * u * (1 - r);
            d[1][q] = (before - n) * z * (1 - z) * g[q];
            passed[q] = z * g[q];
            if (t >= seat.length || !seat.exists(q)) d[0][q] = d[1][q] = d[2][q] = passed[q] = 0;
        }
        UNROLL for (int gate = 0; gate < 3; gate++)
            exchange.publish(seat, back, gate, d[gate]);
        exchange.arrive();
        UNROLL for (int q = 0; q < T::ITEMS; q++)
            if (seat.copy == 0 && t < seat.length && seat.exists(q)) {
                const size_t at = first + t * job.batch;
                float *d_a = job.d_a + at * 3 * T::H + seat.unit(q);
                d_a[0] = d[0][q];
                d_a[T::H] = d[1][q];
                d_a[2 * T::H] = d_n[q];
                job.d_q[at * T::H + seat.unit(q)] = d[2][q];
                if (job.d_states) job.d_states[at * T::H + seat.unit(q)] = g[q];
            }
        take(back + 1);
        exchange.wait(seat, back);
    }
    exchange.close();
}
