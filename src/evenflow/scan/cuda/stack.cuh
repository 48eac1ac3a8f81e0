/* How one step of a stack of L layers is shared out: each layer needs the new state of the one below it, and the states
   of all of them one step before. tile.cuh has the words; a Stack is to this what a Tile is to a single recurrence.

   A cluster of BLOCKS blocks runs ROWS rows of the batch through all steps. LANES threads form a group that owns the same
   UNITS units of every layer, and holds their weights: each thread every LANES-th float4 of the inputs. A step is L
   *phases*, one for each layer. At the end of a phase each block mails what its units have become to all blocks, and while
   the mail is on its way a thread multiplies by what the phase before brought and a later phase will want.

   SHARES numbers of a unit come from below: 1 (tanh), 3 (GRU) or 4 (LSTM); all but one are gates of its own. There are
   three families of weights, each in registers, in shared memory or far away in device memory (as good as always in
   its L2 cache): FEEDBACK (the U^{ij}), UP (the W^j) and OWN (those of the units' own gates). */

enum { IN_REGISTERS, IN_SHARED, FAR_AWAY };
#define PHASES 3 /* that are kept: the one that arrives, the one that is multiplied by, the one before it */

template <int H_, int L_, int SHARES_, int BLOCKS_, int LANES_, int UNITS_, int ROWS_, int FEEDBACK_, int UP_, int OWN_,
          bool DROPPED_, bool FORWARD_>
struct Stack {
    static constexpr int H = H_, L = L_, SHARES = SHARES_, BLOCKS = BLOCKS_, LANES = LANES_, UNITS = UNITS_, ROWS = ROWS_;
    static constexpr bool DROPPED = DROPPED_, FORWARD = FORWARD_;
    static constexpr int FEEDBACK_PLACE = FEEDBACK_, UP_PLACE = UP_, OWN_PLACE = OWN_;
    static constexpr int OWN = SHARES - 1, ABOVE = L > 1 ? L - 1 : 1; /* arrays have a member at least */
    static constexpr int MEET = 32 / LANES;                                  /* groups of a warp */
    static constexpr int GROUPS = up(up(up(H, BLOCKS), UNITS), MEET) * MEET; /* whole warps */
    static constexpr int OWNED = GROUPS * UNITS, THREADS = GROUPS * LANES, WARPS = THREADS / 32;
    static constexpr int COLUMNS = up(H, 4 * LANES);
    static constexpr int WIDTH = COLUMNS * 4 * LANES > BLOCKS * OWNED ? COLUMNS * 4 * LANES : BLOCKS * OWNED;
    static constexpr int PITCH = up(H, 4) * 4;
    static constexpr int VALUES = ROWS * UNITS, ITEMS = 1, COPIES = LANES / VALUES; /* an item is one unit of one row */
    static constexpr int PLACES = ROWS * OWNED;                                     /* items of a block */
    static constexpr int GATES = L * ROWS, ROUNDS = up(GATES, WARPS);               /* of one layer, and those of a warp */
    /* What a phase brings of each unit. */
    static constexpr int NUMBERS = FORWARD ? 1 + DROPPED : SHARES == 1 ? 1 : 4;
    static constexpr int LETTERS = NUMBERS * ROWS * BLOCKS * OWNED;
    static constexpr int PHASE = up(NUMBERS * ROWS * WIDTH, 4) * 4;
    /* Fetched ahead of each item and step. Backward, of each layer: grad, and h | r z n q h | i f g o c c grad; and of each
       phase a row for every gate. */
    static constexpr int EACH = SHARES == 1 ? 2 : SHARES == 3 ? 6 : 8, FED = FORWARD ? 0 : GATES * PITCH;
    static constexpr int STREAMS = (FORWARD ? SHARES : L * EACH) + (DROPPED ? L - 1 : 0);
    static constexpr int SLOT = up(STREAMS * PLACES + GATES * (FORWARD ? 1 : L), 4) * 4;
    static constexpr int OPENED = 2 * L * GATES;
    static constexpr int SEEN = L * L * L * (FORWARD ? PITCH : OWNED), RISE = ABOVE * L * (FORWARD ? PITCH : OWNED);
    static constexpr int BIASES = FORWARD ? (ABOVE * SHARES + L) * OWNED + ABOVE * L : 0;
    static constexpr int SHARED_WEIGHTS = COLUMNS * 4 * UNITS * THREADS *
                                          ((FEEDBACK_PLACE == IN_SHARED ? L * L : 0) +
                                           (UP_PLACE == IN_SHARED ? (L - 1) * SHARES : 0) +
                                           (OWN_PLACE == IN_SHARED ? L * OWN : 0));
    static constexpr int FAR_WEIGHTS = COLUMNS * 4 * UNITS * THREADS * /* of a block */
                                       ((FEEDBACK_PLACE == FAR_AWAY ? L * L : 0) +
                                        (UP_PLACE == FAR_AWAY ? (L - 1) * SHARES : 0) +
                                        (OWN_PLACE == FAR_AWAY ? L * OWN : 0));
    static constexpr int BYTES =
        4 * (8 + PHASES * PHASE + SHARED_WEIGHTS + 2 * OPENED + 2 * SLOT + FED + SEEN + RISE + BIASES);
    static_assert(BLOCKS > 1 && LANES <= 32 && VALUES <= LANES && LANES % VALUES == 0, "no such stack");
    static_assert(SHARES == 1 || SHARES == 3 || SHARES == 4, "no such units");
    static_assert(WIDTH % 4 == 0, "vectors would not be aligned");

