/* primitives.cuh for a CPU: the same kernels, compiled by the host's compiler.

   Every CUDA thread is a fiber with a stack of its own. A fiber runs until it waits at a barrier (or a shuffle, which is a
   barrier of its warp), and then others run. The order in which fibers run is a setting, and a correct kernel gives the
   same bits in any order. Asynchronous copies arrive as late as they may, and their target holds NaN until then; when
   fibers run in falling order they arrive at once. Shared memory starts as NaN, and a store outside it, or into a block
   that has ended, stops the program. */

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <ucontext.h>
#include <utility>
#include <vector>

#define DEVICE inline
#define HOST_DEVICE
#define UNROLL
#define NO_UNROLL
#define UNROLL_BY_4

struct float4 {
    float x, y, z, w;
};
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

namespace emulated {

struct Barrier {
    int members = 0, arrived = 0;
    long round = 0;
    void arrive() {
        if (++arrived == members) arrived = 0, round++;
    }
};

struct Warp {
    Barrier barrier;
    float given[2][32];
    float a[2][16][16], b[2][16][8]; /* of a product on tensor cores */
};

struct Block {
    std::vector<float> memory;
    Barrier barrier, teams[16];
    std::vector<Warp> warps;
    int rank, index, model, running;
};

struct Fiber {
    ucontext_t context;
    std::vector<char> stack;
    Block *block;
    int thread;
    bool done = false;
    const Barrier *waits = nullptr; /* for its round to pass `round` */
    long round = 0, cluster_round = 0;
    std::vector<std::vector<std::pair<float *, const float *>>> copies{1}; /* groups; the last is open */
};

inline ucontext_t scheduler;
inline Fiber *self;
inline std::vector<Block> *cluster;
inline Barrier cluster_barrier;
inline void (*body)(const void *);
inline const void *job;

inline void fail(const char *what) {
    std::fprintf(stderr, "emulated kernel: %s (block %d, thread %d)\n", what, self->block->index, self->thread);
    std::abort();
}

inline void pause(const Barrier &barrier, long round) {
    self->waits = &barrier, self->round = round;
    if (barrier.round <= round) swapcontext(&self->context, &scheduler);
}

inline bool turned, early;

/* Let others go on, and look again. */
inline void turn() {
    self->waits = nullptr, turned = true;
    swapcontext(&self->context, &scheduler);
}

inline void meet(Barrier &barrier) {
    const long round = barrier.round;
    barrier.arrive();
    pause(barrier, round);
}

inline void enter() {
    body(job);
    self->done = true;
    self->block->running--;
    swapcontext(&self->context, &scheduler);
}

/* Run one cluster of `blocks` blocks. The order of turns: 0 rising, 1 falling, else a stride through all fibers. */
inline void run_cluster(int first_block, int blocks, int threads, int floats, int model, int order) {
    std::vector<Block> all(blocks);
    early = order == 1;
    cluster = &all;
    cluster_barrier = Barrier{blocks * threads};
    for (int b = 0; b < blocks; b++) {
        all[b].memory.assign(floats, std::numeric_limits<float>::quiet_NaN());
        all[b].barrier.members = all[b].running = threads;
        all[b].warps.resize(threads / 32);
        for (auto &warp : all[b].warps) warp.barrier.members = 32;
        all[b].rank = b, all[b].index = first_block + b, all[b].model = model;
    }
    std::vector<Fiber> fibers(blocks * threads);
    for (size_t n = 0; n < fibers.size(); n++) {
        Fiber &fiber = fibers[n];
        fiber.block = &all[n / threads], fiber.thread = n % threads;
        fiber.stack.resize(32768);
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack.data();
        fiber.context.uc_stack.ss_size = fiber.stack.size();
        fiber.context.uc_link = nullptr;
        makecontext(&fiber.context, enter, 0);
    }
    size_t left = fibers.size();
    long idle = 0; /* rounds in which some fiber did nothing but look at its mbarrier */
    while (left) {
        bool moved = false;
        turned = false;
        for (size_t n = 0; n < fibers.size(); n++) {
            const size_t turn = order == 0 ? n : order == 1 ? fibers.size() - 1 - n : (n * 37 + 11) % fibers.size();
            Fiber &fiber = fibers[turn]; /* 37 is prime to any number of whole warps */
            if (fiber.done || (fiber.waits && fiber.waits->round <= fiber.round)) continue;
            self = &fiber;
            swapcontext(&scheduler, &fiber.context);
            moved = true;
            left -= fiber.done;
        }
        idle = turned ? idle + 1 : 0;
        if (!moved || idle > 100000) fail("every thread waits for another");
    }
}

inline void check(const float *at, int count, const Block &block) {
    const float *low = block.memory.data();
    if (at < low || at + count > low + block.memory.size()) fail("outside shared memory");
}

template <class Job, void (*FUNCTION)(const Job &)> void call(const void *given) { FUNCTION(*(const Job *)given); }

} // namespace emulated

