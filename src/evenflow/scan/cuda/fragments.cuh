/* A thread's share of the recurrent matrix on tensor cores, and the product of a warp with a state.

   The instruction mma.m16n8k16 multiplies a matrix A of 16 outputs and 16 inputs by a matrix B of 16 inputs and 8 rows
   of the batch. Of each A a thread brings eight weights, split into two halves each (fp16_split.cuh): four 32-bit
   registers with the high parts w' are one *fragment*, and four with the low parts w" the next. A warp has M_TILES
   matrices A below each other, for its outputs, and COLUMNS of them beside each other, for its inputs.

   The first HELD fragments stay in registers. The others are spilled to shared memory, or with a *prefetch ring* to
   device memory: then copies run ahead through PREFETCH_SLOTS slots of shared memory, one fragment in each. */
template <class T> struct Fragments {
    static constexpr int M_TILES = T::M_TILES, N_TILES = T::ROWS / 8, COLUMNS = T::PIECES / (2 * M_TILES);
    static constexpr int REGISTER_COLUMNS = ceil_div(T::HELD, 2 * M_TILES); /* columns with some weights in registers */
    static constexpr int BATCH = M_TILES * N_TILES == 1 ? 2 : 1;            /* of these columns, loaded together */
    static constexpr int BATCHES = ceil_div(REGISTER_COLUMNS, BATCH);
    /* The first spilled column of a batch: spilled columns are spread evenly among the batches. Columns of a prefetch
       ring come after all batches. */
    static HOST_DEVICE constexpr int spilled_before(int batch) {
        return T::PREFETCH_SLOTS || BATCHES == 0 ? REGISTER_COLUMNS
                                                 : REGISTER_COLUMNS + (COLUMNS - REGISTER_COLUMNS) * batch / BATCHES;
    }
    static constexpr int SPILLED_BATCH =
        T::PREFETCH_SLOTS || BATCHES == 0 ? 0 : ceil_div(COLUMNS - REGISTER_COLUMNS, BATCHES);
    static constexpr int MAX_BATCH = BATCH + SPILLED_BATCH;
    typedef float Sums[M_TILES][N_TILES][4];
    float held[T::HELD + (T::HELD == 0)][4];
    float *spilled;         /* [fragment][thread][4] in shared memory; the slots of a prefetch ring */
    float *global_weights;  /* [fragment][thread][4] in device memory, for a prefetch ring */
    mutable int slot = 0;   /* of the ring, with the next fragment to be used */
    float down[M_TILES][2]; /* scales of the weights of outputs g and g + 8 of each matrix */

    /* `read(i, q)` gives this thread's weight q in matrix i: of output g (even q) or g + 8, at input q / 2 of its four.
       All matrices are read twice: first for the largest weight of each output, which determines the scale. A few
       matrices are read at a time, to save registers. */
    template <class Read> DEVICE Fragments(const ThreadCoords<T> &coords, float *memory, float *device, Read read) {
        spilled = memory + coords.thread * 4;
        const size_t block = coords.model * T::BLOCKS + coords.rank;
        global_weights = device + (block * T::STREAMED * T::THREADS + coords.thread) * 4;
        float *rest = T::PREFETCH_SLOTS ? global_weights : spilled, up[M_TILES][2] = {};
        UNROLL_BY_4 for (int n = 0; n < COLUMNS; n++) UNROLL for (int m = 0; m < M_TILES; m++)
            UNROLL for (int q = 0; q < 8; q++) up[m][q % 2] = fmaxf(up[m][q % 2], fabsf(read(n * M_TILES + m, q)));
        UNROLL for (int m = 0; m < M_TILES; m++) UNROLL for (int row = 0; row < 2; row++) {
            UNROLL for (int mask = 1; mask < 4; mask *= 2) /* four lanes have the same output */
                up[m][row] = fmaxf(up[m][row], shuffle_xor(up[m][row], mask));
            const Scale scale = scale_for(up[m][row]);
            up[m][row] = scale.up, down[m][row] = scale.down;
        }
        const auto split_weights = [&](int n, int m, float (&high)[4], float (&low)[4]) {
            UNROLL for (int q = 0; q < 4; q++) {
                const int i = n * M_TILES + m, first = q / 2 * 4 + q % 2;
                const float w[2] = {read(i, first) * up[m][q % 2], read(i, first + 2) * up[m][q % 2]};
                const float part[2] = {high_part_of_weight(w[0]), high_part_of_weight(w[1])};
                high[q] = pack_halves(part[0], part[1]), low[q] = pack_halves(w[0] - part[0], w[1] - part[1]);
            }
        };
        const auto put = [&](int f, const float (&w)[4]) {
            *(float4 *)(rest + (f - T::HELD) * T::THREADS * 4) = make_float4(w[0], w[1], w[2], w[3]);
        };
        UNROLL for (int i = 0; i < REGISTER_COLUMNS * M_TILES; i++) if (always_true(i / 4)) {
            float w[2][4];
            split_weights(i / M_TILES, i % M_TILES, w[0], w[1]);
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
            split_weights(n, m, w[0], w[1]);
            put((n * M_TILES + m) * 2, w[0]), put((n * M_TILES + m) * 2 + 1, w[1]);
        }
        /* All clusters of a model write the same numbers to the same places; each thread reads what it wrote itself. */
        if (T::PREFETCH_SLOTS) memory_fence();
        UNROLL for (int n = 0; n < T::PREFETCH_SLOTS - 1; n++) start(n, n);
    }

    /* Start the copy of a fragment into a slot. */
    DEVICE void start(int fragment, int into) const {
        copy_start<4>(spilled + into * T::THREADS * 4, global_weights + fragment * T::THREADS * 4, 4);
        copy_commit();
    }

    /* The weights of fragment f, which is not in registers. With a prefetch ring, all slots but one hold fragments that
       are being copied, in the order of their use: the rest of this step, then the first of the next step. The slot
       left is that of the fragment before, which has been used, and takes the next copy. */
    DEVICE float4 load_spilled(int f) const {
        if (T::PREFETCH_SLOTS == 0) return *(const float4 *)(spilled + (f - T::HELD) * T::THREADS * 4);
        copy_wait<T::PREFETCH_SLOTS ? T::PREFETCH_SLOTS - 2 : 0>();
        const float4 weights = *(const float4 *)(spilled + slot * T::THREADS * 4);
        const int next = f - T::HELD + T::PREFETCH_SLOTS - 1;
        start(next < T::STREAMED ? next : next - T::STREAMED, slot ? slot - 1 : T::PREFETCH_SLOTS - 1);
        slot = slot + 1 < T::PREFETCH_SLOTS ? slot + 1 : 0;
        return weights;
    }

    typedef Vector<float, 2> Pair;

    /* 16 inputs: a lane's four of each row, and the scales of the two rows whose sums the lane holds. */
    struct Inputs {
        float4 word[N_TILES];
        Pair scale[N_TILES];
    };

    /* 16 inputs, and the weights for them that are not in registers. */
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

    /* With many matrices below each other, spilled weights are loaded only when they are used. */
    static constexpr bool EARLY = M_TILES <= 2;
    static HOST_DEVICE constexpr bool holds(int f, bool wholly) { return wholly && f < T::HELD; }

    /* The sums of this warp. `at(n)` is the place of the inputs of column n in a row of the state; this lane's first
       place is at `state`, and its first scale at `scales`. */
    template <class At> DEVICE void operator()(const float *state, const float *scales, At at, Sums &total) const {
        UNROLL for (int m = 0; m < M_TILES; m++) UNROLL for (int r = 0; r < N_TILES; r++)
            UNROLL for (int q = 0; q < 4; q++) total[m][r][q] = 0;
        /* One batch of columns is multiplied while the next is loaded: if all were unrolled freely, the compiler would
           start more loads than there are registers for. Spilled columns are spread among those in registers. */
        Column ready[2][MAX_BATCH];
        UNROLL for (int b = 0; b <= BATCHES; b++)
            if (b == 0 || always_true(b)) {
                if (b < BATCHES) {
                    UNROLL for (int n = b * BATCH; n < (b + 1) * BATCH && n < REGISTER_COLUMNS; n++)
                        fetch<true>(ready[b % 2][n - b * BATCH], state + at(n), scales + at(n) / 16 * T::ROWS, n);
                    UNROLL for (int n = spilled_before(b); n < spilled_before(b + 1); n++)
                        fetch<false>(ready[b % 2][BATCH + n - spilled_before(b)], state + at(n),
                                     scales + at(n) / 16 * T::ROWS, n);
                }
                if (b > 0) {
                    UNROLL for (int n = (b - 1) * BATCH; n < b * BATCH && n < REGISTER_COLUMNS; n++)
                        add<true>(ready[(b - 1) % 2][n - (b - 1) * BATCH], n, total);
                    UNROLL for (int n = spilled_before(b - 1); n < spilled_before(b); n++)
                        add<false>(ready[(b - 1) % 2][BATCH + n - spilled_before(b - 1)], n, total);
                }
            }
        NO_UNROLL for (int n = spilled_before(BATCHES); n < COLUMNS; n++) { /* those of a prefetch ring */
            Inputs in;
            load(in, state + at(n), scales + at(n) / 16 * T::ROWS);
            UNROLL for (int m = 0; m < M_TILES; m++) {
                const float4 high = load_spilled((n * M_TILES + m) * 2), low = load_spilled((n * M_TILES + m) * 2 + 1);
                add_matrix(high, low, in, total[m]);
            }
        }
        UNROLL for (int m = 0; m < M_TILES; m++) UNROLL for (int r = 0; r < N_TILES; r++)
            UNROLL for (int q = 0; q < 4; q++) total[m][r][q] *= down[m][q / 2];
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

    /* Add the product of one matrix. Which four inputs a lane has does not matter as long as A and B agree. */
    DEVICE static void add_matrix(float4 w_high, float4 w_low, const Inputs &from, float (&total)[N_TILES][4]) {
        const float high[4] = {w_high.x, w_high.y, w_high.z, w_high.w};
        const float low[4] = {w_low.x, w_low.y, w_low.z, w_low.w};
        UNROLL for (int r = 0; r < N_TILES; r++) {
            const float4 x = from.word[r];
            const float in_high[2] = {lower_halves(x.x, x.y), lower_halves(x.z, x.w)};
            const float in_low[2] = {upper_halves(x.x, x.y), upper_halves(x.z, x.w)};
            float major[4] = {}, minor[4] = {};
            mma_fp16(minor, low, in_high);
            mma_fp16(major, high, in_high);
            mma_fp16(minor, high, in_low);
            UNROLL for (int q = 0; q < 4; q++)
                total[r][q] = fmaf(from.scale[r].value[q % 2], major[q] + minor[q], total[r][q]);
        }
    }
};
