#define DEVICE static inline
#include "noise.hpp"

// out [members, count]
extern "C" void noise_words(long long members, long long count, const Bits *ids, const Bits *seed,
                            Bits draw, unsigned *out) {
    for (long long m = 0; m < members; ++m) {
        const Bits key = key_of(ids[m], *seed, draw);
        for (long long j = 0; j < (count + 1) / 2; ++j) write_pair(out + m * count, j, count, key);
    }
}
