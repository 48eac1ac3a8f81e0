/* The product with exchanged sums, for tiles with SCATTER: a block multiplies its own inputs by all weights that belong
   to them, and sends each block the partial sums of that block's units. In one step a block receives BLOCKS numbers for
   each of its items, however many numbers per unit go into the product: much less than all inputs where those are the
   gates of a backward pass.

   A state is the block's own here, for each row IN numbers of OWNED positions. The warps divide the outputs among
   themselves, so no sums are added inside a block. The inbox for arriving sums exists twice, like a state, since a
   block is at most one step ahead of another. */

template <class T, bool FORWARD> struct Product<T, FORWARD, SCATTERED> {
    const Fragments<T> fragments;
    float *inbox; /* [step % 2][sending block][item] */
    int inputs, scales;

    DEVICE Product(const ThreadCoords<T> &coords, const float *weight, float *memory, float *global_weights)
        : fragments(coords, memory, global_weights, [&](int i, int q) { return read(coords, weight, i, q); }) {
        inbox = memory + T::SPILLED;
        inputs = coords.thread % 32 / 4 * T::ROW_STRIDE + coords.thread % 4 * 4;
        scales = coords.thread % 4 * 2;
    }

    static DEVICE float read(const ThreadCoords<T> &coords, const float *weight, int i, int q) {
        const int input = i / T::M_TILES * 16 + coords.thread % 4 * 4 + q / 2;
        const int j = position(coords, i % T::M_TILES, q % 2), k = coords.rank * T::OWNED + input % T::OWNED;
        if (T::BLOCKS * T::OWNED > T::H && (j >= T::H || k >= T::H)) return 0;
        return weight[T::template entry<FORWARD>(0, j, input / T::OWNED, k)];
    }

    /* The position of this lane's first or second output in matrix m. */
    static DEVICE int position(const ThreadCoords<T> &coords, int m, int second) {
        return (coords.thread / 32 * T::M_TILES + m) * 16 + second * 8 + coords.thread % 32 / 4;
    }

    /* The place of an item's sum. Rows are rotated, so that lanes with neighbouring units read from different banks. */
    static DEVICE int slot(int unit, int row) {
        return unit * T::ROWS + row / 8 * 8 + (row + unit / (32 / T::ROWS) * 2) % 8;
    }

    DEVICE void operator()(const ThreadCoords<T> &coords, const Exchange<T> &exchange, int step,
                           float (&sum)[T::SUMS][T::OUT]) const {
        typename Fragments<T>::Sums total;
        float *arrived = inbox + (step & 1) * T::BLOCKS * T::OWNED * T::ROWS;
        barrier_wait<1>(); /* the state is complete */
        const float *state = exchange.state(step);
        fragments(state + inputs, exchange.scales(state) + scales, [](int n) { return n * 16; }, total);
        UNROLL for (int m = 0; m < T::M_TILES; m++) UNROLL for (int second = 0; second < 2; second++) {
            const int j = position(coords, m, second);
            float *at = arrived + coords.rank * T::OWNED * T::ROWS;
            UNROLL for (int r = 0; r < T::ROWS / 8; r++) {
                const float pair[2] = {total[m][r][second * 2], total[m][r][second * 2 + 1]};
                float *place = at + slot(j % T::OWNED, r * 8 + coords.thread % 4 * 2);
                async_store(place, exchange.mbarrier(step), j / T::OWNED, pair);
            }
        }
        exchange.wait_arrivals(coords, step);
        UNROLL for (int q = 0; q < T::ITEMS; q++) {
            const float *at = arrived + slot(coords.position + q - coords.rank * T::OWNED, coords.local_row);
            sum[q][0] = 0;
            UNROLL for (int from = 0; from < T::BLOCKS; from++) sum[q][0] += at[from * T::OWNED * T::ROWS];
        }
    }
};
