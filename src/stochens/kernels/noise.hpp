// Random bits of each member, by (member, seed, draw, index). randomness/noise.py has the
// same function in plain torch, which makes a dozen passes over memory where this makes one.

#include "splitmix.hpp"

DEVICE Bits key_of(Bits member, Bits seed, Bits draw) {
    return mix(mix(member * GOLDEN + seed) + (draw + 1) * GOLDEN);
}

// row [count]: the low half of the j-th number of a key, and the high half
DEVICE void write_pair(unsigned *row, Bits j, Bits count, Bits key) {
    const Bits z = mix(key + (j + 1) * GOLDEN);
    row[2 * j] = unsigned(z);
    if (2 * j + 1 < count) row[2 * j + 1] = unsigned(z >> 32);
}
