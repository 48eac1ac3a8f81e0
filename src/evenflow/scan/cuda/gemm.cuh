/* A matrix product with a long inner dimension on tensor cores: out = sum over n of left[n]' right[n], as in weight
   gradients, where n runs over the rows of all steps.

   A block computes one tile of the result, BLOCK_M outputs of the left side and BLOCK_N of the right side, over one
   part of the rows. The results of the parts lie one after another in `out` and are added up later, in order. With
   `shift` the right side is one step behind: row n of the left side is multiplied by row n - shift of the right side,
   and the first `shift` rows by those of `first`.

   BLOCK_K rows of both sides, a *stage*, are in shared memory at a time. A prefetch ring holds STAGES of them, so that
   copies run ahead. WARPS_M * WARPS_N warps divide the tile. Which output is which row of a matrix A does not matter as
   long as it is stored in the right place, so a lane reads up to four neighbouring outputs at once. Rows are 8 or 24
   numbers longer than a multiple of 32, so that eight neighbouring lanes, two by four rows, read from all memory banks.

   Numbers are split into two TF32 numbers, both rounded, which leaves errors of either sign. The hardware adds up CHAIN
   rows by itself, with truncation; longer sums are added outside of it and rounded: in registers up to FLUSH rows, then
   in memory, by the same thread. In emulation the error is 1e-7 to 3e-7 for 40,000 and for 200,000 rows, for numbers of
   one sign and of both.

   With FP16 numbers are split into two halves and a scale, as in fp16_split.cuh, which takes half the products. All
   numbers of one output share a scale, so the largest of them has to be known. They may differ widely in size: x' is
   the half nearest to x, so that a number 2^-18 times as large as the largest still has 22 bits. One matrix has 16
   rows, and CHAIN is not used. */

#define FLUSH 2048

struct GemmJob {
    long long rows, part_rows, shift, tiles, tiles_n; /* tiles of the result, and tiles beside each other */
    long long left_size, left_row, left_model; /* numbers of a row, and strides of rows and models */
    long long right_size, right_row, right_model, first_row, first_model;
    long long models, pitch; /* pitch: stride of the rows of `out` */
    const float *left, *right, *first;
    const float *left_largest, *right_largest; /* [model][output], with FP16 */
    float *out; /* [part][model][left_size][pitch] */
};

template <int BLOCK_M_, int BLOCK_N_, int WARPS_M_, int WARPS_N_, int BLOCK_K_, int STAGES_, int CHAIN_, bool FP16_,
          bool LEFT_BY_4, bool RIGHT_BY_4>
struct GemmTile {
    static constexpr int BLOCK_M = BLOCK_M_, BLOCK_N = BLOCK_N_, WARPS_M = WARPS_M_, WARPS_N = WARPS_N_;
    static constexpr int BLOCK_K = BLOCK_K_, STAGES = STAGES_, CHAIN = CHAIN_, THREADS = 32 * WARPS_M * WARPS_N;
    static constexpr bool FP16 = FP16_;
    static constexpr int LEFT_COPY = LEFT_BY_4 ? 4 : 1, RIGHT_COPY = RIGHT_BY_4 ? 4 : 1; /* numbers of one copy */
    static constexpr int M_TILES = BLOCK_M / WARPS_M / 16, N_TILES = BLOCK_N / WARPS_N / 8; /* matrices of a warp */
    static constexpr int LEFT_PACK = M_TILES > 1 ? 4 : 2; /* numbers of one read */
    static constexpr int RIGHT_PACK = N_TILES > 2 ? 4 : N_TILES;
    static constexpr int LEFT_ROW = BLOCK_M % 16 ? BLOCK_M : BLOCK_M + 8;
    static constexpr int RIGHT_ROW = BLOCK_N % 16 ? BLOCK_N : BLOCK_N + 8;
    static constexpr int STAGE = BLOCK_K * (LEFT_ROW + RIGHT_ROW), BYTES = 4 * STAGES * STAGE;
    static_assert(M_TILES * WARPS_M * 16 == BLOCK_M && N_TILES * WARPS_N * 8 == BLOCK_N, "warps divide a tile evenly");
    static_assert(2 * M_TILES % LEFT_PACK == 0 && N_TILES % RIGHT_PACK == 0, "matrices are read in packs");
    static_assert(BLOCK_K % CHAIN == 0 && CHAIN % 8 == 0 && FLUSH % BLOCK_K == 0, "whole matrices, chains and stages");
    static_assert(!FP16 || BLOCK_K % 16 == 0, "whole matrices of halves");
};

