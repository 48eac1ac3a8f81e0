/* A tile: how the threads of a cluster of blocks share one product of a step; `tile.py` computes the same numbers.

   A cluster of BLOCKS blocks runs ROWS rows of the batch through all steps and keeps the recurrent matrix to itself. A
   *group* of LANES neighbouring threads computes UNITS units: each thread holds its share of their weights, every
   LANES-th float4 of the inputs. The inputs of all units, the state, lie in shared memory twice, so that one exchange
   ends a step (exchange.cuh).

   OUT numbers per unit come out of the product (the gates of a forward pass), IN numbers per unit go into it (those of
   a backward pass). Of a thread's float4 columns of weights HELD are in registers and the others in shared memory.
   STREAMS numbers per unit and step are copied from device memory AHEAD steps before their use. ASYNC_STORE is a way to
   exchange states, which uses the last 16 bytes of the tile's memory. A step with several products has a tile for each,
   which differ only in OUT, IN, HELD and STREAMS and lie one after another in shared memory. A tile whose IN is 0 is
   that of OUT sums over the units of a row (RowSums in functions.cuh), which have no weights.

   A *position* is a unit, or from H on padding with zero weights. An *item* is one unit of one row. A group has ROWS *
   UNITS items; after the sums over its lanes each lane is left with ITEMS of them, or COPIES lanes with the same one.

   With TENSOR_CORES the product runs on tensor cores (tensor_core_product.cuh): a group is whole warps, which read 16
   inputs at a time each, and HELD counts fragments of four weights. With SCATTER too, blocks send each other sums
   instead of states (scatter_product.cuh). With PREFETCH_SLOTS the weights that are not held are too many for shared
   memory: they stay in device memory, in practice in its L2 cache, and are copied anew at every step through a ring of
   so many slots of one fragment for each thread (fragments.cuh). */

HOST_DEVICE constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }

template <int H_, int BLOCKS_, int LANES_, int UNITS_, int ROWS_, int HELD_, int OUT_, int IN_, int STREAMS_,
          bool ASYNC_STORE_, bool TENSOR_CORES_, bool SCATTER_, int PREFETCH_SLOTS_, int AHEAD_>
