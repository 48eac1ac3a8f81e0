/* The primitives of a GPU that kernels use: thread indices, barriers, shuffles, copies, stores into other blocks, and
   matrix products on tensor cores. The tests replace this file by another one (tests/scan/cuda_on_cpu.h) and run the
   same kernels on a CPU, so no other file may use an instruction, a barrier or a thread index directly. */

#define DEVICE __device__ __forceinline__
#define HOST_DEVICE __host__ __device__
#define UNROLL _Pragma("unroll")
#define NO_UNROLL _Pragma("unroll 1")
#define UNROLL_BY_4 _Pragma("unroll 4")

#define CLUSTER_1
#define CLUSTER_2 __cluster_dims__(2, 1, 1)
#define CLUSTER_4 __cluster_dims__(4, 1, 1)
#define CLUSTER_6 __cluster_dims__(6, 1, 1)
#define CLUSTER_8 __cluster_dims__(8, 1, 1)
#define CLUSTER_16 __cluster_dims__(16, 1, 1)

/* ENTRY(name, threads, blocks of a cluster, type of the job, function): a kernel that runs the function. */
#define ENTRY(name, threads, blocks, job_type, ...)                                                    \
    extern "C" __global__ void CLUSTER_##blocks __launch_bounds__(threads, 1) name(const job_type job) \
    {                                                                                                  \
        __VA_ARGS__(job);                                                                              \
    }

/* The same for a kernel without clusters, of which `blocks_per_sm` blocks run on a multiprocessor at the same time. */
#define ENTRY_BLOCKS_PER_SM(name, threads, blocks_per_sm, job_type, ...)                                  \
    extern "C" __global__ void __launch_bounds__(threads, blocks_per_sm) name(const job_type job) \
    {                                                                                           \
        __VA_ARGS__(job);                                                                       \
    }

DEVICE int thread_index() { return threadIdx.x; }
DEVICE int block_index() { return blockIdx.x; }
DEVICE int model_index() { return blockIdx.y; }

DEVICE float *block_memory() {
    extern __shared__ __align__(16) float memory[];
    return memory;
}

DEVICE float shuffle_xor(float value, int mask) { return __shfl_xor_sync(0xffffffffu, value, mask); }

/* x / y to two units in the last place, without the branches that the last half unit costs: divisions are in the chain
   of operations from one step to the next. A y above 2^126 gives 0. */
DEVICE float quotient(float x, float y) { return __fdividef(x, y); }

DEVICE unsigned shared_address(const float *at) { return (unsigned)__cvta_generic_to_shared(at); }

/* The barrier in two halves. Between them a thread must not read what others publish. */
template <int BLOCKS> DEVICE void barrier_arrive() {
    if (BLOCKS > 1) {
        __syncwarp();
        asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    }
}

template <int BLOCKS> DEVICE void barrier_wait() {
    if (BLOCKS > 1) {
        __syncwarp();
        asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
    } else {
        __syncthreads();
    }
}

/* Write N consecutive numbers into the same place of the shared memory of block `rank` of the cluster. */
template <int N> DEVICE void store_at(float *at, int rank, const float (&value)[N]) {
#if __CUDA_ARCH__ >= 900
    unsigned target;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(target) : "r"(shared_address(at)), "r"(rank));
    if (N == 1) asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(target), "f"(value[0]) : "memory");
    if (N == 2)
        asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(target), "f"(value[0]), "f"(value[1 % N]) : "memory");
    if (N == 4)
        asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(target), "f"(value[0]), "f"(value[1 % N]),
                     "f"(value[2 % N]), "f"(value[3 % N])
                     : "memory");
#endif
}

/* A barrier of THREADS threads, whole warps, number `team` of the block: afterwards each sees what the others have
   written to shared memory. */
template <int THREADS> DEVICE void named_barrier_wait(int team) {
    if (THREADS == 32)
        __syncwarp();
    else
        asm volatile("bar.sync %0, %1;" ::"r"(team + 1), "n"(THREADS) : "memory"); /* barrier 0 is __syncthreads */
}

DEVICE unsigned bits_of(float x) { return __float_as_uint(x); }
DEVICE float of_bits(unsigned bits) { return __uint_as_float(bits); }

/* Two numbers rounded to halves, as a pair in 32 bits: the first in the lower bits. */
DEVICE float pack_halves(float low, float high) {
    unsigned both = 0;
#if __CUDA_ARCH__ >= 800
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
#endif
    return of_bits(both);
}

DEVICE float round_to_half(float x) {
    float rounded = 0;
#if __CUDA_ARCH__ >= 800
    asm("{\n.reg .b16 h;\ncvt.rn.f16.f32 h, %1;\ncvt.f32.f16 %0, h;\n}" : "=f"(rounded) : "f"(x));
#endif
    return rounded;
}

/* The lower or the upper half of a pair, as a number. */
DEVICE float half_of(float both, int upper) {
    float number = 0;
#if __CUDA_ARCH__ >= 800
    const unsigned short bits = (unsigned short)(bits_of(both) >> 16 * upper);
    asm("cvt.f32.f16 %0, %1;" : "=f"(number) : "h"(bits));
#endif
    return number;
}