template <int N> struct alignas(4 * N) FloatVector {
    float value[N];
};

/* Start this thread's copies of a stage: `count` rows at `from`, and zeros for the others up to BLOCK_K; of a row
   `size` numbers. The rest of a row is not written: no output that is stored depends on it. */
template <class T, int COLUMNS, int ROW, int COPY>
DEVICE void fetch(float *to, const float *from, int stride, int count, int size) {
    constexpr int BESIDE = COLUMNS / COPY, STEP = T::THREADS / BESIDE;
    static_assert(STEP * BESIDE == T::THREADS, "a thread copies the same columns of every STEP-th row");
    const int place = thread_index() % BESIDE * COPY, row = thread_index() / BESIDE, left = size - place;
    const float *at = from + row * stride + place;
    to += row * ROW + place;
    if (COPY > 1 && left >= COPY && count >= T::BLOCK_K) { /* nearly always */
        UNROLL for (int n = 0; n < T::BLOCK_K; n += STEP)
            if (T::BLOCK_K % STEP == 0 || row + n < T::BLOCK_K) copy_start<COPY>(to + n * ROW, at + n * stride, COPY);
    } else if (left > 0) {
        NO_UNROLL for (int n = 0; row + n < T::BLOCK_K; n += STEP) {
            const bool exists = row + n < count;
            copy_start<COPY>(to + n * ROW, exists ? at + n * stride : from, exists ? (left < COPY ? left : COPY) : 0);
        }
    }
}

/* Add the product of a stage to the sums of this warp, in TF32. */
template <class T>
DEVICE void add_stage_tf32(const float *left, const float *right, float (&total)[T::M_TILES][T::N_TILES][4]) {
    NO_UNROLL for (int chain = 0; chain < T::BLOCK_K; chain += T::CHAIN) {
        float more[T::M_TILES][T::N_TILES][4] = {};
        UNROLL for (int k = chain; k < chain + T::CHAIN; k += 8) {
            float a[T::M_TILES][4], a_rest[T::M_TILES][4], b[T::N_TILES][2], b_rest[T::N_TILES][2];
            UNROLL for (int half = 0; half < 2; half++) {
                UNROLL for (int e = 0; e < 2 * T::M_TILES; e += T::LEFT_PACK) {
                    typedef FloatVector<T::LEFT_PACK> Pack;
                    const Pack x = *(const Pack *)(left + (k + half * 4) * T::LEFT_ROW + e * 8);
                    UNROLL for (int i = 0; i < T::LEFT_PACK; i++) {
                        float &whole = a[(e + i) / 2][half * 2 + (e + i) % 2];
                        whole = round_tf32(x.value[i]);
                        a_rest[(e + i) / 2][half * 2 + (e + i) % 2] = x.value[i] - whole;
                    }
                }
                UNROLL for (int e = 0; e < T::N_TILES; e += T::RIGHT_PACK) {
                    typedef FloatVector<T::RIGHT_PACK> Pack;
                    const Pack x = *(const Pack *)(right + (k + half * 4) * T::RIGHT_ROW + e * 8);
                    UNROLL for (int i = 0; i < T::RIGHT_PACK; i++) {
                        b[e + i][half] = round_tf32(x.value[i]);
                        b_rest[e + i][half] = x.value[i] - b[e + i][half];
                    }
                }
            }
            UNROLL for (int m = 0; m < T::M_TILES; m++)
                UNROLL for (int n = 0; n < T::N_TILES; n++) mma_tf32(more[m][n], a[m], b_rest[n]);
            UNROLL for (int m = 0; m < T::M_TILES; m++)
                UNROLL for (int n = 0; n < T::N_TILES; n++) mma_tf32(more[m][n], a_rest[m], b[n]);
            UNROLL for (int m = 0; m < T::M_TILES; m++)
                UNROLL for (int n = 0; n < T::N_TILES; n++) mma_tf32(more[m][n], a[m], b[n]);
        }
        UNROLL for (int m = 0; m < T::M_TILES; m++) UNROLL for (int n = 0; n < T::N_TILES; n++)
            UNROLL for (int q = 0; q < 4; q++) total[m][n][q] += more[m][n][q];
    }
}

/* The high parts of two numbers as a pair of halves, and their low parts. */
DEVICE void split(float first, float second, float &high, float &low) {
    high = pack_halves(first, second);
    low = pack_halves(first - half_of(high, 0), second - half_of(high, 1));
}

