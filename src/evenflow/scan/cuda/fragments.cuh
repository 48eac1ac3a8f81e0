/* A thread's share of the matrix in fragments of four places: the eight weights that it brings to a matrix A, in one
   fragment their w' and in the next their w". M_TILES matrices lie below each other, then those of the next 16 inputs. */
template <class T> struct Fragments {
    static constexpr int M_TILES = T::M_TILES, N_TILES = T::ROWS / 8, COLUMNS = T::PIECES / (2 * M_TILES);
    static constexpr int REGISTER_COLUMNS = ceil_div(T::HELD, 2 * M_TILES); /* columns of matrices with some weights in registers */
    static constexpr int BATCH = M_TILES * N_TILES == 1 ? 2 : 1; /* of these columns at a time */
    static constexpr int BATCHES = ceil_div(REGISTER_COLUMNS, BATCH);
    /* Where the columns in shared memory have come to after so many batches; those of a ring come last. */
    static HOST_DEVICE constexpr int spilled_before(int batch) {
        return T::PREFETCH_SLOTS || BATCHES == 0 ? REGISTER_COLUMNS : REGISTER_COLUMNS + (COLUMNS - REGISTER_COLUMNS) * batch / BATCHES;
    }
    static constexpr int MAX_BATCH = BATCH + (T::PREFETCH_SLOTS || BATCHES == 0 ? 0 : ceil_div(COLUMNS - REGISTER_COLUMNS, BATCHES)); /* of a batch */
    typedef float Sums[M_TILES][N_TILES][4];
    float held[T::HELD + (T::HELD == 0)][4];
    float *spilled;       /* [fragment][thread][4]; with a PREFETCH_SLOTS its slots */
    float *global_weights;           /* the same in device memory, with a PREFETCH_SLOTS */
    mutable int slot = 0; /* of the ring, where the next fragment arrives */
    float down[M_TILES][2];  /* scales of this warp's weights, of outputs g and g + 8 of each matrix */

    /* `read` gives weight q of this thread's in matrix i: of output g (even q) or g + 8, at input q / 2 of its four. A
       few matrices are read at a time, for the sake of registers too. First the largest of each output is looked for. */
    template <class Read> DEVICE Fragments(const ThreadCoords<T> &coords, float *memory, float *device, Read read) {
        spilled = memory + coords.thread * 4;
        global_weights = device + ((coords.model * T::BLOCKS + coords.rank) * T::STREAMED * T::THREADS + coords.thread) * 4;
        float *rest = T::PREFETCH_SLOTS ? global_weights : spilled, up[M_TILES][2] = {};
        UNROLL_BY_4 for (int n = 0; n < COLUMNS; n++) UNROLL for (int m = 0; m < M_TILES; m++)
            UNROLL for (int q = 0; q < 8; q++) up[m][q % 2] = fmaxf(up[m][q % 2], fabsf(read(n * M_TILES + m, q)));
        UNROLL for (int m = 0; m < M_TILES; m++) UNROLL for (int row = 0; row < 2; row++) {
            UNROLL for (int mask = 1; mask < 4; mask *= 2) /* four lanes have the same output */
                up[m][row] = fmaxf(up[m][row], shuffle_xor(up[m][row], mask));
            const Scale scale = scale_for(up[m][row]);
            up[m][row] = scale.up, down[m][row] = scale.down;
        }
        const auto make = [&](int n, int m, float (&whole)[4], float (&part)[4]) {
            UNROLL for (int q = 0; q < 4; q++) {
                const int i = n * M_TILES + m, first = q / 2 * 4 + q % 2;
                const float w[2] = {read(i, first) * up[m][q % 2], read(i, first + 2) * up[m][q % 2]};
                const float most[2] = {high_part_of_weight(w[0]), high_part_of_weight(w[1])};
                whole[q] = pack_halves(most[0], most[1]), part[q] = pack_halves(w[0] - most[0], w[1] - most[1]);
            }
        };
        const auto put = [&](int f, const float (&w)[4]) {
            *(float4 *)(rest + (f - T::HELD) * T::THREADS * 4) = make_float4(w[0], w[1], w[2], w[3]);
        };
        UNROLL for (int i = 0; i < REGISTER_COLUMNS * M_TILES; i++) if (always_true(i / 4)) {
            float w[2][4];
            make(i / M_TILES, i % M_TILES, w[0], w[1]);
            UNROLL for (int part = 0; part < 2; part++) {
                const int f = i * 2 + part;
                if (f < T::HELD)
                    UNROLL for (int q = 0; q < 4; q++) held[f < T::HELD ? f : 0][q] = w[part][q];
                else
                    put(f, w[part]);
            }
        }
        NO_UNROLL for (int n = REGISTER_COLUMNS; n < COLUMNS; n++) UNROLL for (int m = 0; m < M_TILES; m++) {
            float w[2][4];
            make(n, m, w[0], w[1]);
            put((n * M_TILES + m) * 2, w[0]), put((n * M_TILES + m) * 2 + 1, w[1]);
        }
        /* Clusters of one model write the same numbers to the same place, and each thread reads its own. */
        if (T::PREFETCH_SLOTS) memory_fence();
        UNROLL for (int n = 0; n < T::PREFETCH_SLOTS - 1; n++) start(n, n);
    }

    /* Start a fragment on its way into a slot. */
    DEVICE void start(int fragment, int into) const {
        copy_start<4>(spilled + into * T::THREADS * 4, global_weights + fragment * T::THREADS * 4, 4);
        copy_commit();
    }

    /* The weights of fragment f that are not in registers. All but one slot of the ring are under way, first those of
       this step and then the first of the next; the one left is that of the fragment before, which has been used. */
    DEVICE float4 load_spilled(int f) const {
        if (T::PREFETCH_SLOTS == 0) return *(const float4 *)(spilled + (f - T::HELD) * T::THREADS * 4);
        copy_wait<T::PREFETCH_SLOTS ? T::PREFETCH_SLOTS - 2 : 0>();
        const float4 found = *(const float4 *)(spilled + slot * T::THREADS * 4);
        const int next = f - T::HELD + T::PREFETCH_SLOTS - 1;
        start(next < T::STREAMED ? next : next - T::STREAMED, slot ? slot - 1 : T::PREFETCH_SLOTS - 1);
        slot = slot + 1 < T::PREFETCH_SLOTS ? slot + 1 : 0;
        return found;
    }

    typedef Vector<float, 2> Pair;

    /* 16 inputs on their way: a lane's four of each row, and the scales of the two rows whose sums it holds. */
    struct Inputs {
        float4 word[N_TILES];
        Pair scale[N_TILES];
    };

    /* With the weights that are not in registers. */
    struct Column {
        Inputs in;
        float4 weight[M_TILES][2];
    };

    DEVICE static void load(Inputs &to, const float *state, const float *scales) {
        UNROLL for (int r = 0; r < N_TILES; r++) {
            to.word[r] = *(const float4 *)(state + r * 8 * T::ROW_STRIDE);
            to.scale[r] = *(const Pair *)(scales + r * 8);
        }
    }

    /* Where there are many matrices below each other, their weights are read when they are wanted. */
    static constexpr bool EARLY = M_TILES <= 2;
    static HOST_DEVICE constexpr bool holds(int f, bool whole) { return whole && f < T::HELD; }

    /* The sums of this warp; `at` says where in a row of the state the inputs of column n are. A lane reads from `state`
       on, and its scales from `scales` on. */
    template <class At> DEVICE void operator()(const float *state, const float *scales, At at, Sums &total) const {
        UNROLL for (int m = 0; m < M_TILES; m++) UNROLL for (int r = 0; r < N_TILES; r++) UNROLL for (int q = 0; q < 4; q++)
            total[m][r][q] = 0;
        /* A few columns at a time, while the next are on their way: given all of them, the compiler starts more than
           there are registers for. Those in shared memory are spread among those in registers. */
        Column ready[2][MAX_BATCH];
        UNROLL for (int b = 0; b <= BATCHES; b++)
            if (b == 0 || always_true(b)) {
                if (b < BATCHES) {
                    UNROLL for (int n = b * BATCH; n < (b + 1) * BATCH && n < REGISTER_COLUMNS; n++)
                        fetch<true>(ready[b % 2][n - b * BATCH], state + at(n), scales + at(n) / 16 * T::ROWS, n);
                    UNROLL for (int n = spilled_before(b); n < spilled_before(b + 1); n++)
                        fetch<false>(ready[b % 2][BATCH + n - spilled_before(b)], state + at(n), scales + at(n) / 16 * T::ROWS, n);
                }
                if (b > 0) {
                    UNROLL for (int n = (b - 1) * BATCH; n < b * BATCH && n < REGISTER_COLUMNS; n++)
                        add<true>(ready[(b - 1) % 2][n - (b - 1) * BATCH], n, total);
                    UNROLL for (int n = spilled_before(b - 1); n < spilled_before(b); n++)
                        add<false>(ready[(b - 1) % 2][BATCH + n - spilled_before(b - 1)], n, total);
                }
            }
        NO_UNROLL for (int n = spilled_before(BATCHES); n < COLUMNS; n++) { /* of a ring: as they come */
            Inputs in;
            load(in, state + at(n), scales + at(n) / 16 * T::ROWS);
            UNROLL for (int m = 0; m < M_TILES; m++) {
                const float4 w = load_spilled((n * M_TILES + m) * 2), w_rest = load_spilled((n * M_TILES + m) * 2 + 1);
                add_matrix(w, w_rest, in, total[m]);
            }
        }
        UNROLL for (int m = 0; m < M_TILES; m++) UNROLL for (int r = 0; r < N_TILES; r++) UNROLL for (int q = 0; q < 4; q++)
            total[m][r][q] *= down[m][q / 2];
    }

    template <bool WHOLLY> DEVICE void fetch(Column &to, const float *state, const float *scales, int n) const {
        load(to.in, state, scales);
        UNROLL for (int m = 0; m < M_TILES; m++) UNROLL for (int part = 0; part < 2; part++) {
            const int f = (n * M_TILES + m) * 2 + part;
            if (EARLY && !holds(f, WHOLLY)) to.weight[m][part] = load_spilled(f);
        }
    }

    template <bool WHOLLY> DEVICE void add(const Column &from, int n, Sums &total) const {
        UNROLL for (int m = 0; m < M_TILES; m++) {
            float4 w[2];
            UNROLL for (int part = 0; part < 2; part++) {
                const int f = (n * M_TILES + m) * 2 + part;
                w[part] = holds(f, WHOLLY) ? in_registers(f) : EARLY ? from.weight[m][part] : load_spilled(f);
            }
            add_matrix(w[0], w[1], from.in, total[m]);
        }
    }

    DEVICE float4 in_registers(int f) const {
        const float(&w)[4] = held[f < T::HELD ? f : 0];
        return make_float4(w[0], w[1], w[2], w[3]);
    }

    /* Add what one matrix gives. Which of its inputs a lane's four are does not matter so long as A and B agree. */
    DEVICE static void add_matrix(float4 w, float4 w_rest, const Inputs &from, float (&total)[N_TILES][4]) {
        const float whole[4] = {w.x, w.y, w.z, w.w}, part[4] = {w_rest.x, w_rest.y, w_rest.z, w_rest.w};
        UNROLL for (int r = 0; r < N_TILES; r++) {
            const float4 x = from.word[r];
            const float in[2] = {lower_halves(x.x, x.y), lower_halves(x.z, x.w)};
            const float in_rest[2] = {upper_halves(x.x, x.y), upper_halves(x.z, x.w)};
            float major[4] = {}, minor[4] = {};
            mma_fp16(minor, part, in);
            mma_fp16(major, whole, in);
            mma_fp16(minor, whole, in_rest);
            UNROLL for (int q = 0; q < 4; q++)
                total[r][q] = fmaf(from.scale[r].value[q % 2], major[q] + minor[q], total[r][q]);
        }
    }
};
