/* A product with a long inner side on tensor cores: out = sum over n of left[n]' right[n], as weight gradients are.

   The inner side is the rows of all steps. A block computes a patch of the result, BLOCK_M outputs of the left side and
   BLOCK_N of the right, over one part of the rows; the parts' results lie one after another in `out` and are added up
   later, in order. With `shift` the right side is one step behind: row n of the left meets row n - shift of the right,
   and the first `shift` rows meet those of `first`.

   BLOCK_K rows of both sides lie in shared memory at a time, and STAGES such pieces in a ring, so that copies run ahead.
   WARPS_M * WARPS_N warps share the patch. Which of its outputs is which row of a matrix A does not matter so long as it
   is stored where it belongs; so a lane reads up to four neighbouring outputs at once, and eight neighbouring lanes,
   two by four rows, read from all banks of the memory: rows are 8 or 24 numbers longer than a multiple of 32.

   Numbers are split into two that TF32 can take, both sides rounded, which leaves rests of either sign. The hardware adds up CHAIN
   rows by itself and cuts off its sums as it goes; what is longer is added outside of it, rounded: in registers up to
   FLUSH rows, and then in memory, by the same thread. In emulation the error is 1e-7 to 3e-7 at 40,000 rows and at
   200,000, for numbers of one sign and of either.

   With FP16 a number is two of them and a power of two, as in fp16_split.cuh, which takes half the products. The power is
   that of all numbers of one output, so the largest of them has to be known. They may be far apart: x' is the half nearest
   to x, so that also a number 2^-18 times as large as the largest has 22 bits. 16 rows are one matrix, and CHAIN means
   nothing. */

#define FLUSH 2048

struct GemmJob {
    long long rows, part_rows, shift, tiles, tiles_n; /* each: rows of a part; across: tiles beside each other */
    long long left_size, left_row, left_model;  /* numbers of a row, and from one row or model to the next */
    long long right_size, right_row, right_model, first_row, first_model;
    long long models, pitch; /* pitch: from one row of `out` to the next */
    const float *left, *right, *first;
    const float *left_largest, *right_largest; /* [model][output], with FP16 */
    float *out; /* [part][model][left_size][pitch] */
};

template <int BLOCK_M_, int BLOCK_N_, int WARPS_M_, int WARPS_N_, int BLOCK_K_, int STAGES_, int CHAIN_, bool FP16_, bool LEFT_BY_4,
          bool RIGHT_BY_4>
struct GemmTile {
    static constexpr int BLOCK_M = BLOCK_M_, BLOCK_N = BLOCK_N_, WARPS_M = WARPS_M_, WARPS_N = WARPS_N_, BLOCK_K = BLOCK_K_, STAGES = STAGES_;
    static constexpr int CHAIN = CHAIN_, THREADS = 32 * WARPS_M * WARPS_N;
    static constexpr bool FP16 = FP16_;
    static constexpr int LEFT_COPY = LEFT_BY_4 ? 4 : 1, RIGHT_COPY = RIGHT_BY_4 ? 4 : 1; /* numbers of one copy */
    static constexpr int M_TILES = BLOCK_M / WARPS_M / 16, N_TILES = BLOCK_N / WARPS_N / 8; /* a warp's matrices, down and across */
    static constexpr int LEFT_PACK = M_TILES > 1 ? 4 : 2, RIGHT_PACK = N_TILES > 2 ? 4 : N_TILES; /* numbers of one read */
    static constexpr int LEFT_ROW = BLOCK_M % 16 ? BLOCK_M : BLOCK_M + 8, RIGHT_ROW = BLOCK_N % 16 ? BLOCK_N : BLOCK_N + 8;
    static constexpr int STAGE = BLOCK_K * (LEFT_ROW + RIGHT_ROW), BYTES = 4 * STAGES * STAGE;
    static_assert(M_TILES * WARPS_M * 16 == BLOCK_M && N_TILES * WARPS_N * 8 == BLOCK_N, "warps share a patch evenly");
    static_assert(2 * M_TILES % LEFT_PACK == 0 && N_TILES % RIGHT_PACK == 0, "matrices come in packs");
    static_assert(BLOCK_K % CHAIN == 0 && CHAIN % 8 == 0 && FLUSH % BLOCK_K == 0, "whole matrices, chains and pieces");
    static_assert(!FP16 || BLOCK_K % 16 == 0, "whole matrices of halves");
};

template <int N> struct alignas(4 * N) FloatVector {
    float value[N];
};