/* A kernel becomes a function of its job, the size of its grid and the order of turns. */
#define ENTRY(name, threads, blocks, job_type, ...)                                                         \
    extern "C" void name(const job_type *given, int tiles, int models, int bytes, int order) {              \
        emulated::body = emulated::call<job_type, __VA_ARGS__>;                                             \
        emulated::job = given;                                                                              \
        for (int model = 0; model < models; model++)                                                        \
            for (int tile = 0; tile < tiles; tile++)                                                        \
                emulated::run_cluster(tile * blocks, blocks, threads, bytes / 4, model, order);             \
    }

#define ENTRY_BLOCKS_PER_SM(name, threads, together, ...) ENTRY(name, threads, 1, __VA_ARGS__)

inline int thread_index() { return emulated::self->thread; }
inline int block_index() { return emulated::self->block->index; }
inline int model_index() { return emulated::self->block->model; }
inline float *block_memory() { return emulated::self->block->memory.data(); }

inline float quotient(float x, float y) { return x / y; }

inline float shuffle_xor(float value, int mask) {
    auto &warp = emulated::self->block->warps[emulated::self->thread / 32];
    float *given = warp.given[warp.barrier.round & 1];
    const int lane = emulated::self->thread % 32;
    given[lane] = value;
    emulated::meet(warp.barrier);
    return given[lane ^ mask];
}

template <int THREADS> void named_barrier_wait(int team) {
    emulated::Block &block = *emulated::self->block;
    if (THREADS == 32) {
        emulated::meet(block.warps[emulated::self->thread / 32].barrier);
    } else {
        if (team > 14) emulated::fail("too many teams");
        block.teams[team + 1].members = THREADS;
        emulated::meet(block.teams[team + 1]);
    }
}

inline uint32_t bits_of(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    return bits;
}

inline float of_bits(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
}

/* A half of five bits of exponent and ten of fraction. */
inline uint32_t to_half(float x) {
    const _Float16 rounded = (_Float16)x;
    uint16_t bits;
    std::memcpy(&bits, &rounded, 2);
    return bits;
}

inline float half_of(float both, int high) {
    const uint16_t bits = (uint16_t)(bits_of(both) >> 16 * high);
    _Float16 half;
    std::memcpy(&half, &bits, 2);
    return (float)half;
}

inline float round_to_half(float x) { return half_of(of_bits(to_half(x)), 0); }
inline float pack_halves(float low, float high) { return of_bits(to_half(low) | to_half(high) << 16); }
inline float lower_halves(float a, float b) { return of_bits((bits_of(a) & 0xffffu) | bits_of(b) << 16); }
inline float upper_halves(float a, float b) { return of_bits(bits_of(a) >> 16 | (bits_of(b) & 0xffff0000u)); }

/* Ten bits of fraction: the rest cut off, or rounded to the nearest, ties away from zero. */
inline float truncate_tf32(float x) { return of_bits(bits_of(x) & 0xffffe000u); }
inline float round_tf32(float x) { return truncate_tf32(of_bits(bits_of(x) + 0x1000)); }

inline const float *word_of(const signed char *byte) { return (const float *)((uintptr_t)byte & ~(uintptr_t)3); }

inline float byte_of(float word, unsigned address) {
    signed char bytes[4];
    std::memcpy(bytes, &word, 4);
    return bytes[address & 3];
}

inline bool always_true(int) { return true; }
inline void memory_fence() {}

/* sum += A B over `inputs`, as the hardware does: the sum, exact until then, rounded towards zero. */
inline void add_product(float (&sum)[4], const emulated::Warp &warp, int buffer, int inputs) {
    const int g = emulated::self->thread % 32 / 4, t = emulated::self->thread % 4;
    for (int q = 0; q < 4; q++) {
        double exact = sum[q];
        for (int k = 0; k < inputs; k++)
            exact += (double)warp.a[buffer][g + q / 2 * 8][k] * warp.b[buffer][k][t * 2 + q % 2];
        sum[q] = (float)exact;
        if (std::fabs((double)sum[q]) > std::fabs(exact)) sum[q] = std::nextafterf(sum[q], 0.0f);
    }
}

