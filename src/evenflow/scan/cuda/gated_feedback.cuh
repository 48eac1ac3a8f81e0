/* Of each layer j:  g^{ij} = σ(w^{ij} h^{j-1} + u^{ij} h*),  q = Σ_i g^{ij} U^{ij} h^i,  and with what comes from below,
   x = W^j h^{j-1} + b, the unit: tanh(x + q), or a GRU's or LSTM's with q in its candidate. See scan/gated_feedback.py. */

struct GatedFeedback {
    long long models, steps, batch, begin, end;
    const int *lengths; /* of the rows, longest first; absent when all run to the end */
    const float *a, *factors, *feedback, *gate, *own, *up, *bias, *shift, *h0, *c0;
    float *h, *c, *units, *gates;
    const float *grad_h, *grad_c, *fed; /* either grad may be absent; fed: U^{ij} h^i of the step before, [i][t][row][j] */
    float *d, *d_h, *d_h0, *d_c0;
    float *far; /* room for the weights of stacks that keep some there */
};

template <class S> DEVICE void gated_feedback_forward(const GatedFeedback &job) {
    constexpr int L = S::L, H = S::H, SHARES = S::SHARES, OWN = S::OWN, ROWS = S::ROWS, WIDE = SHARES * H + L;
    const Seat<S> seat(job);
    const int warp = seat.thread / 32, lane = seat.thread % 32, local = seat.position - seat.rank * S::OWNED;
    const Ring<S> ring(block_memory());
    float *shared = block_memory() + 8 + PHASES * S::PHASE, *opened = shared + S::SHARED_WEIGHTS;
    float *seen = opened + 2 * S::OPENED + 2 * S::SLOT, *rise = seen + S::SEEN, *biases = rise + S::RISE;
    float *far = job.far + ((size_t)seat.model * (size_t)S::BLOCKS + seat.rank) * S::FAR_WEIGHTS; /* same for all clusters */
    const Ahead<S> ahead(seat, opened + 2 * S::OPENED);
    const size_t model = seat.model, first = model * job.steps * job.batch + seat.row, start = model * job.batch + seat.row;
    const float *up_weights = job.up + model * (L - 1) * WIDE * H, *gate = job.gate + model * L * L * L * H;

    Weights<S, L, 1, S::FEEDBACK_PLACE> feedback[L];
    Weights<S, OWN + !OWN, 1, S::OWN_PLACE> own[L];
    Weights<S, SHARES, 1, S::UP_PLACE> above[S::ABOVE];
    UNROLL for (int i = 0; i < L; i++) {
        feedback[i].load(seat, shared, far, [&](int j, int unit, int, int k) {
            return job.feedback[((model * L + i) * H + k) * L * H + j * H + unit];
        });
        if constexpr (OWN > 0)
            own[i].load(seat, shared, far, [&](int n, int unit, int, int k) {
                return job.own[((model * L + i) * OWN * H + n * H + unit) * H + k];
            });
        if (i + 1 < L)
            above[i % S::ABOVE].load(seat, shared, far, [&](int n, int unit, int, int k) {
                return up_weights[((size_t)i * WIDE + n * H + unit) * H + k];
            });
    }
    for (int n = seat.thread; n < S::SEEN; n += S::THREADS) { /* [layer that is seen][gate][unit] */
        const int k = n % S::PITCH, i = n / S::PITCH / (L * L);
        seen[n] = k < H ? gate[(size_t)(n / S::PITCH % (L * L)) * L * H + i * H + k] : 0.0f;
    }
    for (int n = seat.thread; n < S::RISE; n += S::THREADS) {
        const int k = n % S::PITCH, i = n / S::PITCH % L, j = n / S::PITCH / L;
        rise[n] = k < H && L > 1 ? up_weights[((size_t)j * WIDE + SHARES * H + i) * H + k] : 0.0f;
    }
    for (int n = seat.thread; n < S::BIASES; n += S::THREADS) {
        const int row = n / S::OWNED, unit = seat.rank * S::OWNED + n % S::OWNED, last = n - (S::ABOVE * SHARES + L) * S::OWNED;
        const float *bias = job.bias ? job.bias + model * (L - 1) * WIDE : (const float *)0;
        biases[n] = 0;
        if (last >= 0)
            biases[n] = bias && L > 1 ? bias[last / L * WIDE + SHARES * H + last % L] : 0.0f;
        else if (unit < H && row < S::ABOVE * SHARES)
            biases[n] = bias && L > 1 ? bias[row / SHARES * WIDE + row % SHARES * H + unit] : 0.0f;
        else if (unit < H)
            biases[n] = job.shift ? job.shift[(model * L + row - S::ABOVE * SHARES) * H + unit] : 0.0f;
    }
    const float *gate_biases = biases + (S::ABOVE * SHARES + L) * S::OWNED;

    float h[L], c[L], now[L][L], next[L][L], inside[L][OWN + !OWN];
    float part[L][S::ROUNDS] = {}, coming[L][S::ROUNDS] = {}; /* a lane's of what the gates of this warp see */
    int reach[S::ROUNDS];                                     /* steps of the rows they belong to */
    UNROLL for (int round = 0; round < S::ROUNDS; round++) {
        const int row = seat.first_row + (warp + round * S::WARPS) % ROWS;
        reach[round] = row < seat.last_row ? job.lengths ? job.lengths[row] : (int)job.steps : 0;
    }

    /* What the next step will want of layer i, from its state. */
    auto feed = [&](int i, const float *rows) {
        float sum[L][S::VALUES] = {};
        feedback[i].multiply(seat.lane, rows, sum);
        UNROLL for (int j = 0; j < L; j++) next[i][j] = reduced<S>(seat.lane, sum[j]);
        if constexpr (OWN > 0) {
            float gates[OWN][S::VALUES] = {};
            own[i].multiply(seat.lane, rows, gates);
            UNROLL for (int n = 0; n < OWN; n++) inside[i][n] = reduced<S>(seat.lane, gates[n]);
        }
        UNROLL for (int round = 0; round < S::ROUNDS; round++) {
            const int n = warp + round * S::WARPS;
            if (n < S::GATES)
                UNROLL for (int j = 0; j < L; j++)
                    coming[j][round] += dot<S>(lane, seen + ((i * L + j) * L + n / ROWS) * S::PITCH, rows + n % ROWS * S::WIDTH);
        }
    };
    auto step_on = [&] {
        UNROLL for (int j = 0; j < L; j++) {
            UNROLL for (int i = 0; i < L; i++) now[i][j] = next[i][j];
            UNROLL for (int round = 0; round < S::ROUNDS; round++) part[j][round] = coming[j][round], coming[j][round] = 0;
        }
    };
    auto ask = [&](int step) {
        if (step < seat.length && seat.exists(0)) {
            const size_t at = first + step * job.batch;
            UNROLL for (int n = 0; n < SHARES; n++) ahead.start(seat, step, n, job.a + at * WIDE + n * H + seat.position);
            if (S::DROPPED)
                UNROLL for (int j = 0; j + 1 < L; j++)
                    ahead.start(seat, step, SHARES + j, job.factors + (at * (L - 1) + j) * H + seat.position);
        }
        UNROLL for (int round = 0; round < S::ROUNDS; round++) {
            const int n = warp + round * S::WARPS;
            if (lane == 0 && n < S::GATES && step < reach[round])
                copy_start(ahead.gate(step, n), job.a + (model * job.steps * job.batch + step * job.batch + seat.first_row + n % ROWS) * WIDE +
                                                    SHARES * H + n / ROWS);
        }
        copy_close();
    };

    ask(0);
    ring.open(seat);
    UNROLL for (int i = 0; i < L; i++) { /* the start, one layer after the other in the place of a phase */
        barrier_wait<1>();
        const bool here = seat.runs() && seat.exists(0);
        h[i] = here ? job.h0[(start * L + i) * H + seat.position] : 0.0f;
        c[i] = here && SHARES == 4 ? job.c0[(start * L + i) * H + seat.position] : 0.0f;
        for (int n = seat.thread; n < ROWS * S::WIDTH; n += S::THREADS) {
            const int row = seat.first_row + n / S::WIDTH, unit = n % S::WIDTH;
            ring.at(0)[n] = unit < H && row < seat.last_row ? job.h0[((model * job.batch + row) * L + i) * H + unit] : 0.0f;
        }
        barrier_wait<1>();
        feed(i, ring.at(0));
    }
    step_on();
    ring.meet();
    for (int step = 0; step < seat.steps; step++) {
        const bool live = step < seat.length && seat.exists(0);
        const size_t at = first + step * job.batch;
        ahead.wait();
        ask(step + 1);
        UNROLL for (int j = 0; j < L; j++) {
            const int phase = step * L + j;
            const float *below = ring.at(phase + PHASES - 1);
            float x[SHARES];
            if (j > 0) {
                ring.wait(seat, phase - 1);
                float sum[SHARES][S::VALUES] = {};
                above[(j + S::ABOVE - 1) % S::ABOVE].multiply(seat.lane, below + (S::DROPPED ? ROWS * S::WIDTH : 0), sum);
                UNROLL for (int n = 0; n < SHARES; n++)
                    x[n] = reduced<S>(seat.lane, sum[n]) + biases[((j - 1) * SHARES + n) * S::OWNED + local];
            } else {
                UNROLL for (int n = 0; n < SHARES; n++) x[n] = ahead.at(step, n);
            }
            float *open = opened + (step & 1) * S::OPENED / 2 + j * S::GATES;
            UNROLL for (int round = 0; round < S::ROUNDS; round++) {
                const int n = warp + round * S::WARPS;
                if (n < S::GATES) { /* the same for a whole warp */
                    float into = part[j][round];
                    if (j > 0)
                        into += dot<S>(lane, rise + ((j - 1) * L + n / ROWS) * S::PITCH,
                                       below + (S::DROPPED ? ROWS * S::WIDTH : 0) + n % ROWS * S::WIDTH);
                    if (lane == 0 && step < reach[round])
                        into += j > 0 ? gate_biases[(j - 1) * L + n / ROWS] : *ahead.gate(step, n);
                    const float g = sigmoid(warp_sum(into));
                    if (lane == 0) open[n] = g;
                    if (lane == 0 && seat.rank == 0 && step < reach[round])
                        job.gates[(model * job.steps * job.batch + step * job.batch + seat.first_row + n % ROWS) * L * L + j * L + n / ROWS] = g;
                }
            }
            barrier_wait<1>();
            float q = 0, keep[4];
            UNROLL for (int i = 0; i < L; i++) q += open[i * ROWS + seat.local_row] * now[i][j];
            if constexpr (SHARES == 1) {
                h[j] = tanhf(x[0] + q);
            } else if constexpr (SHARES == 3) {
                keep[0] = sigmoid(x[0] + inside[j][0]);
                keep[1] = sigmoid(x[1] + inside[j][1]);
                keep[3] = q + biases[(S::ABOVE * SHARES + j) * S::OWNED + local];
                keep[2] = tanhf(x[2] + keep[0] * keep[3]);
                h[j] = keep[2] + keep[1] * (h[j] - keep[2]);
            } else {
                keep[0] = sigmoid(x[0] + inside[j][0]);
                keep[1] = sigmoid(x[1] + inside[j][1]);
                keep[2] = tanhf(x[2] + q);
                keep[3] = sigmoid(x[3] + inside[j][2]);
                c[j] = keep[1] * c[j] + keep[0] * keep[2];
                h[j] = keep[3] * tanhf(c[j]);
            }
            if (!live) h[j] = c[j] = 0;
            ring.publish(seat, phase, 0, h[j]);
            if (S::DROPPED) ring.publish(seat, phase, 1, live && j + 1 < L ? h[j] * ahead.at(step, SHARES + j) : 0.0f);
            if (live && seat.copy == 0) {
                const size_t place = (at * L + j) * H + seat.position;
                job.h[place] = h[j];
                if (SHARES == 4) job.c[place] = c[j];
                if (SHARES > 1)
                    UNROLL for (int n = 0; n < 4; n++) job.units[((at * L + j) * 4 + n) * H + seat.position] = keep[n];
            }
            if (j > 0) feed(j - 1, below);
        }
        ring.wait(seat, step * L + L - 1);
        feed(L - 1, ring.at(step * L + L - 1));
        step_on();
    }
    ring.meet(); /* no block may end while another still writes to it */
}