/* Start this thread's copies of a piece: `count` rows from `from` on and zeros in place of others up to BLOCK_K; of a row
   `size` numbers. The rest of a row is left as it is: it reaches no output that is stored. */
template <class P, int COLUMNS, int ROW, int COPY>
DEVICE void fetch(float *to, const float *from, int stride, int count, int size) {
    constexpr int BESIDE = COLUMNS / COPY, STEP = P::THREADS / BESIDE;
    static_assert(STEP * BESIDE == P::THREADS, "a thread copies the same columns of every STEP-th row");
    const int place = thread_index() % BESIDE * COPY, row = thread_index() / BESIDE, wanted = size - place;
    const float *at = from + row * stride + place;
    to += row * ROW + place;
    if (COPY > 1 && wanted >= COPY && count >= P::BLOCK_K) { /* nearly always */
        UNROLL for (int n = 0; n < P::BLOCK_K; n += STEP)
            if (P::BLOCK_K % STEP == 0 || row + n < P::BLOCK_K) copy_start<COPY>(to + n * ROW, at + n * stride, COPY);
    } else if (wanted > 0) {
        NO_UNROLL for (int n = 0; row + n < P::BLOCK_K; n += STEP) {
            const bool there = row + n < count;
            copy_start<COPY>(to + n * ROW, there ? at + n * stride : from, there ? (wanted < COPY ? wanted : COPY) : 0);
        }
    }
}

/* Add what a piece gives to the sums of this warp. */
template <class P>
DEVICE void add_piece(const float *left, const float *right, float (&total)[P::M_TILES][P::N_TILES][4]) {
    NO_UNROLL for (int chain = 0; chain < P::BLOCK_K; chain += P::CHAIN) {
        float more[P::M_TILES][P::N_TILES][4] = {};
        UNROLL for (int k = chain; k < chain + P::CHAIN; k += 8) {
            float a[P::M_TILES][4], a_rest[P::M_TILES][4], b[P::N_TILES][2], b_rest[P::N_TILES][2];
            UNROLL for (int half = 0; half < 2; half++) {
                UNROLL for (int e = 0; e < 2 * P::M_TILES; e += P::LEFT_PACK) {
                    typedef FloatVector<P::LEFT_PACK> Pack;
                    const Pack x = *(const Pack *)(left + (k + half * 4) * P::LEFT_ROW + e * 8);
                    UNROLL for (int i = 0; i < P::LEFT_PACK; i++) {
                        float &whole = a[(e + i) / 2][half * 2 + (e + i) % 2];
                        whole = round_tf32(x.value[i]);
                        a_rest[(e + i) / 2][half * 2 + (e + i) % 2] = x.value[i] - whole;
                    }
                }
                UNROLL for (int e = 0; e < P::N_TILES; e += P::RIGHT_PACK) {
                    typedef FloatVector<P::RIGHT_PACK> Pack;
                    const Pack x = *(const Pack *)(right + (k + half * 4) * P::RIGHT_ROW + e * 8);
                    UNROLL for (int i = 0; i < P::RIGHT_PACK; i++) {
                        b[e + i][half] = round_tf32(x.value[i]);
                        b_rest[e + i][half] = x.value[i] - b[e + i][half];
                    }
                }
            }
            UNROLL for (int m = 0; m < P::M_TILES; m++)
                UNROLL for (int n = 0; n < P::N_TILES; n++) mma_tf32(more[m][n], a[m], b_rest[n]);
            UNROLL for (int m = 0; m < P::M_TILES; m++)
                UNROLL for (int n = 0; n < P::N_TILES; n++) mma_tf32(more[m][n], a_rest[m], b[n]);
            UNROLL for (int m = 0; m < P::M_TILES; m++)
                UNROLL for (int n = 0; n < P::N_TILES; n++) mma_tf32(more[m][n], a[m], b[n]);
        }
        UNROLL for (int m = 0; m < P::M_TILES; m++) UNROLL for (int n = 0; n < P::N_TILES; n++) UNROLL for (int q = 0; q < 4; q++)
            total[m][n][q] += more[m][n][q];
    }
}

/* Two numbers of neighbouring places as halves, and what these leave of them. */
DEVICE void split(float first, float second, float &whole, float &rest) {
    whole = pack_halves(first, second);
    rest = pack_halves(first - half_of(whole, 0), second - half_of(whole, 1));
}

