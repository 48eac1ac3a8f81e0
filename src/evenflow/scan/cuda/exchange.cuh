/* How the blocks of a cluster hand each other the new state: step s writes into the state that step s + 1 reads, in its
   own memory and in that of every block beside it.

   Without MAIL one barrier of the cluster (or of the block, where it is alone) ends a step. With MAIL there is none: the
   numbers themselves are counted as they arrive, and a thread reads a state once all of it is there. That is enough.
   A block can be one step ahead of another, no more, since it needs the other's numbers; and when those are
   there, every warp of the other has read the state that will be overwritten next. */

template <class T> struct Exchange {
    float *states;
    /* Bytes that a step brings to a block. */
    static constexpr int LETTERS = T::ROWS * (T::SCATTER ? 1 : T::IN) * T::BLOCKS * T::OWNED * 4;

    DEVICE Exchange(float *memory) : states(memory) {}

    DEVICE Mailbox *box(int step) const { return (Mailbox *)(states + T::BYTES / 4 - 4) + (step & 1); }

    /* Both states zero, and where `start` is given (B rows of H) its rows in the first of them. */
    DEVICE void open(const Seat<T> &seat, const float *start) {
        for (int i = seat.thread; i < 2 * T::STATE; i += T::THREADS) {
            const int r = i / T::ROW, position = i % T::ROW + (T::SCATTER ? seat.rank * T::OWNED : 0);
            float value = 0;
            if (start && i < T::STATE && i % T::ROW < T::REACH && position < T::H && seat.first_row + r < seat.last_row)
                value = start[(size_t)(seat.first_row + r) * T::H + T::unit(position)];
            states[i] = value;
        }
        if (T::MAIL && seat.thread == 0) {
            UNROLL for (int step = 0; step < 2; step++) mail_open(box(step));
            UNROLL for (int step = 0; step < 2; step++) mail_expect(box(step), LETTERS);
        }
        barrier_arrive<T::BLOCKS>();
        barrier_wait<T::BLOCKS>();
    }

    /* The state that `step` reads: IN numbers of WIDTH positions for each row. */
    DEVICE const float *last(int step) const { return states + (step & 1) * T::STATE; }

    /* Put this thread's items of number `in` where the next step will read them. Lanes that hold the same item share the
       blocks among themselves. */
    DEVICE void publish(const Seat<T> &seat, int step, int in, const float (&value)[T::ITEMS]) const {
        float *at = states + (step & 1 ^ 1) * T::STATE + seat.local_row * T::ROW + in * T::REACH + seat.position -
                    (T::SCATTER ? seat.rank * T::OWNED : 0);
        if (T::BLOCKS == 1 || T::SCATTER) {
            if (seat.copy == 0) UNROLL for (int q = 0; q < T::ITEMS; q++) at[q] = value[q];
        } else {
            UNROLL for (int first = 0; first < T::BLOCKS; first += T::COPIES)
                if (T::BLOCKS % T::COPIES == 0 || first + seat.copy < T::BLOCKS) {
                    if (T::MAIL)
                        mail_store(at, box(step), first + seat.copy, value);
                    else
                        store_at(at, first + seat.copy, value);
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
        if (seat.thread == 0) mail_expect(box(step), LETTERS); /* for the step after next */
    }

    /* No block may end while another still writes to it. */
    DEVICE void close() const {
        if (T::MAIL) {
            barrier_arrive<T::BLOCKS>();
            barrier_wait<T::BLOCKS>();
        }
    }
};
