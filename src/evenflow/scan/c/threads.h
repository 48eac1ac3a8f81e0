/* Threads, denormals, and memory. */

#define MOST_THREADS 256

typedef void work(const void *job, int64_t first, int64_t last, char *scratch);

struct portion {
    work *run;
    const void *job;
    int64_t first, last;
    char *scratch;
};

#if defined(__SSE2__)
static unsigned flush_denormals(void) {
    unsigned before = _mm_getcsr();
    _mm_setcsr(before | 0x8040);
    return before;
}
static void restore_denormals(unsigned before) { _mm_setcsr(before); }
#elif defined(__aarch64__)
static uint64_t flush_denormals(void) {
    uint64_t before;
    __asm__ volatile("mrs %0, fpcr" : "=r"(before));
    __asm__ volatile("msr fpcr, %0" : : "r"(before | (1ull << 24)));
    return before;
}
static void restore_denormals(uint64_t before) { __asm__ volatile("msr fpcr, %0" : : "r"(before)); }
#else
static unsigned flush_denormals(void) { return 0; }
static void restore_denormals(unsigned before) { (void)before; }
#endif

static void *run_portion(void *argument) {
    const struct portion *portion = argument;
    if (portion->last > portion->first) {
        __typeof__(flush_denormals()) before = flush_denormals();
        portion->run(portion->job, portion->first, portion->last, portion->scratch);
        restore_denormals(before);
    }
    return NULL;
}

/* torch's OpenMP threads, if the process has them: they spin for a while after each operation of torch, and other threads
 * would compete with them for cores. Resolved when the library is loaded, else NULL. */
#if defined(__linux__)
extern void GOMP_parallel(void (*)(void *), void *, unsigned, unsigned) __attribute__((weak));
extern int omp_get_thread_num(void) __attribute__((weak));
extern int omp_get_num_threads(void) __attribute__((weak));

struct team {
    struct portion *portions;
    int64_t count;
};

static void run_team(void *argument) {
    const struct team *team = argument; /* it may have fewer threads than requested */
    for (int64_t i = omp_get_thread_num(); i < team->count; i += omp_get_num_threads()) run_portion(&team->portions[i]);
}

static int run_in_team(struct portion *portions, int64_t count) {
    if (count < 2 || !GOMP_parallel || !omp_get_thread_num || !omp_get_num_threads) return 0;
    GOMP_parallel(run_team, &(struct team){portions, count}, (unsigned)count, 0);
    return 1;
}
#else
static int run_in_team(struct portion *portions, int64_t count) {
    (void)portions, (void)count;
    return 0;
}
#endif

/* Start threads for this call. The caller runs the first share, and the share of any thread that cannot be started. */
static void run_in_threads(struct portion *portions, int64_t count) {
    pthread_t started[MOST_THREADS];
    int granted[MOST_THREADS];
    for (int64_t i = 1; i < count; i++)
        granted[i] = pthread_create(&started[i], NULL, run_portion, &portions[i]) == 0;
    run_portion(&portions[0]);
    for (int64_t i = 1; i < count; i++) {
        if (granted[i]) pthread_join(started[i], NULL);
        else run_portion(&portions[i]);
    }
}

/* Run items bounds[i]..bounds[i + 1] as share i, each share with its own `bytes` of scratch memory. Returns 0, or 1 if
 * there is not enough memory. */
static int parallel(work *run, const void *job, const int64_t *bounds, int64_t threads, size_t bytes) {
    struct portion portions[MOST_THREADS];
    void *scratch = NULL;
    bytes = (bytes + FENCES + 4095) / 4096 * 4096;
    if (posix_memalign(&scratch, 4096, bytes * threads)) return 1;
    for (int64_t i = 0; i < threads; i++)
        portions[i] = (struct portion){run, job, bounds[i], bounds[i + 1], (char *)scratch + i * bytes};
    if (!run_in_team(portions, threads)) run_in_threads(portions, threads);
    free(scratch);
    return 0;
}

/* Run all items on this thread, with the caller's scratch memory. */
static int alone(work *run, const void *job, int64_t items, void *scratch) {
    run_portion(&(struct portion){run, job, 0, items, scratch});
    return 0;
}

/* The length of the longest share, which determines the scratch memory. */
static int64_t longest(const int64_t *bounds, int64_t threads) {
    int64_t most = 0;
    for (int64_t i = 0; i < threads; i++)
        if (bounds[i + 1] - bounds[i] > most) most = bounds[i + 1] - bounds[i];
    return most;
}

/* All threads, or one for a small job, which ends before a second thread has started. */
static int64_t worthwhile(int64_t threads, double multiplications) {
    if (threads < 1 || multiplications < 2e5) return 1;
    return threads < MOST_THREADS ? threads : MOST_THREADS;
}

static void split_evenly(int64_t items, int64_t threads, int64_t *bounds) {
    for (int64_t i = 0; i <= threads; i++) bounds[i] = items * i / threads;
}

/* Shares of the models * batch rows with about equally many running steps each. */
static void split_rows(int64_t models, int64_t batch, int64_t steps, const int64_t *batch_sizes, int64_t threads,
                       int64_t *bounds) {
    if (!batch_sizes) {
        split_evenly(models * batch, threads, bounds);
        return;
    }
    int64_t each = 0;
    for (int64_t t = 0; t < steps; t++) each += batch_sizes[t];
    double total = (double)each * models, done = 0;
    int64_t next = 1;
    bounds[0] = 0;
    for (int64_t m = 0; m < models; m++) {
        int64_t length = steps; /* the longest rows come first */
        for (int64_t b = 0; b < batch; b++) {
            while (length && batch_sizes[length - 1] <= b) length--;
            done += length;
            while (next < threads && done >= total * next / threads) bounds[next++] = m * batch + b + 1;
        }
    }
    while (next <= threads) bounds[next++] = models * batch;
}

/* Ask for pages of 2 MB instead of 4 kB for a large result: fewer page faults. */
static void expect(void *memory, size_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    const uintptr_t page = 4096;
    uintptr_t first = ((uintptr_t)memory + page - 1) & ~(page - 1), last = ((uintptr_t)memory + bytes) & ~(page - 1);
    if (memory && bytes >= (4u << 20) && last > first) madvise((void *)first, last - first, MADV_HUGEPAGE);
#else
    (void)memory;
    (void)bytes;
#endif
}
