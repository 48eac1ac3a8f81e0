/* The other way to share a product among blocks, for tiles with SCATTER: a block multiplies what it has by all that
   depends on it, and sends each block the sums that are that block's. A step brings a block BLOCKS numbers for each of its
   items, however many numbers go in per unit: a fraction of the states where those are the gates of a backward pass.

   A state is the block's own here, IN numbers of OWNED positions for each row. The warps share the outputs among
   themselves, so no sums meet inside a block. What arrives lies twice, like a state: a block is at most one step ahead. */

template <class T, bool FORWARD> struct Product<T, FORWARD, SCATTERED> {
    const Fragments<T> fragments;
    float *inbox; /* [of the two][from block][item] */
    int inputs, powers;

    DEVICE Product(const Seat<T> &seat, const float *weight, float *memory, float *far)
        : fragments(seat, memory, far, [&](int i, int q) { return read(seat, weight, i, q); }) {
        inbox = memory + T::SPILLED;
        inputs = seat.thread % 32 / 4 * T::ROW + seat.thread % 4 * 4;
        powers = seat.thread % 4 * 2;
    }

    static DEVICE float read(const Seat<T> &seat, const float *weight, int i, int q) {
        const int input = i / T::TALL * 16 + seat.thread % 4 * 4 + q / 2;
        const int j = position(seat, i % T::TALL, q % 2), k = seat.rank * T::OWNED + input % T::OWNED;
        if (T::BLOCKS * T::OWNED > T::H && (j >= T::H || k >= T::H)) return 0;
        return weight[T::template entry<FORWARD>(0, j, input / T::OWNED, k)];
    }

    /* Of this lane's outputs in matrix m, first or second. */
    static DEVICE int position(const Seat<T> &seat, int m, int second) {
        return (seat.thread / 32 * T::TALL + m) * 16 + second * 8 + seat.thread % 32 / 4;
    }

    /* Where an item's sum lies. Rows are turned, so that lanes with neighbouring units read from different banks. */
    static DEVICE int slot(int unit, int row) {
        return unit * T::ROWS + row / 8 * 8 + (row + unit / (32 / T::ROWS) * 2) % 8;
    }

    DEVICE void operator()(const Seat<T> &seat, const Exchange<T> &exchange, int step,
                           float (&sum)[T::SUMS][T::OUT]) const {
        typename Fragments<T>::Sums total;
        float *arrived = inbox + (step & 1) * T::BLOCKS * T::OWNED * T::ROWS;
        barrier_wait<1>(); /* the state is complete */
        const float *state = exchange.last(step);
        fragments(state + inputs, exchange.powers(state) + powers, [](int n) { return n * 16; }, total);
        UNROLL for (int m = 0; m < T::TALL; m++) UNROLL for (int second = 0; second < 2; second++) {
            const int j = position(seat, m, second);
            float *at = arrived + seat.rank * T::OWNED * T::ROWS;
            UNROLL for (int r = 0; r < T::ROWS / 8; r++) {
                const float pair[2] = {total[m][r][second * 2], total[m][r][second * 2 + 1]};
                mail_store(at + slot(j % T::OWNED, r * 8 + seat.thread % 4 * 2), exchange.box(step), j / T::OWNED, pair);
            }
        }
        exchange.await(seat, step);
        UNROLL for (int q = 0; q < T::ITEMS; q++) {
            const float *at = arrived + slot(seat.position + q - seat.rank * T::OWNED, seat.local_row);
            sum[q][0] = 0;
            UNROLL for (int from = 0; from < T::BLOCKS; from++) sum[q][0] += at[from * T::OWNED * T::ROWS];
        }
    }
};
