#include "conv.hpp"

// Weights [M, COUT, inputs, KERNEL, KERNEL] in the order in which the lanes want them (`fragments`
// in conv_reference.py), for the forward pass and, with inputs and outputs exchanged, for dx.
KERNEL_OF(256, 1)
conv_pack(const float *weight, u32 *forwards, u32 *backwards, int inputs) {
    SHARED
    constexpr int SQUARE = KERNEL * KERNEL;
    float *own = (float *)shared;  // [16, inputs, SQUARE]
    const int n = blockIdx.x, member = blockIdx.y, thread = threadIdx.x;
    weight += (size_t)(member * COUT + n * 16) * inputs * SQUARE;
    for (int i = thread; i < 16 * inputs * SQUARE; i += 256) own[i] = weight[i];
    __syncthreads();
    for (int i = thread; i < TAPS * KB * 128; i += 256) {
        const int lane = i / 4 % 32, g = lane / 4, t = lane % 4, b = i % 2;
        const int o = g / 2 * 4 + i / 2 % 2 * 2 + g % 2, k = i / 128 % KB, tap = i / 128 / KB;
        float v[2], w[2];
        for (int e = 0; e < 2; e++) {
            if (QUAD) {
                const int c = 2 * b + e;
                v[e] = c < inputs && t < 3 ? own[(o * inputs + c) * SQUARE + tap * 3 + t] : 0.0f;
            } else {
                const int c = 8 * b + 2 * t + e;
                v[e] = own[(o * inputs + k * 16 + c) * SQUARE + tap];
                w[e] = own[(c * inputs + k * 16 + o) * SQUARE + tap];
            }
        }
        const int tile = member * TAPS + tap;
        forwards[((size_t)(tile * KB + k) * NB + n) * 128 + i % 128] = pack(v[0], v[1]);
        if (!QUAD && (flags & WANTS_DX))
            backwards[((size_t)(tile * NB + n) * KB + k) * 128 + i % 128] = pack(w[0], w[1]);
    }
}