/* The same in halves, 16 rows at a time, of which a lane has every fourth. */
template <class T>
DEVICE void add_stage_fp16(const float *left, const float *right, const float (&left_up)[2 * T::M_TILES],
                                const float (&right_up)[T::N_TILES], float (&total)[T::M_TILES][T::N_TILES][4]) {
    typedef FloatVector<T::LEFT_PACK> Left;
    typedef FloatVector<T::RIGHT_PACK> Right;
    NO_UNROLL for (int k = 0; k < T::BLOCK_K; k += 16) {
        float a[T::M_TILES][4], a_rest[T::M_TILES][4], b[T::N_TILES][2], b_rest[T::N_TILES][2];
        float more[T::M_TILES][T::N_TILES][4] = {};
        UNROLL for (int two = 0; two < 2; two++) {
            UNROLL for (int e = 0; e < 2 * T::M_TILES; e += T::LEFT_PACK) {
                const float *at = left + (k + two * 8) * T::LEFT_ROW + e * 8;
                const Left x = *(const Left *)at, y = *(const Left *)(at + 4 * T::LEFT_ROW);
                UNROLL for (int i = 0; i < T::LEFT_PACK; i++)
                    split(x.value[i] * left_up[e + i], y.value[i] * left_up[e + i], a[(e + i) / 2][two * 2 + (e + i) % 2],
                          a_rest[(e + i) / 2][two * 2 + (e + i) % 2]);
            }
            UNROLL for (int e = 0; e < T::N_TILES; e += T::RIGHT_PACK) {
                const float *at = right + (k + two * 8) * T::RIGHT_ROW + e * 8;
                const Right x = *(const Right *)at, y = *(const Right *)(at + 4 * T::RIGHT_ROW);
                UNROLL for (int i = 0; i < T::RIGHT_PACK; i++)
                    split(x.value[i] * right_up[e + i], y.value[i] * right_up[e + i], b[e + i][two], b_rest[e + i][two]);
            }
        }
        UNROLL for (int m = 0; m < T::M_TILES; m++)
            UNROLL for (int n = 0; n < T::N_TILES; n++) mma_fp16(more[m][n], a[m], b_rest[n]);
        UNROLL for (int m = 0; m < T::M_TILES; m++)
            UNROLL for (int n = 0; n < T::N_TILES; n++) mma_fp16(more[m][n], a_rest[m], b[n]);
        UNROLL for (int m = 0; m < T::M_TILES; m++)
            UNROLL for (int n = 0; n < T::N_TILES; n++) mma_fp16(more[m][n], a[m], b[n]);
        UNROLL for (int m = 0; m < T::M_TILES; m++) UNROLL for (int n = 0; n < T::N_TILES; n++)
            UNROLL for (int q = 0; q < 4; q++) total[m][n][q] += more[m][n][q];
    }
}

/* The scale for an output by its largest number; where that is infinite or NaN, the scale 1. */
DEVICE Scale scale_of(const float *maxima, int output, long long outputs) {
    const float largest = output < outputs ? maxima[output] : 0;
    return scale_for(bits_of(largest) < 0x7f800000u ? largest : 16384.0f);
}

/* The e-th output of the left side that a lane has, counted from its first. */
template <class T> DEVICE int left_output(int e) { return e / T::LEFT_PACK * 8 * T::LEFT_PACK + e % T::LEFT_PACK; }

/* Store the sums of this warp, or with `again` add them to the stored ones. */
template <class T>
DEVICE void store(const GemmJob &job, float *out, int l, int r, bool again, const float *left_largest,
                  const float *right_largest, const float (&total)[T::M_TILES][T::N_TILES][4]) {
    typedef FloatVector<T::RIGHT_PACK> Pack;
    UNROLL for (int e = 0; e < 2 * T::M_TILES; e++) {
        const int row = l + left_output<T>(e);
        if (row >= job.left_size) continue;
        UNROLL for (int f = 0; f < T::N_TILES; f += T::RIGHT_PACK) UNROLL for (int c = 0; c < 2; c++) {
            const int column = r + f * 8 + c * T::RIGHT_PACK;
            if (column >= job.pitch) continue;
            Pack *at = (Pack *)(out + row * job.pitch + column), sum;
            UNROLL for (int i = 0; i < T::RIGHT_PACK; i++) {
                sum.value[i] = total[e / 2][f + i][e % 2 * 2 + c];
                if (T::FP16) { /* one after the other: the product of both scales may be out of range */
                    sum.value[i] *= scale_of(left_largest, row, job.left_size).down;
                    sum.value[i] *= scale_of(right_largest, column + i, job.right_size).down;
                }
            }
            if (again) {
                const Pack before = *at;
                UNROLL for (int i = 0; i < T::RIGHT_PACK; i++) sum.value[i] += before.value[i];
            }
            *at = sum;
        }
    }
}

