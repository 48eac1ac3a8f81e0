/* The FP16 split: a number of single precision as two halves (FP16 numbers), which tensor cores multiply, and a scale.

   x = s (x' + x"), where x' and x" have eleven bits each and the scale s is a power of two. Numbers that a tensor core
   adds up share their scale: 16 inputs of a row of the state, or the weights that a warp holds of one output. The scale
   takes the largest of them to between 2^14 and 2^15; halves end at 2^16. Then w h is computed as s t (w" h' + w' h" +
   w' h'), with t the scale of h (Ootomo and Yokota 2022). The error is that of single precision for the largest of the
   numbers that share a scale. Numbers a thousand times smaller have fewer bits; they add little to a sum unless their
   weights are large.

   x' is a multiple of a small power of two. Tensor cores truncate their sums instead of rounding them, and such an
   error, always towards zero, would grow with the number of steps. But the products w' h' are multiples of 2^6, and 16
   of them seldom exceed 2^30: the sum has 24 bits and loses none.

   States may be between 1e-34 and 1e33. */

struct Scale {
    float up, down; /* factors into the range of halves, and back */
};

/* The scale for numbers of which this is the largest. At least 2^-112, so that both factors are normal numbers. */
DEVICE Scale scale_for(float largest) {
    const unsigned exponent = bits_of(largest) & 0x7f800000u, least = 15u << 23, bits = exponent < least ? least : exponent;
    return {of_bits((268u << 23) - bits), of_bits(bits - (14u << 23))};
}

/* The multiple of QUANTUM nearest to x: beside so large a number single precision has no bits for less. */
template <int QUANTUM> DEVICE float multiple_near(float x) {
    constexpr float large = 1.5f * (1 << 23) * QUANTUM;
    return (x + large) - large;
}

/* x' of a scaled weight: a multiple of 16. */
DEVICE float high_part_of_weight(float x) { return multiple_near<16>(x); }

/* A scaled number of the state as its two halves in 32 bits, x' in the lower ones. x' is a multiple of 4, as far as a
   half has bits for it: small numbers keep more bits than as multiples of 16. */
DEVICE float split_state(float x) {
    const float high = round_to_half(multiple_near<4>(x));
    return pack_halves(high, x - high);
}
