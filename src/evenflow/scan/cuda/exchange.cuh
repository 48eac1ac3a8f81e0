/* How the blocks of a cluster hand each other the new state: step s writes into the state that step s + 1 reads, in its
   own memory and in that of every block beside it.

   Without ASYNC_STORE one barrier of the cluster (or of the block, where it is alone) ends a step. With ASYNC_STORE there is none: the
   numbers themselves are counted as they arrive, and a thread reads a state once all of it is there. That is enough.
   A block can be one step ahead of another, no more, since it needs the other's numbers; and when those are
   there, every warp of the other has read the state that will be overwritten next. */

template <class T> struct Exchange {
    float *states;
    /* Bytes that a step brings to a block: numbers and, on tensor cores, the powers that they are multiples of. */
    static constexpr int NUMBER_BYTES = T::ROWS * (T::SCATTER ? 1 : T::IN) * T::BLOCKS * T::OWNED * 4;
    static constexpr int SCALE_BYTES = T::TENSOR_CORES && !T::SCATTER ? NUMBER_BYTES / 16 : 0;

    DEVICE Exchange(float *memory) : states(memory) {}

    DEVICE Mbarrier *mbarrier(int step) const { return (Mbarrier *)(states + T::BYTES / 4 - 4) + (step & 1); }

    /* Both states zero, and in the first of them what `start` gives for a row of the batch, a number that goes in and a
       unit. */
    template <class Start> DEVICE void init(const ThreadCoords<T> &coords, Start start) {
        const auto given = [&](int i) { /* what belongs at place i of the two */
            const int r = i % T::STATE / T::ROW_STRIDE, in = i % T::ROW_STRIDE / T::NUMBER_STRIDE;
            const int position = i % T::ROW_STRIDE % T::NUMBER_STRIDE + (T::SCATTER ? coords.rank * T::OWNED : 0);
            const bool there = i < T::STATE && r < T::ROWS && in < T::IN && position < T::H;
            return there && coords.first_row + r < coords.last_row ? start(coords.first_row + r, in, position) : 0.0f;
        };
        if (T::TENSOR_CORES)
            for (int i = coords.thread; i < 2 * T::SCALES; i += T::THREADS) {
                const int n = i % T::SCALES, at = i / T::SCALES * T::STATE + n % T::ROWS * T::ROW_STRIDE + n / T::ROWS * 16;
                float most = 0;
                for (int k = 0; k < 16; k++) most = fmaxf(most, fabsf(given(at + k)));
                const Scale scale = scale_for(most);
                for (int k = 0; k < 16; k++) states[at + k] = split_state(given(at + k) * scale.up);
                states[i / T::SCALES * T::STATE + T::ROWS * T::ROW_STRIDE + n] = scale.down;
            }
        else
            for (int i = coords.thread; i < 2 * T::STATE; i += T::THREADS) states[i] = given(i);
        if (T::ASYNC_STORE && coords.thread == 0) {
            UNROLL for (int step = 0; step < 2; step++) mbarrier_init(mbarrier(step));
            UNROLL for (int step = 0; step < 2; step++) mbarrier_expect(mbarrier(step), NUMBER_BYTES + SCALE_BYTES);
        }
        barrier_arrive<T::BLOCKS>();
        barrier_wait<T::BLOCKS>();
    }

    /* The state that `step` reads: IN numbers of WIDTH positions for each row. */
    DEVICE const float *state(int step) const { return states + (step & 1) * T::STATE; }

    /* Where a block has the powers of a state. */
    DEVICE static const float *scales(const float *state) { return state + T::ROWS * T::ROW_STRIDE; }

    /* Put this thread's items of number `in` where the next step will read them. Lanes that hold the same item share the
       blocks among themselves, and so do those whose items share a scale. */
    DEVICE void publish(const ThreadCoords<T> &coords, int step, int in, const float (&value)[T::ITEMS]) const {
        float *next = states + (step & 1 ^ 1) * T::STATE;
        const int place = in * T::NUMBER_STRIDE + coords.position - (T::SCATTER ? coords.rank * T::OWNED : 0);
        float *at = next + coords.local_row * T::ROW_STRIDE + place;
        if (T::TENSOR_CORES) {
            float most = 0, word[T::ITEMS];
            UNROLL for (int q = 0; q < T::ITEMS; q++) most = fmaxf(most, fabsf(value[q]));
            UNROLL for (int mask = T::COPIES; mask < T::LANES_PER_SCALE; mask *= 2) most = fmaxf(most, shuffle_xor(most, mask));
            const Scale scale = scale_for(most);
            UNROLL for (int q = 0; q < T::ITEMS; q++) word[q] = split_state(value[q] * scale.up);
            if (T::PACK == T::ITEMS) {
                send<T::COPIES>(step, at, coords.copy, word);
            } else {
                const bool second = (coords.lane & T::COPIES) != 0;
                float all[T::PACK];
                UNROLL for (int q = 0; q < T::ITEMS; q++) {
                    const float other = shuffle_xor(word[q], T::COPIES);
                    all[q] = second ? other : word[q], all[T::PACK / 2 + q] = second ? word[q] : other;
                }
                send<2 * T::COPIES>(step, at - (second ? T::ITEMS : 0), coords.lane % (2 * T::COPIES), all);
            }
            const float down[1] = {scale.down};
            send<T::LANES_PER_SCALE>(step, next + T::ROWS * T::ROW_STRIDE + place / 16 * T::ROWS + coords.local_row,
                             coords.lane % T::LANES_PER_SCALE, down);
        } else {
            send<T::COPIES>(step, at, coords.copy, value);
        }
    }

    /* Write to the same place of all blocks: this is one of LANES_PER_SCALE threads that could, and the first where one writes. */
    template <int LANES_PER_SCALE, int N> DEVICE void send(int step, float *at, int which, const float (&value)[N]) const {
        if (T::BLOCKS == 1 || T::SCATTER) {
            if (which == 0) UNROLL for (int q = 0; q < N; q++) at[q] = value[q];
        } else {
            UNROLL for (int first = 0; first < T::BLOCKS; first += LANES_PER_SCALE)
                if (T::BLOCKS % LANES_PER_SCALE == 0 || first + which < T::BLOCKS) {
                    if (T::ASYNC_STORE)
                        async_store(at, mbarrier(step), first + which, value);
                    else
                        store_at(at, first + which, value);
                }
        }
    }

    /* Between these two a thread may do what does not need the next state. */
    DEVICE void arrive() const {
        if (!T::ASYNC_STORE) barrier_arrive<T::BLOCKS>();
    }

    DEVICE void wait(const ThreadCoords<T> &coords, int step) const {
        if (!T::ASYNC_STORE)
            barrier_wait<T::BLOCKS>();
        else if (!T::SCATTER)
            wait_arrivals(coords, step);
    }

    /* All that a step brings is there. */
    DEVICE void wait_arrivals(const ThreadCoords<T> &coords, int step) const {
        mbarrier_wait(mbarrier(step), step >> 1 & 1);
        if (coords.thread == 0) mbarrier_expect(mbarrier(step), NUMBER_BYTES + SCALE_BYTES); /* for the step after next */
    }

    /* No block may end while another still writes to it. */
    DEVICE void finish() const {
        if (T::ASYNC_STORE) {
            barrier_arrive<T::BLOCKS>();
            barrier_wait<T::BLOCKS>();
        }
    }
};