/* The same in halves, 16 rows at a time: a lane has every fourth of them. */
template <class P>
DEVICE void add_piece_in_halves(const float *left, const float *right, const float (&left_up)[2 * P::M_TILES],
                                const float (&right_up)[P::N_TILES], float (&total)[P::M_TILES][P::N_TILES][4]) {
    typedef FloatVector<P::LEFT_PACK> Left;
    typedef FloatVector<P::RIGHT_PACK> Right;
    NO_UNROLL for (int k = 0; k < P::BLOCK_K; k += 16) {
        float a[P::M_TILES][4], a_rest[P::M_TILES][4], b[P::N_TILES][2], b_rest[P::N_TILES][2], more[P::M_TILES][P::N_TILES][4] = {};
        UNROLL for (int two = 0; two < 2; two++) {
            UNROLL for (int e = 0; e < 2 * P::M_TILES; e += P::LEFT_PACK) {
                const float *at = left + (k + two * 8) * P::LEFT_ROW + e * 8;
                const Left x = *(const Left *)at, y = *(const Left *)(at + 4 * P::LEFT_ROW);
                UNROLL for (int i = 0; i < P::LEFT_PACK; i++)
                    split(x.value[i] * left_up[e + i], y.value[i] * left_up[e + i], a[(e + i) / 2][two * 2 + (e + i) % 2],
                          a_rest[(e + i) / 2][two * 2 + (e + i) % 2]);
            }
            UNROLL for (int e = 0; e < P::N_TILES; e += P::RIGHT_PACK) {
                const float *at = right + (k + two * 8) * P::RIGHT_ROW + e * 8;
                const Right x = *(const Right *)at, y = *(const Right *)(at + 4 * P::RIGHT_ROW);
                UNROLL for (int i = 0; i < P::RIGHT_PACK; i++)
                    split(x.value[i] * right_up[e + i], y.value[i] * right_up[e + i], b[e + i][two], b_rest[e + i][two]);
            }
        }
        UNROLL for (int m = 0; m < P::M_TILES; m++)
            UNROLL for (int n = 0; n < P::N_TILES; n++) mma_fp16(more[m][n], a[m], b_rest[n]);
        UNROLL for (int m = 0; m < P::M_TILES; m++)
            UNROLL for (int n = 0; n < P::N_TILES; n++) mma_fp16(more[m][n], a_rest[m], b[n]);
        UNROLL for (int m = 0; m < P::M_TILES; m++)
            UNROLL for (int n = 0; n < P::N_TILES; n++) mma_fp16(more[m][n], a[m], b[n]);
        UNROLL for (int m = 0; m < P::M_TILES; m++) UNROLL for (int n = 0; n < P::N_TILES; n++) UNROLL for (int q = 0; q < 4; q++)
            total[m][n][q] += more[m][n][q];
    }
}

/* The power for an output whose largest number is known; where that is none, for numbers as they are. */
DEVICE Scale scale_of(const float *most, int output, long long outputs) {
    const float found = output < outputs ? most[output] : 0;
    return scale_for(bits_of(found) < 0x7f800000u ? found : 16384.0f);
}

/* Which output of the left side a lane has e-th, from its first on. */
template <class P> DEVICE int left_output(int e) { return e / P::LEFT_PACK * 8 * P::LEFT_PACK + e % P::LEFT_PACK; }

/* Put the sums of this warp where they belong, or add them to what is there. */
template <class P>
DEVICE void store(const GemmJob &job, float *out, int l, int r, bool again, const float *left_largest,
                  const float *right_largest, const float (&total)[P::M_TILES][P::N_TILES][4]) {
    typedef FloatVector<P::RIGHT_PACK> Pack;
    UNROLL for (int e = 0; e < 2 * P::M_TILES; e++) {
        const int row = l + left_output<P>(e);
        if (row >= job.left_size) continue;
        UNROLL for (int f = 0; f < P::N_TILES; f += P::RIGHT_PACK) UNROLL for (int c = 0; c < 2; c++) {
            const int column = r + f * 8 + c * P::RIGHT_PACK;
            if (column >= job.pitch) continue;
            Pack *at = (Pack *)(out + row * job.pitch + column), sum;
            UNROLL for (int i = 0; i < P::RIGHT_PACK; i++) {
                sum.value[i] = total[e / 2][f + i][e % 2 * 2 + c];
                if (P::FP16) { /* one after the other: together the powers may be out of range */
                    sum.value[i] *= scale_of(left_largest, row, job.left_size).down;
                    sum.value[i] *= scale_of(right_largest, column + i, job.right_size).down;
                }
            }
            if (again) {
                const Pack before = *at;
                UNROLL for (int i = 0; i < P::RIGHT_PACK; i++) sum.value[i] += before.value[i];
            }
            *at = sum;
        }
    }
}

