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