inline void mma_tf32(float (&sum)[4], const float (&a)[4], const float (&b)[2]) {
    auto &warp = emulated::self->block->warps[emulated::self->thread / 32];
    const int buffer = warp.barrier.round & 1, g = emulated::self->thread % 32 / 4, t = emulated::self->thread % 4;
    for (int q = 0; q < 4; q++) warp.a[buffer][g + q % 2 * 8][t + q / 2 * 4] = truncate_tf32(a[q]);
    for (int q = 0; q < 2; q++) warp.b[buffer][t + q * 4][g] = truncate_tf32(b[q]);
    emulated::meet(warp.barrier);
    add_product(sum, warp, buffer, 8);
}

inline void mma_fp16(float (&sum)[4], const float (&a)[4], const float (&b)[2]) {
    auto &warp = emulated::self->block->warps[emulated::self->thread / 32];
    const int buffer = warp.barrier.round & 1, g = emulated::self->thread % 32 / 4, t = emulated::self->thread % 4;
    for (int high = 0; high < 2; high++) {
        for (int q = 0; q < 4; q++) warp.a[buffer][g + q % 2 * 8][t * 2 + q / 2 * 8 + high] = half_of(a[q], high);
        for (int q = 0; q < 2; q++) warp.b[buffer][t * 2 + q * 8 + high][g] = half_of(b[q], high);
    }
    emulated::meet(warp.barrier);
    add_product(sum, warp, buffer, 16);
}

template <int BLOCKS> void barrier_arrive() {
    if (BLOCKS == 1) return;
    emulated::self->cluster_round = emulated::cluster_barrier.round;
    emulated::cluster_barrier.arrive();
}

template <int BLOCKS> void barrier_wait() {
    if (BLOCKS == 1)
        emulated::meet(emulated::self->block->barrier);
    else
        emulated::pause(emulated::cluster_barrier, emulated::self->cluster_round);
}

template <int N> void store_at(float *at, int rank, const float (&value)[N]) {
    emulated::Block &block = (*emulated::cluster)[rank];
    emulated::check(at, N, *emulated::self->block);
    if (block.running < (int)block.warps.size() * 32) emulated::fail("a store into a block that is ending");
    float *target = block.memory.data() + (at - block_memory());
    for (int n = 0; n < N; n++) target[n] = value[n];
}

/* An mbarrier is two counters in shared memory. */
struct Mbarrier {
    int32_t expected; /* less those that have come; below zero when bytes came before they were expected */
    int32_t rounds;   /* over since it was opened, times two, and one more while nothing is expected yet */
};
static_assert(sizeof(Mbarrier) == 8, "as an mbarrier");

inline void mbarrier_settle(Mbarrier *barrier) {
    if (barrier->expected == 0 && !(barrier->rounds & 1)) barrier->rounds += 3; /* one round more, and unarmed again */
}

inline void mbarrier_init(Mbarrier *barrier) { barrier->expected = 0, barrier->rounds = 1; }

inline void mbarrier_expect(Mbarrier *barrier, int bytes) {
    if (!(barrier->rounds & 1)) emulated::fail("an mbarrier expects twice in one phase");
    barrier->expected += bytes, barrier->rounds -= 1;
    mbarrier_settle(barrier);
}

template <int N> void async_store(float *at, Mbarrier *barrier, int rank, const float (&value)[N]) {
    const long offset = (float *)barrier - block_memory();
    store_at(at, rank, value);
    auto *target = (Mbarrier *)((*emulated::cluster)[rank].memory.data() + offset);
    target->expected -= N * 4;
    mbarrier_settle(target);
}

inline void mbarrier_wait(Mbarrier *barrier, int odd) {
    while ((barrier->rounds >> 1 & 1) == odd) emulated::turn();
}

inline void copy_start(float *to, const float *from) {
    emulated::check(to, 1, *emulated::self->block);
    if (emulated::early) {
        *to = *from;
        return;
    }
    *to = std::numeric_limits<float>::quiet_NaN();
    emulated::self->copies.back().push_back({to, from});
}

template <int N> void copy_start(float *to, const float *from, int count) {
    static const float zero = 0;
    if ((to - block_memory()) % N || (uintptr_t)from % (4 * N)) emulated::fail("a copy that is not aligned");
    for (int n = 0; n < N; n++) copy_start(to + n, n < count ? from + n : &zero);
}

inline void copy_commit() { emulated::self->copies.emplace_back(); }

template <int PENDING> void copy_wait() {
    auto &copies = emulated::self->copies;
    while (copies.size() > PENDING + 1) {
        for (auto &copy : copies.front()) *copy.first = *copy.second;
        copies.erase(copies.begin());
    }
}