/* With G^j = ∂L/∂h^j_t, x what comes from below and e^{ij} what the gates see:  G^j = grad + (what t + 1 sends) + W^{j+1}
   ∂x^{j+1} + w^{j+1} ∂e^{j+1},  ∂g^{ij} = ∂q^j U^{ij} h^i,  and h^i one step before gets Σ_j g^{ij} U^{ij} ∂q^j + Σ u ∂e.
   A phase mails ∂x and ∂q of a layer, and of each ∂g what the units of each warp add to it. */
template <class S> DEVICE void gated_feedback_backward(const GatedFeedback &job) {
    constexpr int L = S::L, H = S::H, SHARES = S::SHARES, OWN = S::OWN, ROWS = S::ROWS, WIDE = SHARES * H + L;
    constexpr int NUMBERS = S::NUMBERS, Q = NUMBERS - 1; /* mailed: dx | r z n, dq | i f o g */
    const Seat<S> seat(job);
    const int warp = seat.thread / 32, lane = seat.thread % 32, local = seat.position - seat.rank * S::OWNED;
    const Ring<S> ring(block_memory());
    float *shared = block_memory() + 8 + PHASES * S::PHASE, *opened = shared + S::SHARED_WEIGHTS;
    float *by_gates = opened + S::OPENED, *seen = opened + 2 * S::OPENED + 2 * S::SLOT, *rise = seen + S::SEEN;
    float *far = job.far + (seat.model * S::BLOCKS + seat.rank) * S::FAR_WEIGHTS;
    const Ahead<S> ahead(seat, opened + 2 * S::OPENED);
    const size_t model = seat.model, first = model * job.steps * job.batch + seat.row, start = model * job.batch + seat.row;
    const float *up_weights = job.up + model * (L - 1) * WIDE * H;

    Weights<S, L, 1, S::FEEDBACK_PLACE> feedback[L];
    Weights<S, 1, OWN + !OWN, S::OWN_PLACE> own[L];
    Weights<S, 1, SHARES, S::UP_PLACE> above[S::ABOVE];
    UNROLL for (int j = 0; j < L; j++) {
        feedback[j].load(seat, shared, far, [&](int i, int unit, int, int k) {
            return job.feedback[((model * L + i) * H + unit) * L * H + j * H + k];
        });
        if constexpr (OWN > 0)
            own[j].load(seat, shared, far, [&](int, int unit, int n, int k) {
                return job.own[((model * L + j) * OWN * H + n * H + k) * H + unit];
            });
        if (j + 1 < L)
            above[j % S::ABOVE].load(seat, shared, far, [&](int, int unit, int n, int k) {
                const int share = SHARES == 4 && n >= 2 ? 5 - n : n;
                return up_weights[((size_t)j * WIDE + share * H + k) * H + unit];
            });
    }
    for (int n = seat.thread; n < S::SEEN; n += S::THREADS) { /* [layer that is seen][gate][unit] */
        const int unit = seat.rank * S::OWNED + n % S::OWNED, i = n / S::OWNED / (L * L);
        seen[n] = unit < H ? job.gate[(model * L * L + n / S::OWNED % (L * L)) * L * H + i * H + unit] : 0.0f;
    }
    for (int n = seat.thread; n < S::RISE; n += S::THREADS) {
        const int unit = seat.rank * S::OWNED + n % S::OWNED, i = n / S::OWNED % L, j = n / S::OWNED / L;
        rise[n] = unit < H && L > 1 ? up_weights[((size_t)j * WIDE + SHARES * H + i) * H + unit] : 0.0f;
    }

    float carried[L] = {}, memory[L] = {}, passed[L] = {}, partial[L][1][S::VALUES] = {};
    int reach[S::ROUNDS]; /* steps of the rows that the gates of this warp belong to */
    UNROLL for (int round = 0; round < S::ROUNDS; round++) {
        const int row = seat.first_row + (warp + round * S::WARPS) % ROWS;
        reach[round] = row < seat.last_row ? job.lengths ? job.lengths[row] : (int)job.steps : 0;
    }
    const auto gate_row = [&](int t, int n) { return (model * job.steps + t) * job.batch + seat.first_row + n % ROWS; };

    auto ask = [&](int back) {
        const int t = seat.steps - 1 - back;
        if (t >= 0 && t < seat.length && seat.exists(0)) {
            const size_t at = first + t * job.batch;
            UNROLL for (int j = 0; j < L; j++) {
                const size_t place = (at * L + j) * H + seat.position;
                const size_t before = t ? place - job.batch * L * H : (start * L + j) * H + seat.position;
                const auto fetch = [&](int n, const float *from) { ahead.start(seat, back, j * S::EACH + n, from); };
                if (job.grad_h) fetch(0, job.grad_h + place);
                UNROLL for (int i = 0; i < L; i++)
                    fetch(1 + i, job.fed + model * job.steps * job.batch * (L - 1) * L * H + i * job.steps * job.batch * L * H + place);
                if (SHARES == 1) fetch(1 + L, job.h + place);
                if (SHARES > 1)
                    UNROLL for (int n = 0; n < 4; n++)
                        fetch(1 + L + n, job.units + ((at * L + j) * 4 + n) * H + seat.position);
                if (SHARES == 3) fetch(5 + L, (t ? (const float *)job.h : job.h0) + before);
                if (SHARES == 4) {
                    fetch(5 + L, (t ? (const float *)job.c : job.c0) + before);
                    fetch(6 + L, job.c + place);
                    if (job.grad_c) fetch(7 + L, job.grad_c + place);
                }
                if (S::DROPPED && j + 1 < L)
                    ahead.start(seat, back, L * S::EACH + j, job.factors + (at * (L - 1) + j) * H + seat.position);
            }
        }
        UNROLL for (int round = 0; round < S::ROUNDS; round++) {
            const int n = warp + round * S::WARPS;
            if (lane == 0 && n < S::GATES && t >= 0 && t < reach[round])
                UNROLL for (int j = 0; j < L; j++)
                    copy_start(ahead.gate(back, j * S::GATES + n), job.gates + gate_row(t, n) * L * L + j * L + n / ROWS);
        }
        copy_close();
    };
    /* What the gates of layer j see, from the parts that all warps have sent; then the whole block knows. */
    auto finish = [&](int back, int j, const float *rows) {
        const int t = seat.steps - 1 - back;
        UNROLL for (int round = 0; round < S::ROUNDS; round++) {
            const int n = warp + round * S::WARPS;
            if (n < S::GATES) {
                const float *parts = rows + NUMBERS * ROWS * S::WIDTH + n * S::PARTS;
                float sum = 0;
                for (int part = lane; part < S::PARTS; part += 32) sum += parts[part];
                sum = warp_sum(sum);
                if (lane == 0) {
                    const int at = (back & 1) * S::OPENED / 2 + j * S::GATES + n;
                    const bool runs = t < reach[round];
                    const float g = runs ? *ahead.gate(back, j * S::GATES + n) : 0.0f;
                    opened[at] = g;
                    by_gates[at] = runs ? sum * g * (1 - g) : 0.0f;
                    if (runs && seat.rank == 0) job.d[(gate_row(t, n) * L + j) * WIDE + SHARES * H + n / ROWS] = by_gates[at];
                }
            }
        }
        barrier_wait<1>();
    };
    /* What layer j sends to the states before it. */
    auto feed = [&](int back, int j, const float *rows) {
        float sum[L][S::VALUES] = {};
        feedback[j].multiply(seat.lane, rows + Q * ROWS * S::WIDTH, sum);
        const float *open = opened + (back & 1) * S::OPENED / 2 + j * S::GATES;
        UNROLL for (int i = 0; i < L; i++) UNROLL for (int v = 0; v < S::VALUES; v++)
            partial[i][0][v] = fmaf(open[i * ROWS + v / S::UNITS], sum[i][v], partial[i][0][v]);
        if constexpr (OWN > 0) own[j].multiply(seat.lane, rows, partial[j]);
    };

    ask(0);
    ring.open(seat);
    ring.meet();
    for (int back = 0; back < seat.steps; back++) {
        const int t = seat.steps - 1 - back;
        const bool live = t < seat.length && seat.exists(0);
        ahead.wait();
        ask(back + 1);
        UNROLL for (int j = L - 1; j >= 0; j--) {
            const int phase = back * L + L - 1 - j;
            const float *higher = ring.at(phase + PHASES - 1);
            const auto fetched = [&](int n) { return ahead.at(back, j * S::EACH + n); };
            float g = carried[j] + (job.grad_h ? fetched(0) : 0.0f), d[4] = {}, into[L];
            if (j + 1 < L) {
                ring.wait(seat, phase - 1);
                float sum[1][S::VALUES] = {};
                above[j % S::ABOVE].multiply(seat.lane, higher, sum);
                finish(back, j + 1, higher);
                float below = reduced<S>(seat.lane, sum[0]);
                const float *e = by_gates + (back & 1) * S::OPENED / 2 + (j + 1) * S::GATES + seat.local_row;
                UNROLL for (int i = 0; i < L; i++) below += rise[(j * L + i) * S::OWNED + local] * e[i * ROWS];
                g += S::DROPPED ? below * ahead.at(back, L * S::EACH + j) : below;
            }
            if constexpr (SHARES == 1) {
                d[0] = (1 - fetched(1 + L) * fetched(1 + L)) * g;
            } else if constexpr (SHARES == 3) {
                const float r = fetched(1 + L), z = fetched(2 + L), n = fetched(3 + L), u = fetched(4 + L);
                d[2] = (1 - z) * (1 - n * n) * g;
                d[3] = d[2] * r;
                d[0] = d[3] * u * (1 - r);
                d[1] = (fetched(5 + L) - n) * z * (1 - z) * g;
                passed[j] = live ? z * g : 0.0f;
            } else {
                const float i = fetched(1 + L), f = fetched(2 + L), candidate = fetched(3 + L), o = fetched(4 + L);
                const float tanh_c = tanhf(fetched(6 + L));
                const float by_c = memory[j] + (job.grad_c ? fetched(7 + L) : 0.0f) + o * (1 - tanh_c * tanh_c) * g;
                d[0] = candidate * i * (1 - i) * by_c;
                d[1] = fetched(5 + L) * f * (1 - f) * by_c;
                d[2] = tanh_c * o * (1 - o) * g;
                d[3] = i * (1 - candidate * candidate) * by_c;
                memory[j] = live ? f * by_c : 0.0f;
            }
            UNROLL for (int n = 0; n < NUMBERS; n++) {
                d[n] = live ? d[n] : 0.0f;
                ring.publish(seat, phase, n, d[n]);
            }
            UNROLL for (int i = 0; i < L; i++) { /* over the units of the warp, row by row */
                into[i] = live ? d[Q] * fetched(1 + i) : 0.0f;
                UNROLL for (int mask = 1; mask < S::UNITS; mask *= 2) into[i] += shuffle_xor(into[i], mask * S::COPIES);
                UNROLL for (int mask = S::LANES; mask < 32; mask *= 2) into[i] += shuffle_xor(into[i], mask);
                const int which = lane / S::LANES * (S::LANES / ROWS) + seat.lane % (S::LANES / ROWS);
                ring.template send<32 / ROWS>(phase, ring.at(phase) + NUMBERS * ROWS * S::WIDTH +
                                                         (i * ROWS + seat.local_row) * S::PARTS + seat.rank * S::WARPS + warp,
                                              which, into[i]);
            }
            if (live && seat.copy == 0) {
                const size_t at = (first + t * job.batch) * L + j;
                UNROLL for (int n = 0; n < SHARES; n++)
                    job.d[at * WIDE + (SHARES == 4 && n >= 2 ? 5 - n : n) * H + seat.position] = d[n];
                if (job.d_h) job.d_h[at * H + seat.position] = g;
            }
            if (j + 1 < L) feed(back, j + 1, higher);
        }
        const float *lowest = ring.at(back * L + L - 1);
        ring.wait(seat, back * L + L - 1);
        finish(back, 0, lowest);
        feed(back, 0, lowest);
        const float *e = by_gates + (back & 1) * S::OPENED / 2 + seat.local_row;
        UNROLL for (int i = 0; i < L; i++) {
            float more = 0; /* lanes with the same item share the gates */
            for (int n = seat.copy; n < L * L; n += S::COPIES) more += seen[(i * L * L + n) * S::OWNED + local] * e[n * ROWS];
            carried[i] = reduced<S>(seat.lane, partial[i][0], more) + passed[i];
            UNROLL for (int v = 0; v < S::VALUES; v++) partial[i][0][v] = 0;
        }
    }
    if (seat.copy == 0 && seat.runs() && seat.exists(0))
        UNROLL for (int i = 0; i < L; i++) {
            job.d_h0[(start * L + i) * H + seat.position] = carried[i];
            if (SHARES == 4) job.d_c0[(start * L + i) * H + seat.position] = memory[i];
        }
    ring.meet(); /* no block may end while another still writes to it */
}
