/* How the blocks of a cluster hand each other the new state: step s writes into the state that step s + 1 reads, in its
   own memory and in that of every block beside it.

   Without MAIL one barrier of the cluster (or of the block, where it is alone) ends a step. With MAIL there is none: the
   numbers themselves are counted as they arrive, and a thread reads a state once all of it is there. That is enough.
   A block can be one step ahead of another, no more, since it needs the other's numbers; and when those are
   there, every warp of the other has read the state that will be overwritten next. */

template <class T> struct Exchange {
    float *states;
    /* Bytes that a step brings to a block: numbers and, on tensor cores, the powers that they are multiples of. */
    static constexpr int LETTERS = T::ROWS * (T::SCATTER ? 1 : T::IN) * T::BLOCKS * T::OWNED * 4;
    static constexpr int POWERS = T::TENSOR && !T::SCATTER ? LETTERS / 16 : 0;

    DEVICE Exchange(float *memory) : states(memory) {}

    DEVICE Mailbox *box(int step) const { return (Mailbox *)(states + T::BYTES / 4 - 4) + (step & 1); }

    /* Both states zero, and in the first of them what `start` gives for a row of the batch, a number that goes in and a
       unit. */
    template <class Start> DEVICE void open(const Seat<T> &seat, Start start) {
        const auto given = [&](int i) { /* what belongs at place i of the two */
            const int r = i % T::STATE / T::ROW, in = i % T::ROW / T::REACH;
            const int position = i % T::ROW % T::REACH + (T::SCATTER ? seat.rank * T::OWNED : 0);
            const bool there = i < T::STATE && r < T::ROWS && in < T::IN && position < T::H;
            return there && seat.first_row + r < seat.last_row ? start(seat.first_row + r, in, position) : 0.0f;
        };
        if (T::TENSOR)
            for (int i = seat.thread; i < 2 * T::POWERS; i += T::THREADS) {
                const int n = i % T::POWERS, at = i / T::POWERS * T::STATE + n % T::ROWS * T::ROW + n / T::ROWS * 16;
                float most = 0;
                for (int k = 0; k < 16; k++) most = fmaxf(most, fabsf(given(at + k)));
                const Power power = power_for(most);
                for (int k = 0; k < 16; k++) states[at + k] = state_in_halves(given(at + k) * power.up);
                states[i / T::POWERS * T::STATE + T::ROWS * T::ROW + n] = power.down;
            }
        else
            for (int i = seat.thread; i < 2 * T::STATE; i += T::THREADS) states[i] = given(i);
        if (T::MAIL && seat.thread == 0) {
            UNROLL for (int step = 0; step < 2; step++) mail_open(box(step));
            UNROLL for (int step = 0; step < 2; step++) mail_expect(box(step), LETTERS + POWERS);
        }
        barrier_arrive<T::BLOCKS>();
        barrier_wait<T::BLOCKS>();
    }

    /* The state that `step` reads: IN numbers of WIDTH positions for each row. */
    DEVICE const float *last(int step) const { return states + (step & 1) * T::STATE; }

    /* Where a block has the powers of a state. */
    DEVICE static const float *powers(const float *state) { return state + T::ROWS * T::ROW; }

    /* Put this thread's items of number `in` where the next step will read them. Lanes that hold the same item share the
       blocks among themselves, and so do those whose items share a power. */
    DEVICE void publish(const Seat<T> &seat, int step, int in, const float (&value)[T::ITEMS]) const {
        float *next = states + (step & 1 ^ 1) * T::STATE;
        const int place = in * T::REACH + seat.position - (T::SCATTER ? seat.rank * T::OWNED : 0);
        float *at = next + seat.local_row * T::ROW + place;
        if (T::TENSOR) {
            float most = 0, word[T::ITEMS];
            UNROLL for (int q = 0; q < T::ITEMS; q++) most = fmaxf(most, fabsf(value[q]));
            UNROLL for (int mask = T::COPIES; mask < T::SHARING; mask *= 2) most = fmaxf(most, shuffle_xor(most, mask));
            const Power power = power_for(most);
            UNROLL for (int q = 0; q < T::ITEMS; q++) word[q] = state_in_halves(value[q] * power.up);
            if (T::PACK == T::ITEMS) {
                send<T::COPIES>(step, at, seat.copy, word);
            } else {
                const bool second = (seat.lane & T::COPIES) != 0;
                float all[T::PACK];
                UNROLL for (int q = 0; q < T::ITEMS; q++) {
                    const float other = shuffle_xor(word[q], T::COPIES);
                    all[q] = second ? other : word[q], all[T::PACK / 2 + q] = second ? word[q] : other;
                }
                send<2 * T::COPIES>(step, at - (second ? T::ITEMS : 0), seat.lane % (2 * T::COPIES), all);
            }
            const float down[1] = {power.down};
            send<T::SHARING>(step, next + T::ROWS * T::ROW + place / 16 * T::ROWS + seat.local_row,
                             seat.lane % T::SHARING, down);
        } else {
            send<T::COPIES>(step, at, seat.copy, value);
        }
    }

    /* Write to the same place of all blocks: this is one of SHARING threads that could, and the first where one writes. */
    template <int SHARING, int N> DEVICE void send(int step, float *at, int which, const float (&value)[N]) const {
        if (T::BLOCKS == 1 || T::SCATTER) {
            if (which == 0) UNROLL for (int q = 0; q < N; q++) at[q] = value[q];
        } else {
            UNROLL for (int first = 0; first < T::BLOCKS; first += SHARING)
                if (T::BLOCKS % SHARING == 0 || first + which < T::BLOCKS) {
                    if (T::MAIL)
                        mail_store(at, box(step), first + which, value);
                    else
                        store_at(at, first + which, value);
                }
        }
    }

    /* Between these two a thread may do what does not need the next state. */
    DEVICE void arrive() const {
        if (!T::MAIL) barrier_arrive<T::BLOCKS>();
    }

    DEVICE void wait(const Seat<T> &seat, int step) const {
        if (!T::MAIL)
            barrier_wait<T::BLOCKS>();
        else if (!T::SCATTER)
            await(seat, step);
    }

    /* All that a step brings is there. */
    DEVICE void await(const Seat<T> &seat, int step) const {
        mail_wait(box(step), step >> 1 & 1);
        if (seat.thread == 0) mail_expect(box(step), LETTERS + POWERS); /* for the step after next */
    }

    /* No block may end while another still writes to it. */
    DEVICE void close() const {
        if (T::MAIL) {
            barrier_arrive<T::BLOCKS>();
            barrier_wait<T::BLOCKS>();
        }
    }
};