struct Tile {
    static constexpr int H = H_, BLOCKS = BLOCKS_, LANES = LANES_, UNITS = UNITS_, ROWS = ROWS_, OUT = OUT_, IN = IN_;
    static constexpr int STREAMS = STREAMS_, PREFETCH_SLOTS = PREFETCH_SLOTS_, AHEAD = AHEAD_;
    static constexpr bool ASYNC_STORE = ASYNC_STORE_ && BLOCKS > 1, TENSOR_CORES = TENSOR_CORES_, SCATTER = SCATTER_;
    static constexpr int GROUPS_PER_WARP = LANES < 32 ? 32 / LANES : 1;
    static constexpr int GROUPS = /* of a block, in whole warps */
        ceil_div(ceil_div(ceil_div(H, BLOCKS), UNITS), GROUPS_PER_WARP) * GROUPS_PER_WARP;
    static constexpr int OWNED = GROUPS * UNITS; /* positions of a block */
    static constexpr int THREADS = GROUPS * LANES;
    static constexpr int INPUTS_PER_READ = TENSOR_CORES ? LANES / 2 : 4 * LANES; /* by a group */
    static constexpr int COLUMNS = ceil_div(H, INPUTS_PER_READ); /* such reads, for each number per unit that goes in */
    static constexpr int READ = COLUMNS * INPUTS_PER_READ, WIDTH = READ > BLOCKS * OWNED ? READ : BLOCKS * OWNED;
    /* A row of a state. On tensor cores eight rows are read together; padding lets two rows cover all memory banks. */
    /* Of sums: the parts of each, one for every warp that has units of a row, and their number in fours. */
    static constexpr int PARTS_OF_BLOCK = LANES < 32 ? THREADS / 32 : GROUPS;
    static constexpr int PARTS = ceil_div(BLOCKS * PARTS_OF_BLOCK, 4) * 4;
    static constexpr int NUMBER_STRIDE = /* from one number of a row to the next */
        IN == 0 ? PARTS : SCATTER ? OWNED : WIDTH;
    static constexpr int ROW_STRIDE = IN == 0        ? OUT * PARTS
                                      : TENSOR_CORES ? ceil_div(IN * NUMBER_STRIDE + 16, 32) * 32 - 16
                                                     : IN * NUMBER_STRIDE;
    static constexpr int VALUES = ROWS * UNITS;
    static constexpr int ITEMS = VALUES > LANES ? VALUES / LANES : 1;
    static constexpr int COPIES = VALUES < LANES ? LANES / VALUES : 1;
    static constexpr int SUMS = TENSOR_CORES ? ITEMS : VALUES; /* sums of a thread, for each number that comes out */
    static constexpr int M_TILES = /* matrices A of a warp, below each other */
        SCATTER ? BLOCKS * OWNED / (THREADS / 2) : UNITS * OUT / 16;
    static constexpr int PIECES = /* of weights: fragments on tensor cores, else columns */
        SCATTER ? IN * OWNED / 8 * M_TILES : TENSOR_CORES ? IN * COLUMNS * 2 * M_TILES : IN * COLUMNS;
    static constexpr int HELD = HELD_ < PIECES ? HELD_ : PIECES;
    /* On tensor cores numbers are split into halves, and 16 neighbours share a scale (fp16_split.cuh). */
    static constexpr int LANES_PER_SCALE = 16 / ITEMS * COPIES; /* lanes that hold 16 neighbours */
    static constexpr int SCALES = /* [16 neighbours][row], after the rows */
        TENSOR_CORES ? ROWS * IN * NUMBER_STRIDE / 16 : 0;
    static constexpr int STATE = ROWS * ROW_STRIDE + SCALES; /* numbers of one of the two states */
    /* Numbers of one store to another block. Where a thread has two of a row and many blocks to send them to, it and
       its neighbour exchange theirs and divide the blocks between them; where each has one, the exchange takes too
       long. */
    static constexpr int PACK = TENSOR_CORES && ITEMS == 2 && BLOCKS > 8 && !SCATTER ? 4 : ITEMS;
    static constexpr int SLOT = STREAMS * ITEMS * THREADS;
    /* Numbers that a thread moves to and from device memory at once: its items, where they are neighbours there. */
    static constexpr int VECTOR = H % ITEMS == 0 ? ITEMS : 1;
    static constexpr int STREAMED = PREFETCH_SLOTS ? PIECES - HELD : 0; /* fragments copied through the ring */
    static constexpr int SPILLED =
        (PREFETCH_SLOTS ? PREFETCH_SLOTS : PIECES - HELD) * 4 * (TENSOR_CORES ? 1 : UNITS * OUT) * THREADS;
    static constexpr int SUM_STRIDE = UNITS * OUT + 4; /* of a warp's sums of one row; 4 for different banks */
    static constexpr int PARTIAL = /* partial sums */
        IN == 0        ? 0
        : SCATTER      ? 2 * BLOCKS * OWNED * ROWS
        : TENSOR_CORES ? THREADS / 32 * ROWS * SUM_STRIDE
                       : 0;
    static constexpr int BYTES = 4 * (2 * STATE + (AHEAD + 1) * SLOT + SPILLED + PARTIAL + 4);
    static_assert(ITEMS <= UNITS && ITEMS <= 4 && ITEMS != 3, "no such tile");
    static_assert(TENSOR_CORES || (LANES <= 32 && UNITS <= LANES), "no such tile");
    static_assert(!TENSOR_CORES || (LANES % 32 == 0 && ROWS % 8 == 0), "whole warps, and eight rows side by side");
    static_assert(!TENSOR_CORES || (VALUES % LANES == 0 || LANES % VALUES == 0), "items would not be divided evenly");
    static_assert(!TENSOR_CORES || (COPIES <= BLOCKS && (LANES == 32 || GROUPS < 16)), "no such tile on tensor cores");
    static_assert(!TENSOR_CORES || (UNITS % 16 == 0 && LANES_PER_SCALE <= 32), "a scale belongs to one warp");
    static_assert(!SCATTER || (TENSOR_CORES && ASYNC_STORE && OUT == 1 && OWNED % 16 == 0), "no such tile with sums");
    static_assert(!SCATTER || BLOCKS * OWNED % (THREADS / 2) == 0, "outputs would not be divided evenly");
    static_assert(PREFETCH_SLOTS == 0 || (TENSOR_CORES && PREFETCH_SLOTS > 2 && STREAMED >= PREFETCH_SLOTS),
                  "no such prefetch ring");
    static_assert((AHEAD & (AHEAD + 1)) == 0, "slots are chosen by a mask");
    static_assert(IN > 0 || LANES / ROWS <= 32, "the lanes that have units of a row are in one warp");
    static_assert(WIDTH % 4 == 0 && OWNED % ITEMS == 0, "vectors would not be aligned");

