/* Recurrences over time on the CPU, compiled at first use by `evenflow.scan.native` and called through ctypes.
 *
 * Every thread owns some rows of the batch for all steps, so there is nothing to wait for between steps, and a row's
 * numbers never depend on which rows share its thread: results are the same bits for any number of threads.
 * Denormal numbers are flushed to zero while a call runs; vanishing gradients are full of them and they are slow.
 * NaN and infinity propagate. The body is compiled twice, for float and for double. */

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

enum activation { IDENTITY, RELU, LEAKY, PRELU, TANH, ABS, OPLU, MODRELU, COMPLEX_MODRELU };

/* One call's numbers and tensors; the Python side in `native.py` has the same fields in the same order. A tensor that
 * a call has no use for is NULL. All are contiguous, with the shapes written beside them. */
struct elman {
    int64_t models, steps, batch, hidden, threads, activation;
    double slope;               /* of leaky */
    const int64_t *batch_sizes; /* (T), or NULL where every row runs to the end */
    const void *a;              /* (M, T, B, H) */
    const void *weight;         /* (M, H, H) */
    const void *h0;             /* (M, B, H) */
    const void *alpha, *beta;   /* (M), or NULL for a cell without gates */
    const void *parameter;      /* (M, 1) of prelu, (M, H) of modrelu, (M, H/2) of the complex one */
    void *states, *kept;        /* (M, T, B, H); kept are pre-activations or, as bytes, marks; or NULL */
    const void *grad;           /* (M, T, B, H) from here on for the backward pass alone */
    void *d_a, *d_states;       /* (M, T, B, H) */
    void *d_h0;                 /* (M, B, H) */
    void *d_alpha, *d_beta;     /* (M) */
    void *d_parameter;          /* as the parameter */
    double *sums;               /* (3, M, B, H) zeros: the last three, before they are added up */
};

struct lstm {
    int64_t models, steps, batch, hidden, threads;
    int64_t blocks;              /* K = 4, or 3 without a forget gate */
    int64_t truncated;           /* whether no gradient passes from the gates to the state before */
    const int64_t *batch_sizes;
    const void *a;               /* (M, T, B, KH) */
    const void *weight;          /* (M, KH, H) */
    const void *h0, *c0;         /* (M, B, H) */
    const void *peephole;        /* (M, 3H), or NULL; K = 4 then */
    void *h, *c;                 /* (M, T, B, H) */
    void *gates;                 /* (M, T, B, KH), after their activations */
    const void *grad_h, *grad_c; /* (M, T, B, H), either may be NULL */
    void *d_a;                   /* (M, T, B, KH) */
    void *d_states;              /* (M, T, B, H) */
    void *d_h0, *d_c0;           /* (M, B, H) */
    double *sums;                /* (M, B, 3H) zeros: the peephole's gradient, before it is added up */
};

struct gru {
    int64_t models, steps, batch, hidden, threads;
    const int64_t *batch_sizes;
    const void *a;      /* (M, T, B, 3H) */
    const void *weight; /* (M, 3H, H): the gates' U, then the candidate's U_n */
    const void *bias;   /* (M, H), or NULL */
    const void *h0;     /* (M, B, H) */
    void *states;       /* (M, T, B, H) */
    void *kept;         /* (M, T, B, 4H): r, z, n and q */
    const void *grad;   /* (M, T, B, H) */
    void *d_a;          /* (M, T, B, 3H) */
    void *d_q;          /* (M, T, B, H) */
    void *d_states;     /* (M, T, B, H) */
    void *d_h0;         /* (M, B, H) */
};

struct linear {
    int64_t rows, in, out, down, across, threads; /* entry (k, j) of the weight is at k * down + j * across */
    const void *x;                                /* (rows, in) */
    const void *weight, *bias;                    /* (out), or NULL */
    void *y;                                      /* (rows, out) */
};

struct gradient {
    int64_t models, steps, batch, left, right, down, threads;
    const void *d;  /* (M, T, B, down), of which the first `left` columns */
    const void *x0; /* (M, B, right) */
    const void *x;  /* (M, T, B, right) */
    void *d_weight; /* (M, left, right) */
};

#define REAL float
#define INTEGER int32_t
#define SUFFIX float
#include "body.h"
#undef REAL
#undef INTEGER
#undef SUFFIX

#define REAL double
#define INTEGER int64_t
#define SUFFIX double
#include "body.h"
