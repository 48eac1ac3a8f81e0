/* The beginning of every compiled source.
 *
 * A thread computes some rows of the batch at all steps, so that threads do not wait for each other between steps, and a
 * row does not depend on the other rows of its thread: results have the same bits for any number of threads.
 * Denormal numbers are flushed to zero while a call runs; vanishing gradients are full of them and they are slow.
 * NaN and infinity propagate. The code is written once for REAL, which is float or double. */

#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(__linux__)
#include <sys/mman.h>
#endif
#if defined(__SSE2__)
#include <immintrin.h>
#endif

/* Under AddressSanitizer (tools/sanitize_c.py) there are bytes between a thread's pieces of scratch memory that must not
 * be read or written. */
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define FENCE 64
#define FENCES ((size_t)1 << 16) /* bytes of all of them */
#else
#define ASAN_POISON_MEMORY_REGION(at, bytes) (void)0
#define FENCE 0
#define FENCES 0
#endif

#include "threads.h"

#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#define TILE_ROWS 12 /* 24 of the 32 registers hold sums */
#elif defined(__AVX__)
#define VECTOR_BYTES 32
#define TILE_ROWS 6
#else
#define VECTOR_BYTES 16
#define TILE_ROWS 6
#endif

#define GLUE2(a, b) a##_##b
#define GLUE(a, b) GLUE2(a, b)
#define NAME(name) GLUE(name, SUFFIX)

/* Tells the compiler that the blocks of a row do not overlap, even if several of them are in one tensor. */
#if defined(__clang__)
#define EACH _Pragma("clang loop vectorize(assume_safety)")
#else
#define EACH _Pragma("GCC ivdep")
#endif

const int evenflow_library = 1; /* marks a library of evenflow */