template <class T> DEVICE void gemm(const GemmJob &job) {
    const int lane = thread_index() % 32, high = lane / 4, low = lane % 4, warp = thread_index() / 32;
    const int tile = block_index() % (int)job.tiles, part = block_index() / (int)job.tiles, model = model_index();
    const int top = tile / (int)job.tiles_n * T::BLOCK_M, side = tile % (int)job.tiles_n * T::BLOCK_N;
    const int begin = part * (int)job.part_rows, rest = (int)job.rows - begin;
    const int rows = rest < job.part_rows ? rest : job.part_rows, ahead = (int)job.shift - begin;
    const int early = ahead < 0 ? 0 : ahead < rows ? ahead : rows; /* rows that are multiplied by those of `first` */
    const int early_stages = (early + T::BLOCK_K - 1) / T::BLOCK_K;
    const int stages = early_stages + (rows - early + T::BLOCK_K - 1) / T::BLOCK_K;
    const int l = warp / T::WARPS_N * 16 * T::M_TILES + high * T::LEFT_PACK, r = warp % T::WARPS_N * 8 * T::N_TILES;
    float *memory = block_memory();
    const float *left_largest = job.left_largest + model * job.left_size;
    const float *right_largest = job.right_largest + model * job.right_size;
    float left_up[2 * T::M_TILES], right_up[T::N_TILES];
    UNROLL for (int e = 0; T::FP16 && e < 2 * T::M_TILES; e++)
        left_up[e] = scale_of(left_largest, top + l + left_output<T>(e), job.left_size).up;
    UNROLL for (int e = 0; T::FP16 && e < T::N_TILES; e++) {
        const int output = r + high * T::RIGHT_PACK + e / T::RIGHT_PACK * 8 * T::RIGHT_PACK + e % T::RIGHT_PACK;
        right_up[e] = scale_of(right_largest, side + output, job.right_size).up;
    }

    const int left_row = job.left_row, right_row = job.right_row, first_row = job.first_row;
    const float *left = job.left + model * job.left_model + begin * job.left_row + top;
    const float *first = job.first + model * job.first_model + begin * job.first_row + side;
    const float *later = job.right + model * job.right_model + (begin + early - job.shift) * job.right_row + side;

    const auto start = [&](int k) {
        if (k < stages) {
            const int late = k - early_stages; /* no stage is early and late */
            const int n = late < 0 ? k * T::BLOCK_K : early + late * T::BLOCK_K, count = (late < 0 ? early : rows) - n;
            const float *right =
                late < 0 ? first + (long long)n * first_row : later + (long long)late * T::BLOCK_K * right_row;
            float *to = memory + k % T::STAGES * T::STAGE;
            fetch<T, T::BLOCK_M, T::LEFT_ROW, T::LEFT_COPY>(to, left + (long long)n * left_row, left_row, count,
                                                         (int)job.left_size - top);
            fetch<T, T::BLOCK_N, T::RIGHT_ROW, T::RIGHT_COPY>(to + T::BLOCK_K * T::LEFT_ROW, right,
                                                           late < 0 ? first_row : right_row, count,
                                                           (int)job.right_size - side);
        }
        copy_commit(); /* also where it is empty: a wait counts groups */
    };
    UNROLL for (int k = 0; k < T::STAGES - 1; k++) start(k);

    float *out = job.out + ((long long)part * job.models + model) * job.left_size * job.pitch;
    const float *mine = memory + low * T::LEFT_ROW + l;
    const float *other = memory + T::BLOCK_K * T::LEFT_ROW + low * T::RIGHT_ROW + r + high * T::RIGHT_PACK;
    int k = 0;
    do {
        float total[T::M_TILES][T::N_TILES][4] = {};
        const int flush = k + FLUSH / T::BLOCK_K, until = flush < stages ? flush : stages, before = k;
        NO_UNROLL for (; k < until; k++) {
            copy_wait<T::STAGES - 2>();
            barrier_wait<1>();        /* all have stage k, and all have read stage k - 1 */
            start(k + T::STAGES - 1); /* in the place of stage k - 1 */
            const int slot = k % T::STAGES * T::STAGE;
            if (T::FP16)
                add_stage_fp16<T>(mine + slot, other + slot, left_up, right_up, total);
            else
                add_stage_tf32<T>(mine + slot, other + slot, total);
        }
        store<T>(job, out, top + l, side + r + 2 * low * T::RIGHT_PACK, before > 0, left_largest, right_largest, total);
    } while (k < stages);
}
