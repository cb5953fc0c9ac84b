#include <cmath>
#define DEVICE static inline
#include "noise.hpp"

// out [members, count]
extern "C" void noise_words(long long members, long long count, const Bits *ids, const Bits *seed,
                            Bits draw, unsigned *out) {
    for (long long m = 0; m < members; ++m) {
        const Key key = key_of(ids[m], *seed, draw);
        for (long long i = 0; i < count; ++i) out[m * count + i] = word_of(unsigned(i), key);
    }
}

// What outputs are divided by to drop some: `keep` where the word is below a number, else infinity
template <class R>
static void divisors(long long members, long long count, const Bits *ids, const Bits *seed, Bits draw,
                     int below, double keep, R *out) {
    const R kept = R(keep), dropped = R(INFINITY);
    for (long long m = 0; m < members; ++m) {
        const Key key = key_of(ids[m], *seed, draw);
        for (long long i = 0; i < count; ++i)
            out[m * count + i] = int(word_of(unsigned(i), key)) < below ? kept : dropped;
    }
}

extern "C" void noise_divisors_float(long long members, long long count, const Bits *ids,
                                     const Bits *seed, Bits draw, int below, double keep, float *out) {
    divisors(members, count, ids, seed, draw, below, keep, out);
}

extern "C" void noise_divisors_double(long long members, long long count, const Bits *ids,
                                      const Bits *seed, Bits draw, int below, double keep, double *out) {
    divisors(members, count, ids, seed, draw, below, keep, out);
}
