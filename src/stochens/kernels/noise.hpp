// Random words of each member, by (member, seed, draw, index). randomness/noise.py has the same
// function in plain torch, which makes a dozen passes over memory where this makes one.

#include "splitmix.hpp"

struct Key { unsigned first, second; };

DEVICE Key key_of(Bits member, Bits seed, Bits draw) {
    const Bits key = mix(mix(member * GOLDEN + seed) + (draw + 1) * GOLDEN);
    return {unsigned(key), unsigned(key >> 32)};
}

// The 32 bits of a 32-bit index, or of a vector of them: C. Wellons's lowbias32, with one key before
// it and one between its two rounds.
template <class U> DEVICE U word_of(U x, Key key) {
    x ^= key.first;
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= key.second;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    x ^= x >> 16;
    return x;
}
