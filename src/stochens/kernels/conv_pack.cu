// Weights [members, COUT, inputs, KERNEL, KERNEL] in the order in which the lanes want them
// (`fragments` in conv_reference.py), for the forward pass and, with inputs and outputs exchanged,
// for dx: [members, TAPS, IN_BLOCKS, OUT_BLOCKS, 32 lanes, 4] and [members, TAPS, OUT_BLOCKS,
// IN_BLOCKS, 32 lanes, 4] words of two bf16.
//
// Grid: (OUT_BLOCKS, members). A block reads the weights of its 16 outputs once, in order, into
// shared memory, [16, inputs, KERNEL, KERNEL] float32, and picks them from there.

#include "conv.hpp"

constexpr int PACKERS = 256;  // threads

KERNEL_OF(PACKERS, 1)
conv_pack(const float *weight, u32 *forwards, u32 *backwards, int inputs) {
    SHARED
    constexpr int SQUARE = KERNEL * KERNEL;
    float *own = (float *)shared;
    const int out_block = blockIdx.x, member = blockIdx.y, thread = threadIdx.x;
    weight += (size_t)(member * COUT + out_block * 16) * inputs * SQUARE;
    for (int i = thread; i < 16 * inputs * SQUARE; i += PACKERS) own[i] = weight[i];
    __syncthreads();
    for (int i = thread; i < TAPS * IN_BLOCKS * 128; i += PACKERS) {
        const int lane = i / 4 % 32, g = lane / 4, t = lane % 4;
        // A lane's four words: of column g of two products, inputs of the first and second half.
        // The columns are so numbered that a thread's four outputs, which are columns 2 t and
        // 2 t + 1 of both products, are the channels 4 t to 4 t + 3.
        const int half = i % 2, o = g / 2 * 4 + i / 2 % 2 * 2 + g % 2;
        const int in_block = i / 128 % IN_BLOCKS, tap = i / 128 / IN_BLOCKS;
        float ahead[2], back[2];
        for (int e = 0; e < 2; e++) {
            if (QUAD) {  // 4 columns of the image: t; the kernel has 3
                const int c = 2 * half + e;
                const bool there = c < inputs && t < 3;
                ahead[e] = there ? own[(o * inputs + c) * SQUARE + tap * 3 + t] : 0.0f;
            } else {
                const int c = 8 * half + 2 * t + e;
                ahead[e] = own[(o * inputs + in_block * 16 + c) * SQUARE + tap];
                back[e] = own[(c * inputs + in_block * 16 + o) * SQUARE + tap];
            }
        }
        const int tile = member * TAPS + tap;
        forwards[((size_t)(tile * IN_BLOCKS + in_block) * OUT_BLOCKS + out_block) * 128 + i % 128] =
            pack(ahead[0], ahead[1]);
        if (!QUAD && (flags & WANTS_DX))
            backwards[((size_t)(tile * OUT_BLOCKS + out_block) * IN_BLOCKS + in_block) * 128 +
                      i % 128] = pack(back[0], back[1]);
    }
}
