/* The way back of gated_feedback.cuh.

   With G^j = ∂L/∂h^j_t, x what comes from below and e^{ij} what the gates see:  G^j = grad + (what t + 1 sends) + W^{j+1}
   ∂x^{j+1} + w^{j+1} ∂e^{j+1},  ∂g^{ij} = ∂q^j U^{ij} h^i,  and h^i one step before gets Σ_j g^{ij} U^{ij} ∂q^j + Σ u ∂e.
   A phase mails ∂x and ∂q of a layer; each block then works out all ∂g by itself, a warp for each of them. */
template <class S> DEVICE void gated_feedback_backward(const GatedFeedback &job) {
    constexpr int L = S::L, H = S::H, SHARES = S::SHARES, OWN = S::OWN, ROWS = S::ROWS, WIDE = SHARES * H + L;
    constexpr int NUMBERS = S::NUMBERS, Q = NUMBERS - 1; /* mailed: dx | r z n, dq | i f o g */
    const Seat<S> seat(job);
    const Gates<S> gates(job, seat);
    const Ring<S> ring(block_memory());
    const int local = seat.position - seat.rank * S::OWNED;
    float *shared = block_memory() + 8 + PHASES * S::PHASE, *opened = shared + S::SHARED_WEIGHTS;
    float *by_gates = opened + S::OPENED, *fed = opened + 2 * S::OPENED + 2 * S::SLOT, *seen = fed + S::FED;
    float *rise = seen + S::SEEN;
    float *far = job.far + (seat.model * S::BLOCKS + seat.rank) * S::FAR_WEIGHTS;
    const Ahead<S> ahead(seat, opened + 2 * S::OPENED);
    const size_t model = seat.model, all = job.steps * job.batch, first = model * all + seat.row;
    const size_t start = model * job.batch + seat.row;
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

    auto ask = [&](int back) {
        const int t = seat.steps - 1 - back;
        if (t >= 0 && t < seat.length && seat.exists(0)) {
            const size_t at = first + t * job.batch;
            UNROLL for (int j = 0; j < L; j++) {
                const size_t place = (at * L + j) * H + seat.position;
                const size_t before = t ? place - job.batch * L * H : (start * L + j) * H + seat.position;
                const auto fetch = [&](int n, const float *from) { ahead.start(seat, back, j * S::EACH + n, from); };
                if (job.grad_h) fetch(0, job.grad_h + place);
                if (SHARES == 1) fetch(1, job.h + place);
                if (SHARES > 1)
                    UNROLL for (int n = 0; n < 4; n++)
                        fetch(1 + n, job.units + ((at * L + j) * 4 + n) * H + seat.position);
                if (SHARES == 3) fetch(5, (t ? (const float *)job.h : job.h0) + before);
                if (SHARES == 4) {
                    fetch(5, (t ? (const float *)job.c : job.c0) + before);
                    fetch(6, job.c + place);
                    if (job.grad_c) fetch(7, job.grad_c + place);
                }
                if (S::DROPPED && j + 1 < L)
                    ahead.start(seat, back, L * S::EACH + j, job.factors + (at * (L - 1) + j) * H + seat.position);
            }
        }
        UNROLL for (int round = 0; round < S::ROUNDS; round++) {
            const int n = gates.number(round);
            if (gates.first() && gates.exists(round) && t >= 0 && t < gates.reach[round])
                UNROLL for (int j = 0; j < L; j++)
                    copy_start(ahead.gate(back, j * S::GATES + n),
                               job.gates + gates.row(t, round) * L * L + j * L + n / ROWS);
        }
        copy_close();
    };
    /* U^{ij} h^i of all units for the gates of this warp. A lane fetches what it will multiply by itself, and the place is
       free as soon as it has done so: one phase is enough. */
    auto ask_fed = [&](int back, int j) {
        const int t = seat.steps - 1 - back;
        UNROLL for (int round = 0; round < S::ROUNDS; round++) {
            if (!gates.exists(round) || t < 0 || t >= gates.reach[round]) continue;
            const int n = gates.number(round);
            const size_t row = gates.row(t, round) + (model * (L - 1) + n / ROWS) * all;
            const float *from = job.fed + (row * L + j) * H;
            UNROLL for (int piece = 0; piece < up(H, 128); piece++) {
                const int k = piece * 128 + gates.lane * 4;
                float *to = fed + n * S::PITCH + k;
                if (k >= S::PITCH) continue;
                if constexpr (H % 4 == 0)
                    copy_start<4>(to, from + k, 4);
                else
                    UNROLL for (int q = 0; q < 4; q++) copy_start<1>(to + q, from + (k + q < H ? k + q : 0), k + q < H);
            }
        }
        copy_close();
    };
    /* A lane's part of what the gates of a layer get, from its ∂q of all units. */
    auto look = [&](const float *rows, float (&sum)[S::ROUNDS]) {
        UNROLL for (int round = 0; round < S::ROUNDS; round++) {
            const int n = gates.number(round);
            sum[round] = 0;
            if (gates.exists(round))
                sum[round] = dot<S>(gates.lane, fed + n * S::PITCH, rows + (Q * ROWS + n % ROWS) * S::WIDTH);
        }
    };
    /* Then the whole block knows. */
    auto tell = [&](int back, int j, const float (&sum)[S::ROUNDS]) {
        const int t = seat.steps - 1 - back;
        UNROLL for (int round = 0; round < S::ROUNDS; round++) if (gates.first() && gates.exists(round)) {
            const int n = gates.number(round), at = (back & 1) * S::OPENED / 2 + j * S::GATES + n;
            const bool runs = t < gates.reach[round];
            by_gates[at] = runs ? sum[round] * opened[at] * (1 - opened[at]) : 0.0f;
            if (runs && seat.rank == 0)
                job.d[(gates.row(t, round) * L + j) * WIDE + SHARES * H + n / ROWS] = by_gates[at];
        }
        barrier_wait<1>();
        ask_fed(j > 0 ? back : back + 1, j > 0 ? j - 1 : L - 1);
    };
    /* What layer j sends to the states before it, of the layers from `from` to before `to`, and to its own. */
    auto feed = [&](int back, int j, const float *rows, int from, int to, bool itself) {
        float sum[L][S::VALUES] = {};
        feedback[j].multiply(seat.lane, rows + Q * ROWS * S::WIDTH, sum, from, to);
        const float *open = opened + (back & 1) * S::OPENED / 2 + j * S::GATES;
        UNROLL for (int i = 0; i < L; i++) if (i >= from && i < to) UNROLL for (int v = 0; v < S::VALUES; v++)
            partial[i][0][v] = fmaf(open[i * ROWS + v / S::UNITS], sum[i][v], partial[i][0][v]);
        if constexpr (OWN > 0)
            if (itself) own[j].multiply(seat.lane, rows, partial[j]);
    };
    /* By way of all gates of a step, to the state of layer i before it. */
    auto by_way_of_gates = [&](int back, int i) {
        const float *e = by_gates + (back & 1) * S::OPENED / 2 + seat.local_row;
        float sum = 0;
        UNROLL for (int n = 0; n < L * L; n++) sum = fmaf(seen[(i * L * L + n) * S::OWNED + local], e[n * ROWS], sum);
        return sum;
    };
    /* The end of a step, for the highest layer of the one before it, which is next; and, with time, for the others. */
    auto turn = [&](int back, const float *rows) {
        float sums[S::ROUNDS];
        look(rows, sums);
        feed(back, 0, rows, L - 1, L, L == 1);
        carried[L - 1] = reduced<S, S::ROUNDS>(seat.lane, partial[L - 1][0], sums) + passed[L - 1];
        UNROLL for (int v = 0; v < S::VALUES; v++) partial[L - 1][0][v] = 0;
        tell(back, 0, sums);
        carried[L - 1] += by_way_of_gates(back, L - 1);
    };
    auto turn_others = [&](int back, const float *rows) {
        if (L > 1) feed(back, 0, rows, 0, L - 1, true);
        UNROLL for (int i = 0; i + 1 < L; i++) {
            carried[i] = reduced<S>(seat.lane, partial[i][0]) + passed[i] + by_way_of_gates(back, i);
            UNROLL for (int v = 0; v < S::VALUES; v++) partial[i][0][v] = 0;
        }
    };

    ask(0);
    ask_fed(0, L - 1);
    ring.open(seat);
    ring.meet();
    for (int back = 0; back < seat.steps; back++) {
        const int t = seat.steps - 1 - back;
        const bool live = t < seat.length && seat.exists(0);
        if (L == 1)
            ahead.template wait<0>();
        else
            ahead.template wait<1>(); /* a row for each gate was asked for later */
        UNROLL for (int round = 0; round < S::ROUNDS; round++) if (gates.first() && gates.exists(round))
            UNROLL for (int j = 0; j < L; j++) {
                const int n = j * S::GATES + gates.number(round);
                opened[(back & 1) * S::OPENED / 2 + n] = t < gates.reach[round] ? *ahead.gate(back, n) : 0.0f;
            }
        if (back == 0) barrier_wait<1>(); /* later ones lie between this and the first use */
        ask(back + 1);
        UNROLL for (int j = L - 1; j >= 0; j--) {
            const int phase = back * L + L - 1 - j;
            const float *higher = ring.at(phase + PHASES - 1);
            const auto fetched = [&](int n) { return ahead.at(back, j * S::EACH + n); };
            float d[4] = {};
            if (phase > 0) ring.wait(seat, phase - 1);
            if (j + 1 < L) {
                float sum[1][S::VALUES] = {}, sums[S::ROUNDS];
                copy_wait<0>();
                look(higher, sums);
                above[j % S::ABOVE].multiply(seat.lane, higher, sum);
                float below = reduced<S, S::ROUNDS>(seat.lane, sum[0], sums);
                tell(back, j + 1, sums);
                const float *e = by_gates + (back & 1) * S::OPENED / 2 + (j + 1) * S::GATES + seat.local_row;
                UNROLL for (int i = 0; i < L; i++) below += rise[(j * L + i) * S::OWNED + local] * e[i * ROWS];
                carried[j] += S::DROPPED ? below * ahead.at(back, L * S::EACH + j) : below;
            } else if (back > 0) {
                copy_wait<1>(); /* the next step's numbers were asked for after these rows */
                turn(back - 1, higher);
            }
            const float g = carried[j] + (job.grad_h ? fetched(0) : 0.0f);
            if constexpr (SHARES == 1) {
                d[0] = (1 - fetched(1) * fetched(1)) * g;
            } else if constexpr (SHARES == 3) {
                const float r = fetched(1), z = fetched(2), n = fetched(3), u = fetched(4);
                d[2] = (1 - z) * (1 - n * n) * g;
                d[3] = d[2] * r;
                d[0] = d[3] * u * (1 - r);
                d[1] = (fetched(5) - n) * z * (1 - z) * g;
                passed[j] = live ? z * g : 0.0f;
            } else {
                const float i = fetched(1), f = fetched(2), candidate = fetched(3), o = fetched(4);
                const float tanh_c = tanhf(fetched(6));
                const float by_c = memory[j] + (job.grad_c ? fetched(7) : 0.0f) + o * (1 - tanh_c * tanh_c) * g;
                d[0] = candidate * i * (1 - i) * by_c;
                d[1] = fetched(5) * f * (1 - f) * by_c;
                d[2] = tanh_c * o * (1 - o) * g;
                d[3] = i * (1 - candidate * candidate) * by_c;
                memory[j] = live ? f * by_c : 0.0f;
            }
            UNROLL for (int n = 0; n < NUMBERS; n++) {
                d[n] = live ? d[n] : 0.0f;
                ring.publish(seat, phase, n, d[n]);
            }
            if (live && seat.copy == 0) {
                const size_t at = (first + t * job.batch) * L + j;
                UNROLL for (int n = 0; n < SHARES; n++)
                    job.d[at * WIDE + (SHARES == 4 && n >= 2 ? 5 - n : n) * H + seat.position] = d[n];
                if (job.d_h) job.d_h[at * H + seat.position] = g;
            }
            /* While the mail is on its way. */
            if (j + 1 < L) feed(back, j + 1, higher, 0, L, true);
            if (j + 1 == L && back > 0) turn_others(back - 1, higher);
        }
    }
    if (seat.steps > 0) { /* for the start */
        const float *lowest = ring.at(seat.steps * L - 1);
        ring.wait(seat, seat.steps * L - 1);
        copy_wait<0>();
        turn(seat.steps - 1, lowest);
        turn_others(seat.steps - 1, lowest);
    }
    if (seat.copy == 0 && seat.runs() && seat.exists(0))
        UNROLL for (int i = 0; i < L; i++) {
            job.d_h0[(start * L + i) * H + seat.position] = carried[i];
            if (SHARES == 4) job.d_c0[(start * L + i) * H + seat.position] = memory[i];
        }
    ring.meet(); /* no block may end while another still writes to it */
}