/* The lower halves of two pairs as a pair, or their upper halves. */
DEVICE float lower_halves(float a, float b) { return of_bits(__byte_perm(bits_of(a), bits_of(b), 0x5410)); }
DEVICE float upper_halves(float a, float b) { return of_bits(__byte_perm(bits_of(a), bits_of(b), 0x7632)); }

/* TF32, ten bits of fraction, as tensor cores read a number: truncated, or rounded. */
DEVICE float truncate_tf32(float x) { return of_bits(bits_of(x) & 0xffffe000u); }

/* Rounded by integer arithmetic: the instruction also checks for infinity, at five times the cost. A NaN that becomes a
   number here remains NaN in the low part. */
DEVICE float round_tf32(float x) { return truncate_tf32(of_bits(bits_of(x) + 0x1000u)); }

/* True for n >= 0, since grids are one block deep. The compiler does not know this and moves no code across it. */
DEVICE bool always_true(int n) { return gridDim.z < n + 2; }

/* sum += A B for a warp, mma.m16n8k8, each number read as `truncate_tf32` gives it. With g = lane / 4 and t = lane % 4
   a lane brings rows g and g + 8 of A at inputs t (first two) and t + 4, inputs t and t + 4 of B at column g, and holds
   columns 2 t and 2 t + 1 of the sums' rows g (first two) and g + 8. */
DEVICE void mma_tf32(float (&sum)[4], const float (&a)[4], const float (&b)[2]) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(bits_of(a[0])), "r"(bits_of(a[1])), "r"(bits_of(a[2])), "r"(bits_of(a[3])), "r"(bits_of(b[0])),
          "r"(bits_of(b[1])));
#endif
}

/* The same for 16 inputs in halves, mma.m16n8k16: rows g (first and third) and g + 8 of A at inputs 2 t and 2 t + 1
   (first two) and 8 further on, the same inputs of B at column g. */
DEVICE void mma_fp16(float (&sum)[4], const float (&a)[4], const float (&b)[2]) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(bits_of(a[0])), "r"(bits_of(a[1])), "r"(bits_of(a[2])), "r"(bits_of(a[3])), "r"(bits_of(b[0])),
          "r"(bits_of(b[1])));
#endif
}

/* Asynchronous stores into another block's memory, counted by an mbarrier there. An mbarrier has one phase after
   another; a phase ends when as many bytes have arrived as were expected, in whatever order the expectation and the
   bytes came. */
typedef unsigned long long Mbarrier;

DEVICE unsigned shared_address(const Mbarrier *at) { return (unsigned)__cvta_generic_to_shared(at); }

DEVICE void mbarrier_init(Mbarrier *barrier) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(barrier)) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

DEVICE void mbarrier_expect(Mbarrier *barrier, int bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
#endif
}

/* Wait for the end of a phase; phases are distinguished by the parity of their number. */
DEVICE void mbarrier_wait(Mbarrier *barrier, int odd) {
#if __CUDA_ARCH__ >= 900
    unsigned over;
    do {
        asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                     : "=r"(over)
                     : "r"(shared_address(barrier)), "r"(odd)
                     : "memory");
    } while (!over);
#endif
}

template <int N> DEVICE void async_store(float *at, Mbarrier *barrier, int rank, const float (&value)[N]) {
#if __CUDA_ARCH__ >= 900
    unsigned to, counted;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(to) : "r"(shared_address(at)), "r"(rank));
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(counted) : "r"(shared_address(barrier)), "r"(rank));
    if (N == 1)
        asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(to), "f"(value[0]),
                     "r"(counted)
                     : "memory");
    if (N == 2)
        asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(to),
                     "f"(value[0]), "f"(value[1 % N]), "r"(counted)
                     : "memory");
    if (N == 4)
        asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
                     "f"(value[0]), "f"(value[1 % N]), "f"(value[2 % N]), "f"(value[3 % N]), "r"(counted)
                     : "memory");
#endif
}

/* Asynchronous copies into shared memory: started, committed in groups, and waited for until at most PENDING of the
   last groups are unfinished. After the wait only the thread that started a copy may read it. */
DEVICE void copy_start(float *to, const float *from) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(to)), "l"(from) : "memory");
#else
    *to = *from;
#endif
}

/* A byte is copied with the aligned word of four bytes it lies in; the last two bits of its address say which it is. */
DEVICE const float *word_of(const signed char *byte) { return (const float *)((size_t)byte & ~(size_t)3); }
DEVICE float byte_of(float word, unsigned address) { return (signed char)(bits_of(word) >> (address & 3) * 8); }

/* Copy N neighbouring numbers, of which the first `count` are copied and the others become zero. Both addresses must be
   multiples of their size in bytes; copies of four bypass the L1 cache. */
template <int N> DEVICE void copy_start(float *to, const float *from, int count) {
#if __CUDA_ARCH__ >= 800
    if (N == 1)
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to)), "l"(from), "r"(4 * count)
                     : "memory");
    if (N == 2)
        asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(shared_address(to)), "l"(from), "r"(4 * count)
                     : "memory");
    if (N == 4)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(4 * count)
                     : "memory");
#else
    for (int n = 0; n < N; n++) to[n] = n < count ? from[n] : 0;
#endif
}

/* Make this thread's writes to device memory visible to the copies that it starts. */
DEVICE void memory_fence() { __threadfence(); }

DEVICE void copy_commit() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

template <int PENDING> DEVICE void copy_wait() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
#endif
}