    static DEVICE int unit(int position) { return position; }
};

/* A thread's share of a matrix: OUTS numbers of each of its units, from INS numbers of every unit. */
template <class S, int OUTS, int INS, int PLACE> struct Weights {
    static constexpr int COUNT = OUTS * S::UNITS, PIECES = INS * S::COLUMNS;
    static constexpr bool HELD = PLACE == IN_REGISTERS;
    float held[HELD ? COUNT : 1][HELD ? PIECES * 4 : 1];
    float *spilled; /* [piece][number and unit][thread][4] */

    /* `weight` gives a number by the output, its unit, the input and its unit; `next` moves past what is used of it. */
    template <class F> DEVICE void load(const Seat<S> &seat, float *&shared, float *&far, F weight) {
        float *&next = PLACE == FAR_AWAY ? far : shared;
        const auto find = [&](int c, int n, int q) {
            const int unit = seat.rank * S::OWNED + seat.thread / S::LANES * S::UNITS + c % S::UNITS;
            const int k = (n % S::COLUMNS * S::LANES + seat.lane) * 4 + q;
            return unit < S::H && k < S::H ? weight(c / S::UNITS, unit, n / S::COLUMNS, k) : 0.0f;
        };
        if constexpr (HELD) {
            UNROLL for (int c = 0; c < COUNT; c++) UNROLL for (int n = 0; n < PIECES; n++)
                UNROLL for (int q = 0; q < 4; q++) held[c][n * 4 + q] = find(c, n, q);
        } else {
            spilled = next + seat.thread * 4;
            NO_UNROLL for (int at = 0; at < PIECES * COUNT * 4; at++)
                spilled[at / 4 * S::THREADS * 4 + at % 4] = find(at / 4 % COUNT, at / 4 / COUNT, at % 4);
            next += PIECES * COUNT * 4 * S::THREADS;
        }
    }

    /* Add this thread's part of the products with rows of numbers, of the outputs from `first` to before `last`. */
    DEVICE void multiply(int lane, const float *rows, float (&sum)[OUTS][S::VALUES], int first = 0, int last = OUTS) const {
        if constexpr (HELD) {
            UNROLL for (int n = 0; n < PIECES; n++) UNROLL for (int r = 0; r < S::ROWS; r++) {
                const float4 in = input(lane, rows, n, r);
                UNROLL for (int c = 0; c < COUNT; c++) if (c / S::UNITS >= first && c / S::UNITS < last)
                    add(make_float4(held[c][n * 4], held[c][n * 4 + 1], held[c][n * 4 + 2], held[c][n * 4 + 3]), in,
                        sum[c / S::UNITS][r * S::UNITS + c % S::UNITS]);
            }
        } else {
            NO_UNROLL for (int n = 0; n < PIECES; n++) { /* unrolled, its reads would take all registers */
                float4 in[S::ROWS];
                UNROLL for (int r = 0; r < S::ROWS; r++) in[r] = input(lane, rows, n, r);
                UNROLL for (int c = 0; c < COUNT; c++) if (c / S::UNITS >= first && c / S::UNITS < last) {
                    const float4 w = *(const float4 *)(spilled + (n * COUNT + c) * S::THREADS * 4);
                    UNROLL for (int r = 0; r < S::ROWS; r++) add(w, in[r], sum[c / S::UNITS][r * S::UNITS + c % S::UNITS]);
                }
            }
        }
    }

    static DEVICE float4 input(int lane, const float *rows, int n, int r) {
        return *(const float4 *)(rows + (n / S::COLUMNS * S::ROWS + r) * S::WIDTH + (n % S::COLUMNS * S::LANES + lane) * 4);
    }

    static DEVICE void add(float4 w, float4 in, float &to) {
        to = fmaf(w.x, in.x, to);
        to = fmaf(w.y, in.y, to);
        to = fmaf(w.z, in.z, to);
        to = fmaf(w.w, in.w, to);
    }
};

