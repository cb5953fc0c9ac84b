// Random bits of each member: splitmix64 of (member, seed, draw, index). noise.py has the same
// function in plain torch, which makes a dozen passes over memory where this makes one.

#include <cstdint>

static constexpr uint64_t GOLDEN = 0x9E3779B97F4A7C15ull;

static inline uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

// out [members, count]: the low and the high half of each number
extern "C" void noise_words(int64_t members, int64_t count, const uint64_t* ids, uint64_t seed,
                            uint64_t draw, uint32_t* out) {
    for (int64_t m = 0; m < members; ++m) {
        const uint64_t key = mix(mix(ids[m] * GOLDEN + seed) + (draw + 1) * GOLDEN);
        uint32_t* row = out + m * count;
        for (int64_t j = 0; j < count / 2; ++j) {
            const uint64_t z = mix(key + (uint64_t(j) + 1) * GOLDEN);
            row[2 * j] = uint32_t(z);
            row[2 * j + 1] = uint32_t(z >> 32);
        }
        if (count % 2) row[count - 1] = uint32_t(mix(key + (uint64_t(count / 2) + 1) * GOLDEN));
    }
}
