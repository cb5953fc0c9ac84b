// What natural_draw.cu and natural_step.cu share: training/natural.py's eps, one number at a time.
// Parameters of all members lie side by side in vectors [M D]; order [M D] has of each number its
// place among members side by side, [M, D].

#ifndef EMULATED
#define DEVICE __device__ __forceinline__
#define KERNEL_OF(threads, blocks) extern "C" __global__ void __launch_bounds__(threads, blocks)
#endif
#include "noise.hpp"

constexpr int EACH = 4;  // numbers of a thread, THREADS apart: nearly always of one member

// eps of a place, by the words of kernels/noise.py: pieces of `piece` numbers have keys of their own
struct Drawn {
    const Bits *ids;
    Bits seed;
    unsigned width, piece;
    unsigned member = ~0u, draw = 0;  // whose key it is
    Key key = {};
    DEVICE float operator()(unsigned place) {
        const unsigned of = place / width, i = place - of * width, k = i < piece ? 0 : i / piece;
        if (of != member || k != draw) member = of, draw = k, key = key_of(ids[of], seed, k);
        const float x = (float(word_of(i - k * piece, key) >> 9) + 0.5f) * 0x1p-22f - 1;  // exact
        return erfinvf(x) * 1.41421356f;
    }
};
