#ifndef EMULATED
#define DEVICE __device__ __forceinline__
#define KERNEL_OF(threads, blocks) extern "C" __global__ void __launch_bounds__(threads, blocks)
#endif
#include "noise.hpp"

// out [members, count], in blocks of THREADS, each thread of which makes two words. The seed lies in
// memory, since a recorded graph launches this again and again with the same arguments.
KERNEL_OF(THREADS, 1)
noise_words(const Bits *ids, const Bits *seed, unsigned *out, int members, int count, int draw) {
    const long long pairs = (count + 1LL) / 2;
    const long long i = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (i >= members * pairs) return;
    const long long m = i / pairs, first = 2 * (i % pairs);
    const Key key = key_of(ids[m], *seed, draw);
    out[m * count + first] = word_of(unsigned(first), key);
    if (first + 1 < count) out[m * count + first + 1] = word_of(unsigned(first + 1), key);
}