    /* The place in W of the weight from number `in` of unit k to number `out` of unit j. */
    template <bool FORWARD> static DEVICE size_t entry(int out, int j, int in, int k) {
        return FORWARD ? (size_t)(out * H + j) * (IN * H) + in * H + k : (size_t)(in * H + k) * (OUT * H) + out * H + j;
    }
};

/* The coordinates of a thread: its block and lane, and its items, ITEMS positions of one row from `position` on. */
template <class T> struct ThreadCoords {
    int thread, lane, rank, first_row, row, last_row, local_row, position, copy, steps, length;
    size_t model;

    /* In a job for the rows from `begin` to `end` of the batch. */
    template <class Job> DEVICE explicit ThreadCoords(const Job &job) {
        thread = thread_index();
        lane = thread % T::LANES;
        rank = block_index() % T::BLOCKS;
        model = model_index();
        first_row = (int)job.begin + block_index() / T::BLOCKS * T::ROWS;
        last_row = (int)job.end;
        const int item = lane / T::COPIES * T::ITEMS;
        copy = lane % T::COPIES;
        local_row = item / T::UNITS;
        row = first_row + local_row;
        position = rank * T::OWNED + thread / T::LANES * T::UNITS + item % T::UNITS;
        /* Rows come longest first, so the block runs for the steps of its first row. */
        steps = job.lengths ? job.lengths[first_row] : (int)job.steps;
        length = !runs() ? 0 : job.lengths ? job.lengths[row] : (int)job.steps;
    }

    DEVICE bool runs() const { return row < last_row; }

    DEVICE bool exists(int q) const { return position + q < T::H; }
    DEVICE int unit(int q) const { return position + q; }
};

template <class T> struct Exchange;
enum { BY_THREADS, ON_TENSOR_CORES, SCATTERED };

/* A thread's share of the matrix, and its product with the state. With FORWARD the matrix is W, OUT * H rows of IN * H
   numbers; in a backward pass it is the transpose of a W with IN * H rows of OUT * H numbers. */
template <class T, bool FORWARD, int WAY = T::SCATTER ? SCATTERED : T::TENSOR_CORES ? ON_TENSOR_CORES : BY_THREADS>
struct Product {
    float held[T::UNITS * T::OUT][T::HELD * 4 + (T::HELD == 0)];
    const float *spilled; /* [column][unit and gate][thread][4] */

    DEVICE Product(const ThreadCoords<T> &coords, const float *weight, float *memory, float *) {
        const int first = coords.rank * T::OWNED + coords.thread / T::LANES * T::UNITS;
        spilled = memory + coords.thread * 4;
        UNROLL for (int n = 0; n < T::IN * T::COLUMNS; n++) {
            UNROLL for (int c = 0; c < T::UNITS * T::OUT; c++) {
                const int j = first + c / T::OUT, gate = c % T::OUT;
                UNROLL for (int q = 0; q < 4; q++) {
                    const int k = (n % T::COLUMNS * T::LANES + coords.lane) * 4 + q;
                    float w = 0;
                    if (j < T::H && k < T::H) w = weight[T::template entry<FORWARD>(gate, j, n / T::COLUMNS, k)];
                    if (n < T::HELD)
                        held[c][n * 4 + q] = w;
                    else
                        memory[(((n - T::HELD) * T::UNITS * T::OUT + c) * T::THREADS + coords.thread) * 4 + q] = w;
                }
            }
        }
    }

    /* The sums of this lane's items over the whole group. */
    DEVICE void operator()(const ThreadCoords<T> &coords, const Exchange<T> &exchange, int step,
                           float (&sum)[T::SUMS][T::OUT]) const {
        const float *state = exchange.state(step);
        UNROLL for (int v = 0; v < T::VALUES; v++) UNROLL for (int g = 0; g < T::OUT; g++) sum[v][g] = 0;
        /* Weights in registers are used for one row after another; those in shared memory are loaded once, for all
           rows. */
        UNROLL for (int n = 0; n < T::HELD; n++) UNROLL for (int r = 0; r < T::ROWS; r++) {
            const float4 in = input(coords, state, n, r);
            UNROLL for (int c = 0; c < T::UNITS * T::OUT; c++)
                add(make_float4(held[c][n * 4], held[c][n * 4 + 1], held[c][n * 4 + 2], held[c][n * 4 + 3]), in,
                    sum[r * T::UNITS + c / T::OUT][c % T::OUT]);
        }
        NO_UNROLL for (int n = T::HELD; n < T::IN * T::COLUMNS; n++) { /* unrolled, its loads would take all registers */
            float4 in[T::ROWS];
            UNROLL for (int r = 0; r < T::ROWS; r++) in[r] = input(coords, state, n, r);
            UNROLL for (int c = 0; c < T::UNITS * T::OUT; c++) {
                const int at = (n - T::HELD) * T::UNITS * T::OUT + c;
                const float4 w = *(const float4 *)(spilled + at * T::THREADS * 4);
                UNROLL for (int r = 0; r < T::ROWS; r++) add(w, in[r], sum[r * T::UNITS + c / T::OUT][c % T::OUT]);
            }
        }
        reduce(coords.lane, sum);
    }

