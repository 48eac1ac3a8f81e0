/* The product of a step on tensor cores, for tiles with TENSOR.

   A group is LANES / 32 whole warps, and its outputs (UNITS units, OUT gates each) are the rows of matrices A of 16 rows
   and 8 inputs; eight rows of the batch at a time are the columns of matrices B. The warps of a group share the inputs
   among themselves, 16 at a time, so that a state is read from shared memory once per group. Their sums meet in shared
   memory and are added up there, always in the same order.

   Tensor cores take numbers with ten bits of fraction and drop the rest. Three products give what single precision
   would: with w = w' + w" and h = h' + h", w h ≈ w" h' + w' h" + w' h' (Ootomo and Yokota 2022). Two more things keep
   the error from having a preferred sign, which would grow with the number of steps. h' is rounded and not cut off, so
   that the product left out, w" h", has either sign; w' may then be cut off, by the hardware itself, where w is made
   beforehand the sum of two such numbers. And since the hardware cuts off its sums, it adds up eight inputs alone; all
   longer sums are made outside of it. */

/* A thread's share of the matrix in fragments, which are four weights of a matrix A: TALL of them below each other, then
   the next 8 inputs. */
template <class T> struct Fragments {
    static constexpr int TALL = T::TALL, WIDE = T::ROWS / 8, COLUMNS = T::PIECES / (2 * TALL);
    static constexpr int WHOLE = up(T::HELD, 2 * TALL); /* columns of 16 inputs with some weights in registers */
    static constexpr int BATCH = TALL * WIDE < 4 ? 4 / (TALL * WIDE) : 1;
    /* Sums of the smaller products: where they are few, one for each of two fragments, so that none waits for another. */
    static constexpr int MINORS = T::RING || TALL * WIDE >= 4 ? 1 : 2;
    static constexpr int BATCHES = up(WHOLE, BATCH);
    /* Where the columns in shared memory have come to after so many batches; those of a ring come last. */
    static EVERYWHERE constexpr int spilt_by(int batch) {
        return T::RING || BATCHES == 0 ? WHOLE : WHOLE + (COLUMNS - WHOLE) * batch / BATCHES;
    }
    typedef float Sums[TALL][WIDE][4];
    float held[T::HELD + (T::HELD == 0)][4];
    float *spilled;       /* [fragment][thread][4]; with a RING its slots */
    float *far;           /* the same in device memory, with a RING */
    mutable int slot = 0; /* of the ring, where the next fragment arrives */

    /* `read` gives weight q of fragment f. A weight is made the sum of two numbers that tensor cores can take. Eight
       fragments are read at a time, for the sake of registers too. */
    template <class Read> DEVICE Fragments(const Seat<T> &seat, float *memory, float *device, Read read) {
        spilled = memory + seat.thread * 4;
        far = device + ((seat.model * T::BLOCKS + seat.rank) * T::FAR * T::THREADS + seat.thread) * 4;
        float *rest = T::RING ? far : spilled;
        UNROLL for (int f = 0; f < WHOLE * 2 * TALL; f++) if (always(f / 8)) UNROLL for (int q = 0; q < 4; q++) {
            const float w = read(f, q);
            if (f < T::HELD)
                held[f][q] = cut(w) + rounded(dropped(w));
            else
                rest[(f - T::HELD) * T::THREADS * 4 + q] = cut(w) + rounded(dropped(w));
        }
        UNROLL_BY_8 for (int f = WHOLE * 2 * TALL; f < T::PIECES; f++) UNROLL for (int q = 0; q < 4; q++) {
            const float w = read(f, q);
            rest[(f - T::HELD) * T::THREADS * 4 + q] = cut(w) + rounded(dropped(w));
        }
        /* Clusters of one model write the same numbers to the same place, and each thread reads its own. */
        if (T::RING) memory_fence();
        UNROLL for (int n = 0; n < T::RING - 1; n++) start(n, n);
    }

    /* Start a fragment on its way into a slot. */
    DEVICE void start(int fragment, int into) const {
        copy_start<4>(spilled + into * T::THREADS * 4, far + fragment * T::THREADS * 4, 4);
        copy_close();
    }

    /* The weights of fragment f that are not in registers. All but one slot of the ring are under way, first those of
       this step and then the first of the next; the one left is that of the fragment before, which has been used. */
    DEVICE float4 spilt(int f) const {
        if (T::RING == 0) return *(const float4 *)(spilled + (f - T::HELD) * T::THREADS * 4);
        copy_wait<T::RING ? T::RING - 2 : 0>();
        const float4 found = *(const float4 *)(spilled + slot * T::THREADS * 4);
        const int next = f - T::HELD + T::RING - 1;
        start(next < T::FAR ? next : next - T::FAR, slot ? slot - 1 : T::RING - 1);
        slot = slot + 1 < T::RING ? slot + 1 : 0;
        return found;
    }

    /* The sums of this warp; `at` says where in a state the lane's inputs of column n are. */
    template <class At> DEVICE void operator()(const float *state, At at, Sums &total) const {
        Sums minor[MINORS] = {};
        UNROLL for (int m = 0; m < TALL; m++) UNROLL for (int r = 0; r < WIDE; r++) UNROLL for (int q = 0; q < 4; q++)
            total[m][r][q] = 0;
        /* A few columns at a time: given all of them, the compiler starts more than there are registers for. Those in
           shared memory are spread among those in registers, so that they arrive while others are multiplied. */
        UNROLL for (int b = 0; b < BATCHES; b++)
            if (b == 0 || always(b)) {
                UNROLL for (int n = b * BATCH; n < (b + 1) * BATCH && n < WHOLE; n++)
                    column<true>(state + at(n), n, total, minor);
                UNROLL for (int n = spilt_by(b); n < spilt_by(b + 1); n++)
                    column<false>(state + at(n), n, total, minor);
            }
        NO_UNROLL for (int n = spilt_by(BATCHES); n < COLUMNS; n++) column<false>(state + at(n), n, total, minor);
        UNROLL for (int m = 0; m < TALL; m++) UNROLL for (int r = 0; r < WIDE; r++) UNROLL for (int q = 0; q < 4; q++)
            total[m][r][q] += MINORS == 1 ? minor[0][m][r][q] : minor[0][m][r][q] + minor[MINORS - 1][m][r][q];
    }

    /* Add what 16 inputs give. A lane reads four of a row: two are for one pair of matrices, two for the next; which
       inputs a matrix has does not matter so long as A and B agree. Products whose sums are not carried on come first:
       they are done when they are added. */
    template <bool HOLDS> DEVICE void column(const float *state, int n, Sums &total, Sums (&minor)[MINORS]) const {
        float in[WIDE][2][2], rest[WIDE][2][2], w[2][TALL][4], more[2][TALL][WIDE][4] = {};
        UNROLL for (int r = 0; r < WIDE; r++) {
            const float4 x = *(const float4 *)(state + r * 8 * T::ROW);
            const float all[2][2] = {{x.x, x.y}, {x.z, x.w}};
            UNROLL for (int second = 0; second < 2; second++) UNROLL for (int q = 0; q < 2; q++) {
                in[r][second][q] = rounded(all[second][q]);
                rest[r][second][q] = all[second][q] - in[r][second][q];
            }
        }
        if (T::RING) { /* a fragment at a time, as they come */
            UNROLL for (int second = 0; second < 2; second++) UNROLL for (int m = 0; m < TALL; m++)
                fragment<HOLDS>((n * 2 + second) * TALL + m, in, rest, second, total[m], minor[0][m]);
            return;
        }
        UNROLL for (int second = 0; second < 2; second++) UNROLL for (int m = 0; m < TALL; m++) {
            const int f = (n * 2 + second) * TALL + m;
            if (HOLDS && f < T::HELD) {
                UNROLL for (int q = 0; q < 4; q++) w[second][m][q] = held[HOLDS && f < T::HELD ? f : 0][q];
            } else {
                const float4 at = spilt(f);
                w[second][m][0] = at.x, w[second][m][1] = at.y, w[second][m][2] = at.z, w[second][m][3] = at.w;
            }
            UNROLL for (int r = 0; r < WIDE; r++) multiply(more[second][m][r], w[second][m], in[r][second]);
        }
        UNROLL for (int second = 0; second < 2; second++) UNROLL for (int m = 0; m < TALL; m++)
            UNROLL for (int r = 0; r < WIDE; r++)
                multiply(minor[second % MINORS][m][r], w[second][m], rest[r][second]);
        UNROLL for (int second = 0; second < 2; second++) UNROLL for (int m = 0; m < TALL; m++) {
            float w_rest[4];
            UNROLL for (int q = 0; q < 4; q++) w_rest[q] = dropped(w[second][m][q]);
            UNROLL for (int r = 0; r < WIDE; r++) multiply(minor[second % MINORS][m][r], w_rest, in[r][second]);
            UNROLL for (int r = 0; r < WIDE; r++) UNROLL for (int q = 0; q < 4; q++)
                total[m][r][q] += more[second][m][r][q];
        }
    }

    template <bool HOLDS>
    DEVICE void fragment(int f, const float (&in)[WIDE][2][2], const float (&rest)[WIDE][2][2], int second,
                         float (&total)[WIDE][4], float (&minor)[WIDE][4]) const {
        float w[4], w_rest[4], more[WIDE][4] = {};
        if (HOLDS && f < T::HELD) {
            UNROLL for (int q = 0; q < 4; q++) w[q] = held[HOLDS && f < T::HELD ? f : 0][q];
        } else {
            const float4 at = spilt(f);
            w[0] = at.x, w[1] = at.y, w[2] = at.z, w[3] = at.w;
        }
        UNROLL for (int r = 0; r < WIDE; r++) multiply(more[r], w, in[r][second]);
        UNROLL for (int q = 0; q < 4; q++) w_rest[q] = dropped(w[q]);
        UNROLL for (int r = 0; r < WIDE; r++) multiply(minor[r], w, rest[r][second]);
        UNROLL for (int r = 0; r < WIDE; r++) multiply(minor[r], w_rest, in[r][second]);
        UNROLL for (int r = 0; r < WIDE; r++) UNROLL for (int q = 0; q < 4; q++) total[r][q] += more[r][q];
    }
};

