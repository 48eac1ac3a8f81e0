/* What the generated loop of a step calls (step/emit_cuda): functions such as the sigmoid, the sum over the units of a
   row, and reads and writes of blocks of any width, where a thread's items may not be aligned. */

DEVICE float sign(float x) { return x > 0 ? 1.0f : x < 0 ? -1.0f : 0.0f; }
DEVICE float sigmoid(float x) { return quotient(1.0f, 1.0f + expf(-x)); }

/* A stage without weights: the sum over the units of a row, which all units of the row get. The lanes of a group, or of
   a warp on tensor cores, divide the units among themselves. */
template <class T> struct RowSum {
    static constexpr int SHARE = T::TENSOR_CORES ? 32 : T::LANES;

    DEVICE void operator()(const ThreadCoords<T> &coords, const Exchange<T> &exchange, int step,
                           float (&sum)[T::SUMS][T::OUT]) const {
        const float *state = exchange.state(step);
        float mine = 0;
        for (int r = 0; r < T::ROWS; r++) {
            float total = 0;
            for (int k = coords.thread % SHARE; k < T::WIDTH; k += SHARE) total += number(exchange, state, r, k);
            UNROLL for (int mask = SHARE / 2; mask >= 1; mask /= 2) total += shuffle_xor(total, mask);
            if (r == coords.local_row) mine = total;
        }
        UNROLL for (int q = 0; q < T::ITEMS; q++) sum[q][0] = mine;
    }

    static DEVICE float number(const Exchange<T> &exchange, const float *state, int row, int k) {
        const float word = state[row * T::ROW_STRIDE + k];
        if (!T::TENSOR_CORES) return word;
        return (half_of(word, 0) + half_of(word, 1)) * exchange.scales(state)[k / 16 * T::ROWS + row];
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
