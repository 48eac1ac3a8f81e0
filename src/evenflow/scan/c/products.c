/* Products over all steps at once, compiled at first use by `evenflow.runtime.compile_c` and called through ctypes. */

#include "head.h"

/* The arguments of a call; the Python side has the same fields in the same order. A tensor that is not needed is NULL.
 * All tensors are contiguous, with the shapes given in the comments. */
struct linear {
    int64_t rows, in, out, down, across, threads; /* entry (k, j) of the weight is at k * down + j * across */
    const void *x;                                /* (rows, in) */
    const void *weight, *bias;                    /* (out), or NULL */
    void *y;                                      /* (rows, out) */
};

struct gradient {
    int64_t models, steps, batch, left, right, threads;
    int64_t down, x_down, x0_down; /* numbers from row to row: of each tensor the first `left` or `right` columns count */
    const void *d;                 /* (M, T, B, down) */
    const void *x0;                /* (M, B, x0_down), or NULL */
    const void *x;                 /* (M, T, B, x_down) */
    const void *resets;            /* (M, T, B), or NULL: where it is not zero, the row of d is left out */
    void *d_weight; /* (M, left, right) */
};

#define REAL float
#define INTEGER int32_t
#define SUFFIX float
#include "product.h"
#include "linear.h"
#undef REAL
#undef INTEGER
#undef SUFFIX

#define REAL double
#define INTEGER int64_t
#define SUFFIX double
#include "product.h"
#include "linear.h"

/* Whether some pieces of memory differ from copies of them. */
int differ(int64_t count, const void *const *now, const void *const *then, const int64_t *bytes) {
    for (int64_t i = 0; i < count; i++)
        if (memcmp(now[i], then[i], (size_t)bytes[i])) return 1;
    return 0;
}
