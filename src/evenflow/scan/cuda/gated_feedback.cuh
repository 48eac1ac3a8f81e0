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

/* The gates of a layer that a warp works out, one in each round: gate n is from layer n / ROWS, of row n % ROWS. */
template <class S> struct Gates {
    int warp, lane, reach[S::ROUNDS]; /* reach: steps of their rows */
    size_t start, batch;              /* where the first of a block's rows begins, in rows of the batch */

    DEVICE Gates(const GatedFeedback &job, const Seat<S> &seat) : warp(seat.thread / 32), lane(seat.thread % 32) {
        start = seat.model * job.steps * job.batch + seat.first_row, batch = job.batch;
        UNROLL for (int round = 0; round < S::ROUNDS; round++) {
            const int row = seat.first_row + number(round) % S::ROWS;
            reach[round] = row >= seat.last_row ? 0 : job.lengths ? job.lengths[row] : (int)job.steps;
        }
    }

    DEVICE int number(int round) const { return warp + round * S::WARPS; }
    DEVICE bool exists(int round) const { return number(round) < S::GATES; } /* the same for the whole warp */
    DEVICE bool first() const { return lane == 0; }                          /* of the lanes, which all know the sum */
    DEVICE size_t row(int t, int round) const { return start + t * batch + number(round) % S::ROWS; }
};