    static DEVICE float4 input(const ThreadCoords<T> &coords, const float *state, int n, int r) {
        return *(const float4 *)(state + (r * T::IN + n / T::COLUMNS) * T::WIDTH +
                                 (n % T::COLUMNS * T::LANES + coords.lane) * 4);
    }

    static DEVICE void add(float4 w, float4 in, float &to) {
        to = fmaf(w.x, in.x, to);
        to = fmaf(w.y, in.y, to);
        to = fmaf(w.z, in.z, to);
        to = fmaf(w.w, in.w, to);
    }

    /* Exchange half of the values with half of the lanes, until each lane has its items; then add up the lanes that are
       left. */
    static DEVICE void reduce(int lane, float (&sum)[T::VALUES][T::OUT]) {
        UNROLL for (int half = 1; half < T::LANES && half < T::VALUES; half *= 2) {
            const int n = T::VALUES / 2 / half, mask = T::LANES / 2 / half;
            const bool upper = (lane & mask) != 0;
            UNROLL for (int v = 0; v < n; v++) UNROLL for (int g = 0; g < T::OUT; g++) {
                const float keep = upper ? sum[v + n][g] : sum[v][g], give = upper ? sum[v][g] : sum[v + n][g];
                sum[v][g] = keep + shuffle_xor(give, mask);
            }
        }
        UNROLL for (int mask = T::COPIES / 2; mask >= 1; mask /= 2)
            UNROLL for (int g = 0; g < T::OUT; g++) sum[0][g] += shuffle_xor(sum[0][g], mask);
    }
};

/* Numbers that are read or written at once. */
template <class V, int N> struct alignas(sizeof(V) * N) Vector {
    V value[N];
};

/* The prefetch of the next AHEAD steps: copies from device memory to slots in shared memory, each thread for
   itself. */
template <class T> struct Prefetch {
    float *slots;

    DEVICE Prefetch(const ThreadCoords<T> &coords, float *memory) : slots(memory + coords.thread * T::VECTOR) {}

    /* Wait for the numbers of `step`. A product with a prefetch ring has waited for them already; counting groups of
       copies here would wait for the copies that it has started since. */
    DEVICE void wait(int step, bool multiplied = true) const {
        if (T::PREFETCH_SLOTS == 0 || step == 0 || !multiplied) copy_wait<T::AHEAD - 1>();
    }

    DEVICE float *at(int step, int stream, int q) const {
        const int item = (stream * T::ITEMS + q / T::VECTOR * T::VECTOR) * T::THREADS + q % T::VECTOR;
        return slots + (step & T::AHEAD) * T::SLOT + item;
    }

    /* Start the copy of item q of a stream; the first of VECTOR items copies all of them. */
    DEVICE void start(int step, int stream, int q, const float *from) const {
        if (q % T::VECTOR == 0) copy_start<T::VECTOR>(at(step, stream, q), from, T::VECTOR);
    }

    DEVICE void read(int step, int stream, float (&to)[T::ITEMS]) const {
        UNROLL for (int q = 0; q < T::ITEMS; q += T::VECTOR) {
            const auto several = *(const Vector<float, T::VECTOR> *)at(step, stream, q);
            UNROLL for (int i = 0; i < T::VECTOR; i++) to[q + i] = several.value[i];
        }
    }
};
/* Write this thread's items into a row in device memory, without padding. */
template <class T, class V> DEVICE void write(const ThreadCoords<T> &coords, V *row, const V (&value)[T::ITEMS]) {
    UNROLL for (int q = 0; q < T::ITEMS; q += T::VECTOR)
        if (coords.exists(q)) {
            Vector<V, T::VECTOR> several;
            UNROLL for (int i = 0; i < T::VECTOR; i++) several.value[i] = value[q + i];
            *(Vector<V, T::VECTOR> *)(row + coords.unit(q)) = several;
        }
}