template <class P> DEVICE void gemm(const GemmJob &job) {
    const int lane = thread_index() % 32, high = lane / 4, low = lane % 4, warp = thread_index() / 32;
    const int tile = block_index() % (int)job.tiles, part = block_index() / (int)job.tiles, model = model_index();
    const int top = tile / (int)job.tiles_n * P::BLOCK_M, side = tile % (int)job.tiles_n * P::BLOCK_N;
    const int begin = part * (int)job.part_rows, rest = (int)job.rows - begin;
    const int rows = rest < job.part_rows ? rest : job.part_rows, ahead = (int)job.shift - begin;
    const int early = ahead < 0 ? 0 : ahead < rows ? ahead : rows; /* rows that meet those of `first` */
    const int early_pieces = (early + P::BLOCK_K - 1) / P::BLOCK_K;
    const int pieces = early_pieces + (rows - early + P::BLOCK_K - 1) / P::BLOCK_K;
    const int l = warp / P::WARPS_N * 16 * P::M_TILES + high * P::LEFT_PACK, r = warp % P::WARPS_N * 8 * P::N_TILES;
    float *memory = block_memory();
    const float *left_largest = job.left_largest + model * job.left_size, *right_largest = job.right_largest + model * job.right_size;
    float left_up[2 * P::M_TILES], right_up[P::N_TILES];
    UNROLL for (int e = 0; P::FP16 && e < 2 * P::M_TILES; e++)
        left_up[e] = scale_of(left_largest, top + l + left_output<P>(e), job.left_size).up;
    UNROLL for (int e = 0; P::FP16 && e < P::N_TILES; e++)
        right_up[e] = scale_of(right_largest, side + r + high * P::RIGHT_PACK + e / P::RIGHT_PACK * 8 * P::RIGHT_PACK + e % P::RIGHT_PACK,
                               job.right_size).up;

    const int left_row = job.left_row, right_row = job.right_row, first_row = job.first_row;
    const float *left = job.left + model * job.left_model + begin * job.left_row + top;
    const float *first = job.first + model * job.first_model + begin * job.first_row + side;
    const float *later = job.right + model * job.right_model + (begin + early - job.shift) * job.right_row + side;

    const auto start = [&](int k) {
        if (k < pieces) {
            const int late = k - early_pieces; /* no piece is early and late */
            const int n = late < 0 ? k * P::BLOCK_K : early + late * P::BLOCK_K, count = (late < 0 ? early : rows) - n;
            const float *right =
                late < 0 ? first + (long long)n * first_row : later + (long long)late * P::BLOCK_K * right_row;
            float *to = memory + k % P::STAGES * P::STAGE;
            fetch<P, P::BLOCK_M, P::LEFT_ROW, P::LEFT_COPY>(to, left + (long long)n * left_row, left_row, count,
                                                         (int)job.left_size - top);
            fetch<P, P::BLOCK_N, P::RIGHT_ROW, P::RIGHT_COPY>(to + P::BLOCK_K * P::LEFT_ROW, right,
                                                           late < 0 ? first_row : right_row, count,
                                                           (int)job.right_size - side);
        }
        copy_commit(); /* empty at the end: a wait counts groups */
    };
    UNROLL for (int k = 0; k < P::STAGES - 1; k++) start(k);

    float *out = job.out + ((long long)part * job.models + model) * job.left_size * job.pitch;
    const float *mine = memory + low * P::LEFT_ROW + l;
    const float *other = memory + P::BLOCK_K * P::LEFT_ROW + low * P::RIGHT_ROW + r + high * P::RIGHT_PACK;
    int k = 0;
    do {
        float total[P::M_TILES][P::N_TILES][4] = {};
        const int flush = k + FLUSH / P::BLOCK_K, until = flush < pieces ? flush : pieces, before = k;
        NO_UNROLL for (; k < until; k++) {
            copy_wait<P::STAGES - 2>();
            barrier_wait<1>();        /* piece k is there for all, and piece k - 1 has been read by all */
            start(k + P::STAGES - 1); /* in its place */
            const int slot = k % P::STAGES * P::STAGE;
            if (P::FP16)
                add_piece_in_halves<P>(mine + slot, other + slot, left_up, right_up, total);
            else
                add_piece<P>(mine + slot, other + slot, total);
        }
        store<P>(job, out, top + l, side + r + 2 * low * P::RIGHT_PACK, before > 0, left_largest, right_largest, total);
    } while (k < pieces);
}
