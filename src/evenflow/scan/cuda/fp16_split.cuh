/* Numbers of single precision as tensor cores take them: two halves, of eleven bits each, and a power of two.

   x = p (x' + x"). The power p is shared by numbers that tensor cores add up: 16 inputs of a row of the state, or the
   weights that a warp has of one output. It takes the largest of them to between 2^14 and 2^15; halves end at 2^16. Then
   w h ≈ p q (w" h' + w' h" + w' h') (Ootomo and Yokota 2022). The error is that of single precision for the largest of
   those numbers; numbers a thousand times smaller, which add little to a sum unless weights make up for it, have fewer bits.

   x' is a multiple of a small power of two. The hardware cuts off its sums instead of rounding them, and such an error,
   always towards zero, would grow with the number of steps. But the products w' h' are multiples of 2^6, and 16 of them
   seldom make more than 2^30: a sum of 24 bits, of which nothing is cut off.

   States may be between 1e-34 and 1e33. */

struct Scale {
    float up, down; /* into the range of halves, and back */
};

/* For numbers of which `most` is the largest. It is 2^-112 at least, so that both ways are normal numbers. */
DEVICE Scale scale_for(float most) {
    const unsigned exponent = bits_of(most) & 0x7f800000u, least = 15u << 23, bits = exponent < least ? least : exponent;
    return {of_bits((268u << 23) - bits), of_bits(bits - (14u << 23))};
}

/* The multiple of QUANTUM that is nearest to x: single precision has no bits for less beside so large a number. */
template <int QUANTUM> DEVICE float multiple_near(float x) {
    constexpr float large = 1.5f * (1 << 23) * QUANTUM;
    return (x + large) - large;
}

/* x' of a weight in range: eleven bits, however small it is beside the largest. */
DEVICE float high_part_of_weight(float x) { return multiple_near<16>(x); }

/* A number of the state in range with its halves in one place, x' in the lower bits. Small ones have more bits than they
   would as multiples of 16, and large ones those that a half has room for. */
DEVICE float split_state(float x) {
    const float whole = round_to_half(multiple_near<4>(x));
    return pack_halves(whole, x - whole);
}
