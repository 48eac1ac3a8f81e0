/* The product of a step on tensor cores, for tiles with TENSOR_CORES.

   A group is LANES / 32 whole warps. Its outputs, OUT numbers of UNITS units, are the rows of matrices A of 16 rows and
   16 inputs; eight rows of the batch are the columns of a matrix B. The warps of a group divide the inputs among
   themselves, 16 at a time, so that a group reads a state from shared memory once. Their sums are added up in shared
   memory, always in the same order.

   Weights and states are split into two halves each (fp16_split.cuh), and three products give single precision. A
   tensor core adds up 16 inputs; longer sums are added outside of it, where they are rounded. */

template <class T, bool FORWARD> struct Product<T, FORWARD, ON_TENSOR_CORES> {
    static constexpr int WARPS = T::LANES / 32;
    const Fragments<T> fragments;
    float *partial; /* [warp][row][gate][unit] */
    int inputs, scales; /* the first places of a state that this lane reads */

    DEVICE Product(const ThreadCoords<T> &coords, const float *weight, float *memory, float *global_weights)
        : fragments(coords, memory, global_weights, [&](int i, int q) { return read(coords, weight, i, q); }) {
        partial = memory + T::SPILLED;
        inputs = coords.thread % 32 / 4 * T::ROW_STRIDE + coords.lane / 32 * 16 + coords.thread % 4 * 4;
        scales = coords.lane / 32 * T::ROWS + coords.thread % 4 * 2;
    }

    static DEVICE float read(const ThreadCoords<T> &coords, const float *weight, int i, int q) {
        const int n = i / T::M_TILES, output = i % T::M_TILES * 16 + q % 2 * 8 + coords.thread % 32 / 4;
        const int j = coords.rank * T::OWNED + coords.thread / T::LANES * T::UNITS + output % T::UNITS;
        const int k = (n % T::COLUMNS * WARPS + coords.lane / 32) * 16 + coords.thread % 4 * 4 + q / 2;
        if (T::BLOCKS * T::OWNED > T::H && j >= T::H) return 0;
        if (T::COLUMNS * T::INPUTS_PER_READ > T::H && k >= T::H) return 0;
        return weight[T::template entry<FORWARD>(output / T::UNITS, j, n / T::COLUMNS, k)];
    }

    /* The sums of this lane's items over the whole group. */
    DEVICE void operator()(const ThreadCoords<T> &coords, const Exchange<T> &exchange, int step,
                           float (&sum)[T::SUMS][T::OUT]) const {
        auto at = [](int n) { return n / T::COLUMNS * T::WIDTH + n % T::COLUMNS * WARPS * 16; };
        typename Fragments<T>::Sums total;
        const float *state = exchange.state(step);
        fragments(state + inputs, exchange.scales(state) + scales, at, total);
        add_warps(coords, total, sum);
    }

    /* Add up the sums of the group's warps, each lane for its items. The exchange of states comes between two calls, so
       no warp overwrites `partial` before all have read it. */
    DEVICE void add_warps(const ThreadCoords<T> &coords, const typename Fragments<T>::Sums &total,
                     float (&sum)[T::SUMS][T::OUT]) const {
        const int high = coords.thread % 32 / 4, low = coords.thread % 4, item = coords.lane / T::COPIES * T::ITEMS;
        float *mine = partial + coords.thread / 32 * T::ROWS * T::SUM_STRIDE;
        UNROLL for (int m = 0; m < T::M_TILES; m++)
            UNROLL for (int r = 0; r < T::ROWS / 8; r++) UNROLL for (int q = 0; q < 4; q++)
                mine[(r * 8 + low * 2 + q % 2) * T::SUM_STRIDE + m * 16 + q / 2 * 8 + high] = total[m][r][q];
        named_barrier_wait<T::LANES>(coords.thread / T::LANES);
        const float *all =
            partial + (coords.thread / T::LANES * WARPS * T::ROWS + item / T::UNITS) * T::SUM_STRIDE + item % T::UNITS;
        UNROLL for (int gate = 0; gate < T::OUT; gate++) {
            UNROLL for (int q = 0; q < T::ITEMS; q++) sum[q][gate] = 0;
            UNROLL for (int warp = 0; warp < WARPS; warp++) {
                const float *at = all + warp * T::ROWS * T::SUM_STRIDE + gate * T::UNITS;
                const auto sums = *(const Vector<float, T::ITEMS> *)at;
                UNROLL for (int q = 0; q < T::ITEMS; q++) sum[q][gate] += sums.value[q];
            }
        }
    }
};
