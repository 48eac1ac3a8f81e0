/* The product of a step on tensor cores, for tiles with TENSOR.

   A group is LANES / 32 whole warps, and its outputs (UNITS units, OUT gates each) are the rows of matrices A of 16 rows
   and 16 inputs; eight rows of the batch at a time are the columns of matrices B. The warps of a group share the inputs
   among themselves, 16 at a time, so that a state is read from shared memory once per group. Their sums meet in shared
   memory and are added up there, always in the same order.

   Weights and states are halves, two for each number (fp16_split.cuh), and three products give what single precision would.
   The hardware adds up 16 inputs alone; all longer sums are made outside of it, where they are rounded. */

template <class T, bool FORWARD> struct Product<T, FORWARD, ON_TENSOR_CORES> {
    static constexpr int WARPS = T::LANES / 32;
    const Fragments<T> fragments;
    float *partial; /* [warp][row][gate][unit] */
    int inputs, powers; /* where in a state this lane reads first */

    DEVICE Product(const Seat<T> &seat, const float *weight, float *memory, float *far)
        : fragments(seat, memory, far, [&](int i, int q) { return read(seat, weight, i, q); }) {
        partial = memory + T::SPILLED;
        inputs = seat.thread % 32 / 4 * T::ROW + seat.lane / 32 * 16 + seat.thread % 4 * 4;
        powers = seat.lane / 32 * T::ROWS + seat.thread % 4 * 2;
    }

    static DEVICE float read(const Seat<T> &seat, const float *weight, int i, int q) {
        const int n = i / T::TALL, output = i % T::TALL * 16 + q % 2 * 8 + seat.thread % 32 / 4;
        const int j = seat.rank * T::OWNED + seat.thread / T::LANES * T::UNITS + output % T::UNITS;
        const int k = (n % T::COLUMNS * WARPS + seat.lane / 32) * 16 + seat.thread % 4 * 4 + q / 2;
        if ((T::BLOCKS * T::OWNED > T::H && j >= T::H) || (T::COLUMNS * T::SPAN > T::H && k >= T::H)) return 0;
        return weight[T::template entry<FORWARD>(output / T::UNITS, j, n / T::COLUMNS, k)];
    }

    /* What this lane's items get, summed over the group. */
    DEVICE void operator()(const Seat<T> &seat, const Exchange<T> &exchange, int step,
                           float (&sum)[T::SUMS][T::OUT]) const {
        auto at = [](int n) { return n / T::COLUMNS * T::WIDTH + n % T::COLUMNS * WARPS * 16; };
        typename Fragments<T>::Sums total;
        const float *state = exchange.last(step);
        fragments(state + inputs, exchange.powers(state) + powers, at, total);
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
                const auto got = *(const Abreast<float, T::ITEMS> *)(all + warp * T::ROWS * T::TRACK + gate * T::UNITS);
                UNROLL for (int q = 0; q < T::ITEMS; q++) sum[q][gate] += got.value[q];
            }
        }
    }
};
