// Random words of each member, by (member, seed, draw, index). randomness/noise.py has the same
// function in plain torch, which makes a dozen passes over memory where this makes one.

#include "splitmix.hpp"

struct Key { unsigned first, second; };

DEVICE Key key_of(Bits member, Bits seed, Bits draw) {
    const Bits key = mix(mix(member * GOLDEN + seed) + (draw + 1) * GOLDEN);
    const unsigned first = unsigned(key), second = unsigned(key >> 32);
    return {first ^ first >> 16, second ^ second >> 15};
}

// The 32 bits of a 32-bit index, or of a vector of them: C. Wellons's lowbias32, with one key before
// it and one between its two rounds. A round begins x ^= key, x ^= x >> s, which is the same as
// x ^ (x >> s) ^ (key ^ key >> s): keys are shifted once, and a GPU has both ^ in one instruction.
template <class U> DEVICE U word_of(U x, Key key) {
    x = x ^ (x >> 16) ^ key.first;
    x *= 0x7feb352du;
    x = x ^ (x >> 15) ^ key.second;
    x *= 0x846ca68bu;
    return x ^ (x >> 16);
}