template <class S> DEVICE void gated_feedback_forward(const GatedFeedback &job) {
    constexpr int L = S::L, H = S::H, SHARES = S::SHARES, OWN = S::OWN, ROWS = S::ROWS, WIDE = SHARES * H + L;
    const Seat<S> seat(job);
    const Gates<S> gates(job, seat);
    const Ring<S> ring(block_memory());
    const int local = seat.position - seat.rank * S::OWNED;
    float *shared = block_memory() + 8 + PHASES * S::PHASE, *opened = shared + S::SHARED_WEIGHTS;
    float *seen = opened + 2 * S::OPENED + 2 * S::SLOT, *rise = seen + S::SEEN, *biases = rise + S::RISE;
    float *far = job.far + (seat.model * S::BLOCKS + seat.rank) * S::FAR_WEIGHTS; /* all clusters write the same there */
    const Ahead<S> ahead(seat, opened + 2 * S::OPENED);
    const size_t model = seat.model, first = model * job.steps * job.batch + seat.row;
    const size_t start = model * job.batch + seat.row;
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
        const int row = n / S::OWNED, unit = seat.rank * S::OWNED + n % S::OWNED;
        const int last = n - (S::ABOVE * SHARES + L) * S::OWNED; /* the gates' come last */
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

    /* What comes from layer i, from its state: to the layers from `from` on, to their gates, and to its own. */
    auto feed = [&](int i, const float *rows, int from, float (&to)[L][L], float (&gate_parts)[L][S::ROUNDS]) {
        float sum[L][S::VALUES] = {};
        feedback[i].multiply(seat.lane, rows, sum, from);
        UNROLL for (int j = 0; j < L; j++) if (j >= from) to[i][j] = reduced<S>(seat.lane, sum[j]);
        if constexpr (OWN > 0) {
            float each[OWN][S::VALUES] = {};
            own[i].multiply(seat.lane, rows, each);
            UNROLL for (int n = 0; n < OWN; n++) inside[i][n] = reduced<S>(seat.lane, each[n]);
        }
        UNROLL for (int round = 0; round < S::ROUNDS; round++) {
            const int n = gates.number(round);
            const float *weights = seen + (i * L * L + n / ROWS) * S::PITCH, *row = rows + n % ROWS * S::WIDTH;
            if (gates.exists(round))
                UNROLL for (int j = 0; j < L; j++) if (j >= from)
                    gate_parts[j][round] += dot<S>(gates.lane, weights + j * L * S::PITCH, row);
        }
    };
    auto step_on = [&] {
        UNROLL for (int j = 0; j < L; j++) {
            UNROLL for (int i = 0; i + 1 < L; i++) now[i][j] = next[i][j];
            UNROLL for (int round = 0; round < S::ROUNDS; round++) {
                part[j][round] = coming[j][round];
                coming[j][round] = 0;
            }
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
        UNROLL for (int round = 0; round < S::ROUNDS; round++)
            if (gates.first() && gates.exists(round) && step < gates.reach[round])
                copy_start(ahead.gate(step, gates.number(round)),
                           job.a + gates.row(step, round) * WIDE + SHARES * H + gates.number(round) / ROWS);
        copy_close();
    };

    ask(0);
    ring.open(seat);
    UNROLL for (int i = 0; i < L; i++) { /* the start, the last layer's where the phase before the first would be */
        float *rows = ring.at(i + 1 < L ? 0 : PHASES - 1);
        barrier_wait<1>();
        const bool here = seat.runs() && seat.exists(0);
        h[i] = here ? job.h0[(start * L + i) * H + seat.position] : 0.0f;
        c[i] = here && SHARES == 4 ? job.c0[(start * L + i) * H + seat.position] : 0.0f;
        for (int n = seat.thread; n < ROWS * S::WIDTH; n += S::THREADS) {
            const int row = seat.first_row + n / S::WIDTH, unit = n % S::WIDTH;
            const bool there = unit < H && row < seat.last_row;
            rows[n] = there ? job.h0[((model * job.batch + row) * L + i) * H + unit] : 0.0f;
        }
        barrier_wait<1>();
        if (i + 1 < L || L == 1) feed(i, rows, L == 1, next, coming);
    }
    ring.meet();
    for (int step = 0; step < seat.steps; step++) {
        const bool live = step < seat.length && seat.exists(0);
        const size_t at = first + step * job.batch;
        ahead.template wait<0>();
        ask(step + 1);
        UNROLL for (int j = 0; j < L; j++) {
            const int phase = step * L + j;
            const float *below = ring.at(phase + PHASES - 1), *rising = below + (S::DROPPED && j ? ROWS * S::WIDTH : 0);
            float x[SHARES], into[S::ROUNDS] = {};
            if (phase > 0) ring.wait(seat, phase - 1);
            if (j == 0) step_on();
            /* The state that has just come, for what this phase wants: the gates, and the sums over warps together. */
            const float *news = j ? rise + (j - 1) * L * S::PITCH : seen + (L - 1) * L * L * S::PITCH;
            UNROLL for (int round = 0; round < S::ROUNDS; round++) if (gates.exists(round)) {
                const int n = gates.number(round);
                into[round] = part[j][round] + dot<S>(gates.lane, news + n / ROWS * S::PITCH, rising + n % ROWS * S::WIDTH);
                if (gates.first() && step < gates.reach[round])
                    into[round] += j ? gate_biases[(j - 1) * L + n / ROWS] : *ahead.gate(step, n);
            }
            if (j == 0) {
                float sum[L][S::VALUES] = {};
                feedback[L - 1].multiply(seat.lane, below, sum, 0, 1);
                now[L - 1][0] = reduced<S, S::ROUNDS>(seat.lane, sum[0], into);
                if (L == 1 && step > 0) feed(0, below, 1, now, part); /* a layer alone wants its own gates at once */
                UNROLL for (int n = 0; n < SHARES; n++) x[n] = ahead.at(step, n);
            } else {
                float sum[SHARES][S::VALUES] = {};
                above[(j + S::ABOVE - 1) % S::ABOVE].multiply(seat.lane, rising, sum);
                UNROLL for (int n = 0; n < SHARES; n++)
                    x[n] = (n ? reduced<S>(seat.lane, sum[n]) : reduced<S, S::ROUNDS>(seat.lane, sum[0], into)) +
                           biases[((j - 1) * SHARES + n) * S::OWNED + local];
            }
            float *open = opened + (step & 1) * S::OPENED / 2 + j * S::GATES;
            UNROLL for (int round = 0; round < S::ROUNDS; round++) if (gates.first() && gates.exists(round)) {
                const int n = gates.number(round);
                const float g = sigmoid(into[round]);
                open[n] = g;
                if (step < gates.reach[round] && seat.rank == 0)
                    job.gates[gates.row(step, round) * L * L + j * L + n / ROWS] = g;
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
            /* While the mail is on its way. */
            if (j > 0) feed(j - 1, below, 0, next, coming);
            if (j == 0 && L > 1) feed(L - 1, below, 1, now, part);
        }
    }
    if (seat.steps > 0) ring.wait(seat, seat.steps * L - 1);
    ring.meet(); /* no block may end while another still writes to it */
}