/* What this lane's item gets: halve the values while halving the lanes that share them, then sum over the lanes that are
   left. On the way N numbers become their sums over the warp: two chains of shuffles take little longer than one. */
template <class S, int N = 0> DEVICE float reduced(int lane, float (&sum)[S::VALUES], float *whole = (float *)0) {
    const auto across = [&](int mask) { UNROLL for (int n = 0; n < N; n++) whole[n] += shuffle_xor(whole[n], mask); };
    UNROLL for (int mask = 16; mask >= S::LANES; mask /= 2) across(mask);
    UNROLL for (int half = 1; half < S::VALUES; half *= 2) {
        const int n = S::VALUES / 2 / half, mask = S::LANES / 2 / half;
        const bool upper = (lane & mask) != 0;
        across(mask);
        UNROLL for (int v = 0; v < n; v++) {
            const float keep = upper ? sum[v + n] : sum[v], give = upper ? sum[v] : sum[v + n];
            sum[v] = keep + shuffle_xor(give, mask);
        }
    }
    UNROLL for (int mask = S::COPIES / 2; mask >= 1; mask /= 2) {
        across(mask);
        sum[0] += shuffle_xor(sum[0], mask);
    }
    return sum[0];
}

/* A lane's part of the product of two rows, each of them at a multiple of 16 bytes. */
template <class S> DEVICE float dot(int lane, const float *left, const float *right) {
    float sum = 0;
    UNROLL for (int n = 0; n < up(S::H, 128); n++) {
        const int k = n * 128 + lane * 4;
        if (k < S::PITCH) {
            const float4 a = *(const float4 *)(left + k), b = *(const float4 *)(right + k);
            sum = fmaf(a.x, b.x, fmaf(a.y, b.y, fmaf(a.z, b.z, fmaf(a.w, b.w, sum))));
        }
    }
    return sum;
}

/* What the blocks of a cluster mail each other, a phase at a time; exchange.cuh says why no barrier is needed. When all of
   a phase is there, every thread has sent it and so is done with the phase before the one before it: its place is free. */
template <class S> struct Ring {
    float *memory;

    DEVICE Ring(float *memory) : memory(memory) {}

    DEVICE Mailbox *box(int phase) const { return (Mailbox *)memory + phase % PHASES; }
    DEVICE float *at(int phase) const { return memory + 8 + phase % PHASES * S::PHASE; }

    /* All zero; the caller ends it with a barrier of the cluster. */
    DEVICE void open(const Seat<S> &seat) const {
        for (int i = seat.thread; i < PHASES * S::PHASE; i += S::THREADS) memory[8 + i] = 0;
        if (seat.thread == 0)
            UNROLL for (int phase = 0; phase < PHASES; phase++) {
                mail_open(box(phase));
                mail_expect(box(phase), S::LETTERS * 4);
            }
    }

    /* Number `number` of this lane's item, to all blocks: lanes with the same item share them. */
    DEVICE void publish(const Seat<S> &seat, int phase, int number, float value) const {
        float *row = at(phase) + (number * S::ROWS + seat.local_row) * S::WIDTH;
        const float one[1] = {value};
        UNROLL for (int first = 0; first < S::BLOCKS; first += S::COPIES)
            if (S::BLOCKS % S::COPIES == 0 || first + seat.copy < S::BLOCKS)
                mail_store(row + seat.position, box(phase), first + seat.copy, one);
    }

    DEVICE void wait(const Seat<S> &seat, int phase) const {
        mail_wait(box(phase), phase / PHASES & 1);
        if (seat.thread == 0) mail_expect(box(phase), S::LETTERS * 4); /* for the phase after next but one */
    }

    DEVICE static void meet() {
        barrier_arrive<S::BLOCKS>();
        barrier_wait<S::BLOCKS>();
    }
};

/* The numbers of the next step on their way from device memory. Lanes with the same item share the streams. */
template <class S> struct Ahead {
    float *slots, *items;

    DEVICE Ahead(const Seat<S> &seat, float *memory)
        : slots(memory), items(memory + seat.thread / S::LANES * S::VALUES + seat.lane / S::COPIES) {}

    DEVICE float at(int step, int stream) const { return items[(step & 1) * S::SLOT + stream * S::PLACES]; }

    DEVICE void start(const Seat<S> &seat, int step, int stream, const float *from) const {
        if (stream % S::COPIES == seat.copy) copy_start(items + (step & 1) * S::SLOT + stream * S::PLACES, from);
    }

    /* A number of each gate, for the thread that works it out. */
    DEVICE float *gate(int step, int n) const { return slots + (step & 1) * S::SLOT + S::STREAMS * S::PLACES + n; }

    /* PENDING: groups of other copies that may still be on their way. */
    template <int PENDING> DEVICE void wait() const {
        copy_wait<PENDING>();
        team_wait<32>(0);
    }
};
