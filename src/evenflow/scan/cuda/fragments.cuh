/* A thread's share of the matrix in fragments of four places: the eight weights that it brings to a matrix A, in one
   fragment their w' and in the next their w". TALL matrices lie below each other, then those of the next 16 inputs. */
template <class T> struct Fragments {
    static constexpr int TALL = T::TALL, WIDE = T::ROWS / 8, COLUMNS = T::PIECES / (2 * TALL);
    static constexpr int WHOLE = up(T::HELD, 2 * TALL); /* columns of matrices with some weights in registers */
    static constexpr int BATCH = TALL * WIDE == 1 ? 2 : 1; /* of these columns at a time */
    static constexpr int BATCHES = up(WHOLE, BATCH);
    /* Where the columns in shared memory have come to after so many batches; those of a ring come last. */
    static EVERYWHERE constexpr int spilt_by(int batch) {
        return T::RING || BATCHES == 0 ? WHOLE : WHOLE + (COLUMNS - WHOLE) * batch / BATCHES;
    }
    static constexpr int MOST = BATCH + (T::RING || BATCHES == 0 ? 0 : up(COLUMNS - WHOLE, BATCHES)); /* of a batch */
    typedef float Sums[TALL][WIDE][4];
    float held[T::HELD + (T::HELD == 0)][4];
    float *spilled;       /* [fragment][thread][4]; with a RING its slots */
    float *far;           /* the same in device memory, with a RING */
    mutable int slot = 0; /* of the ring, where the next fragment arrives */
    float down[TALL][2];  /* powers of this warp's weights, of outputs g and g + 8 of each matrix */

    /* `read` gives weight q of this thread's in matrix i: of output g (even q) or g + 8, at input q / 2 of its four. A
       few matrices are read at a time, for the sake of registers too. First the largest of each output is looked for. */
    template <class Read> DEVICE Fragments(const Seat<T> &seat, float *memory, float *device, Read read) {
        spilled = memory + seat.thread * 4;
        far = device + ((seat.model * T::BLOCKS + seat.rank) * T::FAR * T::THREADS + seat.thread) * 4;
        float *rest = T::RING ? far : spilled, up[TALL][2] = {};
        UNROLL_BY_4 for (int n = 0; n < COLUMNS; n++) UNROLL for (int m = 0; m < TALL; m++)
            UNROLL for (int q = 0; q < 8; q++) up[m][q % 2] = fmaxf(up[m][q % 2], fabsf(read(n * TALL + m, q)));
        UNROLL for (int m = 0; m < TALL; m++) UNROLL for (int row = 0; row < 2; row++) {
            UNROLL for (int mask = 1; mask < 4; mask *= 2) /* four lanes have the same output */
                up[m][row] = fmaxf(up[m][row], shuffle_xor(up[m][row], mask));
            const Power power = power_for(up[m][row]);
            up[m][row] = power.up, down[m][row] = power.down;
        }
        const auto make = [&](int n, int m, float (&whole)[4], float (&part)[4]) {
            UNROLL for (int q = 0; q < 4; q++) {
                const int i = n * TALL + m, first = q / 2 * 4 + q % 2;
                const float w[2] = {read(i, first) * up[m][q % 2], read(i, first + 2) * up[m][q % 2]};
                const float most[2] = {whole_of_weight(w[0]), whole_of_weight(w[1])};
                whole[q] = halves(most[0], most[1]), part[q] = halves(w[0] - most[0], w[1] - most[1]);
            }
        };
        const auto put = [&](int f, const float (&w)[4]) {
            *(float4 *)(rest + (f - T::HELD) * T::THREADS * 4) = make_float4(w[0], w[1], w[2], w[3]);
        };
        UNROLL for (int i = 0; i < WHOLE * TALL; i++) if (always(i / 4)) {
            float w[2][4];
            make(i / TALL, i % TALL, w[0], w[1]);
            UNROLL for (int part = 0; part < 2; part++) {
                const int f = i * 2 + part;
                if (f < T::HELD)
                    UNROLL for (int q = 0; q < 4; q++) held[f < T::HELD ? f : 0][q] = w[part][q];
                else
                    put(f, w[part]);
            }
        }
        NO_UNROLL for (int n = WHOLE; n < COLUMNS; n++) UNROLL for (int m = 0; m < TALL; m++) {
            float w[2][4];
            make(n, m, w[0], w[1]);
            put((n * TALL + m) * 2, w[0]), put((n * TALL + m) * 2 + 1, w[1]);
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

    typedef Abreast<float, 2> Pair;

    /* 16 inputs on their way: a lane's four of each row, and the powers of the two rows whose sums it holds. */
    struct Inputs {
        float4 word[WIDE];
        Pair power[WIDE];
    };

    /* With the weights that are not in registers. */
    struct Column {
        Inputs in;
        float4 weight[TALL][2];
    };

    DEVICE static void load(Inputs &to, const float *state, const float *powers) {
        UNROLL for (int r = 0; r < WIDE; r++) {
            to.word[r] = *(const float4 *)(state + r * 8 * T::ROW);
            to.power[r] = *(const Pair *)(powers + r * 8);
        }
    }

    /* Where there are many matrices below each other, their weights are read when they are wanted. */
    static constexpr bool EARLY = TALL <= 2;
    static EVERYWHERE constexpr bool holds(int f, bool whole) { return whole && f < T::HELD; }

    /* The sums of this warp; `at` says where in a row of the state the inputs of column n are. A lane reads from `state`
       on, and its powers from `powers` on. */
    template <class At> DEVICE void operator()(const float *state, const float *powers, At at, Sums &total) const {
        UNROLL for (int m = 0; m < TALL; m++) UNROLL for (int r = 0; r < WIDE; r++) UNROLL for (int q = 0; q < 4; q++)
            total[m][r][q] = 0;
        /* A few columns at a time, while the next are on their way: given all of them, the compiler starts more than
           there are registers for. Those in shared memory are spread among those in registers. */
        Column ready[2][MOST];
        UNROLL for (int b = 0; b <= BATCHES; b++)
            if (b == 0 || always(b)) {
                if (b < BATCHES) {
                    UNROLL for (int n = b * BATCH; n < (b + 1) * BATCH && n < WHOLE; n++)
                        fetch<true>(ready[b % 2][n - b * BATCH], state + at(n), powers + at(n) / 16 * T::ROWS, n);
                    UNROLL for (int n = spilt_by(b); n < spilt_by(b + 1); n++)
                        fetch<false>(ready[b % 2][BATCH + n - spilt_by(b)], state + at(n), powers + at(n) / 16 * T::ROWS, n);
                }
                if (b > 0) {
                    UNROLL for (int n = (b - 1) * BATCH; n < b * BATCH && n < WHOLE; n++)
                        add<true>(ready[(b - 1) % 2][n - (b - 1) * BATCH], n, total);
                    UNROLL for (int n = spilt_by(b - 1); n < spilt_by(b); n++)
                        add<false>(ready[(b - 1) % 2][BATCH + n - spilt_by(b - 1)], n, total);
                }
            }
        NO_UNROLL for (int n = spilt_by(BATCHES); n < COLUMNS; n++) { /* of a ring: as they come */
            Inputs in;
            load(in, state + at(n), powers + at(n) / 16 * T::ROWS);
            UNROLL for (int m = 0; m < TALL; m++) {
                const float4 w = spilt((n * TALL + m) * 2), w_rest = spilt((n * TALL + m) * 2 + 1);
                add_matrix(w, w_rest, in, total[m]);
            }
        }
        UNROLL for (int m = 0; m < TALL; m++) UNROLL for (int r = 0; r < WIDE; r++) UNROLL for (int q = 0; q < 4; q++)
            total[m][r][q] *= down[m][q / 2];
    }

    template <bool WHOLLY> DEVICE void fetch(Column &to, const float *state, const float *powers, int n) const {
        load(to.in, state, powers);
        UNROLL for (int m = 0; m < TALL; m++) UNROLL for (int part = 0; part < 2; part++) {
            const int f = (n * TALL + m) * 2 + part;
            if (EARLY && !holds(f, WHOLLY)) to.weight[m][part] = spilt(f);
        }
    }

    template <bool WHOLLY> DEVICE void add(const Column &from, int n, Sums &total) const {
        UNROLL for (int m = 0; m < TALL; m++) {
            float4 w[2];
            UNROLL for (int part = 0; part < 2; part++) {
                const int f = (n * TALL + m) * 2 + part;
                w[part] = holds(f, WHOLLY) ? in_registers(f) : EARLY ? from.weight[m][part] : spilt(f);
            }
            add_matrix(w[0], w[1], from.in, total[m]);
        }
    }

    DEVICE float4 in_registers(int f) const {
        const float(&w)[4] = held[f < T::HELD ? f : 0];
        return make_float4(w[0], w[1], w[2], w[3]);
    }

    /* Add what one matrix gives. Which of its inputs a lane's four are does not matter so long as A and B agree. */
    DEVICE static void add_matrix(float4 w, float4 w_rest, const Inputs &from, float (&total)[WIDE][4]) {
        const float whole[4] = {w.x, w.y, w.z, w.w}, part[4] = {w_rest.x, w_rest.y, w_rest.z, w_rest.w};
        UNROLL for (int r = 0; r < WIDE; r++) {
            const float4 x = from.word[r];
            const float in[2] = {lower_halves(x.x, x.y), lower_halves(x.z, x.w)};
            const float in_rest[2] = {upper_halves(x.x, x.y), upper_halves(x.z, x.w)};
            float major[4] = {}, minor[4] = {};
            multiply_halves(minor, part, in);
            multiply_halves(major, whole, in);
            multiply_halves(minor, whole, in_rest);
            UNROLL for (int q = 0; q < 4; q++)
                total[r][q] = fmaf(from.power[r].value[q % 2], major[q] + minor[q], total[r][q]);
        }
    }
};