template <class T, bool FORWARD> struct Product<T, FORWARD, ON_TENSOR_CORES> {
    static constexpr int WARPS = T::LANES / 32;
    const Fragments<T> fragments;
    float *partial; /* [warp][row][gate][unit] */
    int inputs;     /* where in a state this lane reads first */

    DEVICE Product(const Seat<T> &seat, const float *weight, float *memory, float *far)
        : fragments(seat, memory, far, [&](int f, int q) { return read(seat, weight, f, q); }) {
        partial = memory + T::SPILLED;
        inputs = seat.thread % 32 / 4 * T::ROW + seat.lane / 32 * 16 + seat.thread % 4 * 4;
    }

    static DEVICE float read(const Seat<T> &seat, const float *weight, int f, int q) {
        const int n = f / (2 * T::TALL), second = f / T::TALL % 2;
        const int output = f % T::TALL * 16 + q % 2 * 8 + seat.thread % 32 / 4;
        const int j = seat.rank * T::OWNED + seat.thread / T::LANES * T::UNITS + output % T::UNITS;
        const int k = (n % T::COLUMNS * WARPS + seat.lane / 32) * 16 + seat.thread % 4 * 4 + second * 2 + q / 2;
        if ((T::BLOCKS * T::OWNED > T::H && j >= T::H) || (T::COLUMNS * T::SPAN > T::H && k >= T::H)) return 0;
        return FORWARD ? weight[(size_t)(output / T::UNITS * T::H + T::unit(j)) * T::H + T::unit(k)]
                       : weight[(size_t)(n / T::COLUMNS * T::H + T::unit(k)) * T::H + T::unit(j)];
    }

    /* What this lane's items get, summed over the group. */
    DEVICE void operator()(const Seat<T> &seat, const Exchange<T> &exchange, int step,
                           float (&sum)[T::SUMS][T::OUT]) const {
        auto at = [](int n) { return n / T::COLUMNS * T::WIDTH + n % T::COLUMNS * WARPS * 16; };
        typename Fragments<T>::Sums total;
        fragments(exchange.last(step) + inputs, at, total);
        meet(seat, total, sum);
    }

    /* Hand each lane its items. No warp is here again before all have read: the exchange of states is between. */
    DEVICE void meet(const Seat<T> &seat, const typename Fragments<T>::Sums &total,
                     float (&sum)[T::SUMS][T::OUT]) const {
        const int high = seat.thread % 32 / 4, low = seat.thread % 4, item = seat.lane / T::COPIES * T::ITEMS;
        float *mine = partial + seat.thread / 32 * T::ROWS * T::TRACK;
        UNROLL for (int m = 0; m < T::TALL; m++)
            UNROLL for (int r = 0; r < T::ROWS / 8; r++) UNROLL for (int q = 0; q < 4; q++)
                mine[(r * 8 + low * 2 + q % 2) * T::TRACK + m * 16 + q / 2 * 8 + high] = total[m][r][q];
        team_wait<T::LANES>(seat.thread / T::LANES);
        const float *all =
            partial + (seat.thread / T::LANES * WARPS * T::ROWS + item / T::UNITS) * T::TRACK + item % T::UNITS;
        UNROLL for (int gate = 0; gate < T::OUT; gate++) {
            UNROLL for (int q = 0; q < T::ITEMS; q++) sum[q][gate] = 0;
            UNROLL for (int warp = 0; warp < WARPS; warp++) {
                const Pack got = *(const Pack *)(all + warp * T::ROWS * T::TRACK + gate * T::UNITS);
                UNROLL for (int q = 0; q < T::ITEMS; q++) sum[q][gate] += got.value[q];
            }
        }
    }

    struct alignas(4 * T::ITEMS) Pack {
        float value[T::ITEMS];
    };
};
