/* What the generated loop of a step calls (step/emit_cuda): functions such as the sigmoid, sums over the units of a
   row, and reads and writes of blocks of any width, where a thread's items may not be aligned. */

DEVICE float sign(float x) { return x > 0 ? 1.0f : x < 0 ? -1.0f : 0.0f; }
DEVICE float sigmoid(float x) { return quotient(1.0f, 1.0f + expf(-x)); }

/* A stage without weights: sums over the units of a row, which all units of the row get. A warp adds up the units that
   its threads have and sends one part of each sum to all blocks; every thread adds up the parts. */
template <class T> struct RowSums {
    static constexpr int NEIGHBOURS = T::LANES / T::ROWS; /* lanes of a group with units of one row */
    static constexpr int SENDERS = NEIGHBOURS * T::GROUPS_PER_WARP;

    /* Send this thread's part of each sum, over its own units. */
    DEVICE void publish(const ThreadCoords<T> &coords, const Exchange<T> &exchange, int step,
                        const float (&part)[T::OUT]) const {
        const int which = coords.lane % NEIGHBOURS + coords.thread % 32 / T::LANES * NEIGHBOURS;
        float *next = (float *)exchange.state(step + 1) + coords.local_row * T::ROW_STRIDE;
        float *at = next + coords.rank * T::PARTS_OF_BLOCK + coords.thread / (T::LANES < 32 ? 32 : T::LANES);
        UNROLL for (int n = 0; n < T::OUT; n++) {
            float of_warp[1] = {part[n]};
            UNROLL for (int mask = T::COPIES; mask < NEIGHBOURS; mask *= 2) of_warp[0] += shuffle_xor(of_warp[0], mask);
            UNROLL for (int mask = T::LANES; mask < 32; mask *= 2) of_warp[0] += shuffle_xor(of_warp[0], mask);
            exchange.template send<SENDERS>(step, at + n * T::PARTS, which, of_warp);
        }
    }

    DEVICE void operator()(const ThreadCoords<T> &coords, const Exchange<T> &exchange, int step,
                           float (&sum)[T::SUMS][T::OUT]) const {
        const float *row = exchange.state(step) + coords.local_row * T::ROW_STRIDE;
        UNROLL for (int n = 0; n < T::OUT; n++) {
            float total = 0;
            for (int k = coords.lane % NEIGHBOURS * 4; k < T::PARTS; k += NEIGHBOURS * 4) {
                const float4 parts = *(const float4 *)(row + n * T::PARTS + k);
                total += (parts.x + parts.y) + (parts.z + parts.w);
            }
            UNROLL for (int mask = 1; mask < NEIGHBOURS; mask *= 2) total += shuffle_xor(total, mask);
            UNROLL for (int q = 0; q < T::ITEMS; q++) sum[q][n] = total;
        }
    }
};

#define SHORT_SUM 8 /* steps that are added up in single precision before the sum goes on in double precision */

/* Start the copies of this thread's items of a stream. Its block of a row has WIDTH units, or one number for all. */
template <class T, int WIDTH, bool ALIGNED>
DEVICE void fetch_block(const ThreadCoords<T> &coords, const Prefetch<T> &prefetch, int step, int stream,
                        const float *block) {
    UNROLL for (int q = 0; q < T::ITEMS; q++)
        if (coords.unit(q) < T::H) {
            if (ALIGNED)
                prefetch.start(step, stream, q, block + coords.unit(q));
            else if (WIDTH == 1 ? q == 0 : coords.unit(q) < WIDTH)
                copy_start(prefetch.at(step, stream, q), block + (WIDTH == 1 ? 0 : coords.unit(q)));
        }
}

/* Read a stream with one number for all units, which was copied for the first item. */
template <class T>
DEVICE void read_number(const Prefetch<T> &prefetch, int step, int stream, float (&to)[T::ITEMS]) {
    const float number = *prefetch.at(step, stream, 0);
    UNROLL for (int q = 0; q < T::ITEMS; q++) to[q] = number;
}

/* The same for marks of one byte: a byte is copied with the word it lies in. */
template <class T, int WIDTH>
DEVICE void fetch_marks(const ThreadCoords<T> &coords, const Prefetch<T> &prefetch, int step, int stream,
                        const signed char *block) {
    UNROLL for (int q = 0; q < T::ITEMS; q++)
        if (WIDTH == 1 ? coords.unit(q) < T::H : coords.unit(q) < WIDTH)
            copy_start(prefetch.at(step, stream, q), word_of(block + (WIDTH == 1 ? 0 : coords.unit(q))));
}

template <class T, int WIDTH>
DEVICE void read_marks(const ThreadCoords<T> &coords, const Prefetch<T> &prefetch, int step, int stream,
                       const signed char *block, float (&to)[T::ITEMS]) {
    UNROLL for (int q = 0; q < T::ITEMS; q++)
        to[q] = byte_of(*prefetch.at(step, stream, q), (unsigned)(size_t)block + (WIDTH == 1 ? 0 : coords.unit(q)));
}

/* Write this thread's items into their block of a row. */
template <class T, int WIDTH, bool ALIGNED, class V>
DEVICE void write_block(const ThreadCoords<T> &coords, V *block, const V (&value)[T::ITEMS]) {
    if (ALIGNED)
        write(coords, block, value);
    else
        UNROLL for (int q = 0; q < T::ITEMS; q++)
            if (coords.unit(q) < WIDTH) block[coords.unit(q)] = value[q];
}
