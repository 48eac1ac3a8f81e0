/* The exchange: how the blocks of a cluster send each other the inputs of the next product.

   Every block computes some units of a step, and the product of the next step needs all units. So each block keeps two
   copies of the whole input, here called a state, in shared memory: step s reads one and writes the other, in its own
   memory and in that of every other block of the cluster.

   Without ASYNC_STORE a step ends with one barrier of the cluster, or of the block where it is alone. With ASYNC_STORE
   there is no barrier: stores are asynchronous, an mbarrier in the receiver's memory counts their bytes, and a thread
   reads a state once all of it has arrived. This is enough: a block can be at most one step ahead of another, since it
   needs the other's numbers, and when those have arrived, every warp of the other block has read the state that will be
   overwritten next. */

template <class T> struct Exchange {
    float *states;
    /* Bytes that arrive at a block in one step: numbers and, on tensor cores, their scales (see fp16_split.cuh). */
    static constexpr int NUMBER_BYTES =
        T::ROWS * T::BLOCKS * 4 * (T::IN == 0 ? T::OUT * T::PARTS_OF_BLOCK : (T::SCATTER ? 1 : T::IN) * T::OWNED);
    static constexpr int SCALE_BYTES = T::TENSOR_CORES && T::IN > 0 && !T::SCATTER ? NUMBER_BYTES / 16 : 0;

    DEVICE Exchange(float *memory) : states(memory) {}

    DEVICE Mbarrier *mbarrier(int step) const { return (Mbarrier *)(states + T::BYTES / 4 - 4) + (step & 1); }

    /* Fill the first state with `start(row of the batch, input, unit)`, and the second with zeros. */
    template <class Start> DEVICE void init(const ThreadCoords<T> &coords, Start start) {
        const auto initial = [&](int i) { /* the number at place i of both states */
            const int r = i % T::STATE / T::ROW_STRIDE, in = i % T::ROW_STRIDE / T::NUMBER_STRIDE;
            const int position = i % T::ROW_STRIDE % T::NUMBER_STRIDE + (T::SCATTER ? coords.rank * T::OWNED : 0);
            const bool exists = i < T::STATE && r < T::ROWS && in < T::IN && position < T::H;
            return exists && coords.first_row + r < coords.last_row ? start(coords.first_row + r, in, position) : 0.0f;
        };
        if (T::SCALES > 0)
            for (int i = coords.thread; i < 2 * T::SCALES; i += T::THREADS) {
                const int n = i % T::SCALES;
                const int at = i / T::SCALES * T::STATE + n % T::ROWS * T::ROW_STRIDE + n / T::ROWS * 16;
                float largest = 0;
                for (int k = 0; k < 16; k++) largest = fmaxf(largest, fabsf(initial(at + k)));
                const Scale scale = scale_for(largest);
                for (int k = 0; k < 16; k++) states[at + k] = split_state(initial(at + k) * scale.up);
                states[i / T::SCALES * T::STATE + T::ROWS * T::ROW_STRIDE + n] = scale.down;
            }
        else
            for (int i = coords.thread; i < 2 * T::STATE; i += T::THREADS) states[i] = initial(i);
        if (T::ASYNC_STORE && coords.thread == 0) {
            UNROLL for (int step = 0; step < 2; step++) mbarrier_init(mbarrier(step));
            UNROLL for (int step = 0; step < 2; step++) mbarrier_expect(mbarrier(step), NUMBER_BYTES + SCALE_BYTES);
        }
        barrier_arrive<T::BLOCKS>();
        barrier_wait<T::BLOCKS>();
    }

    /* The state that `step` reads, for each row IN numbers of WIDTH positions. */
    DEVICE const float *state(int step) const { return states + (step & 1) * T::STATE; }

    /* The scales of a state. */
    DEVICE static const float *scales(const float *state) { return state + T::ROWS * T::ROW_STRIDE; }

    /* Write this thread's items of input number `in` into the next state of all blocks. Lanes that hold the same item
       divide the blocks among themselves, and so do lanes whose items share a scale. */
    DEVICE void publish(const ThreadCoords<T> &coords, int step, int in, const float (&value)[T::ITEMS]) const {
        float *next = states + (step & 1 ^ 1) * T::STATE;
        const int place = in * T::NUMBER_STRIDE + coords.position - (T::SCATTER ? coords.rank * T::OWNED : 0);
        float *at = next + coords.local_row * T::ROW_STRIDE + place;
        if (T::TENSOR_CORES) {
            float largest = 0, word[T::ITEMS];
            UNROLL for (int q = 0; q < T::ITEMS; q++) largest = fmaxf(largest, fabsf(value[q]));
            UNROLL for (int mask = T::COPIES; mask < T::LANES_PER_SCALE; mask *= 2)
                largest = fmaxf(largest, shuffle_xor(largest, mask));
            const Scale scale = scale_for(largest);
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
            float *scale_at = next + T::ROWS * T::ROW_STRIDE + place / 16 * T::ROWS + coords.local_row;
            send<T::LANES_PER_SCALE>(step, scale_at, coords.lane % T::LANES_PER_SCALE, down);
        } else {
            send<T::COPIES>(step, at, coords.copy, value);
        }
    }

    /* Write to the same place of all blocks. SENDERS threads have these numbers and divide the blocks among themselves;
       `which` counts them. Where there is only one block, the first thread writes. */
    template <int SENDERS, int N> DEVICE void send(int step, float *at, int which, const float (&value)[N]) const {
        if (T::BLOCKS == 1 || T::SCATTER) {
            if (which == 0) UNROLL for (int q = 0; q < N; q++) at[q] = value[q];
        } else {
            UNROLL for (int first = 0; first < T::BLOCKS; first += SENDERS)
                if (T::BLOCKS % SENDERS == 0 || first + which < T::BLOCKS) {
                    if (T::ASYNC_STORE)
                        async_store(at, mbarrier(step), first + which, value);
                    else
                        store_at(at, first + which, value);
                }
        }
    }

    /* Between `arrive` and `wait` a thread may do work that does not need the next state. */
    DEVICE void arrive() const {
        if (!T::ASYNC_STORE) barrier_arrive<T::BLOCKS>();
    }

    DEVICE void wait(const ThreadCoords<T> &coords, int step) const {
        if (!T::ASYNC_STORE)
            barrier_wait<T::BLOCKS>();
        else if (!T::SCATTER)
            wait_arrivals(coords, step);
    }

    /* Wait until all bytes of a step have arrived. */
    DEVICE void wait_arrivals(const ThreadCoords<T> &coords, int step) const {
        mbarrier_wait(mbarrier(step), step >> 1 & 1);
        if (coords.thread == 0) mbarrier_expect(mbarrier(step), NUMBER_BYTES + SCALE_BYTES); /* of the step after next */
    }

    /* A block must not end while another block still writes to it. */
    DEVICE void finish() const {
        if (T::ASYNC_STORE) {
            barrier_arrive<T::BLOCKS>();
            barrier_wait<T::BLOCKS>();
        }
    }
};
