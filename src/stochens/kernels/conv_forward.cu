// z = (conv(x) + bias) * kept / (1 - p),  n = z / rms(z),  t = max(gamma n + beta, tau),
// y = silu(t + residual).   A dropped z is kept as -0, which no other z is: that is the mask.
//
// Grid: (blocks that share a member's images, members). A block goes from set to set of images,
// gridDim.x apart; each warp has 16 outputs of a part of an image (`Place`), z in its registers.
//
// Shared memory: weights [TAPS, IN_BLOCKS, OUT_BLOCKS, 32] uint4; two buffers each, in turn, of
// partial sums of z^2 and of the set's images; residuals [2 ROWS, THREADS] uint2, of which a thread
// copies and reads only its own.

#include "conv.hpp"
#include "noise.hpp"

typedef Inputs<TALL> Source;

KERNEL_OF(THREADS, BLOCKS_PER_SM)
conv_forward(const bf16 *x, const uint4 *weights, const float *bias, const float *gamma,
             const float *beta, const float *tau, const bf16 *residual, const u64 *seed,
             const int *members, bf16 *z, bf16 *y, float *rms, int batch, int site, int below) {
    SHARED
    const int thread = threadIdx.x, lane = thread % 32, group = lane / 4, quarter = lane % 4;
    const int member = blockIdx.y;
    const Place at(thread / 32, OUT_BLOCKS, group);
    const int channel = at.block * 16 + 4 * quarter;
    float *partials = (float *)(shared + FRAGMENTS);
    bf16 *staged = (bf16 *)(partials + 2 * PARTIAL);
    uint2 *own_residual = (uint2 *)(staged + 2 * SET * Source::SIZE) + thread;
    for (int i = thread; i < FRAGMENTS; i += THREADS)
        copy<16>(shared + i, weights + (size_t)member * FRAGMENTS + i);
    fill_zero(staged, 2 * SET * Source::SIZE * 2, thread, THREADS);
    const float scale = scale_of(below);
    const Key key = key_of(members[member], *seed, site);
    __syncthreads();  // no zero comes to stand on a pixel

    auto fetch = [&](int set, bf16 *to) {
        for (int i = 0; i < SET; i++) {
            const int b = set * SET + i;
            const size_t image = (flags & SHARED_X ? 0 : (size_t)member * batch) + b;
            if (b < batch)
                Source::fetch(to + i * Source::SIZE, x + image * IMAGE_IN, thread, THREADS);
        }
    };
    fetch(blockIdx.x, staged);
    end_group();
    int turn = 0;
    for (int set = blockIdx.x; set * SET < batch; set += gridDim.x, turn ^= 1) {
        bool in[2];
        size_t image[2], base[2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int b = set * SET + at.image[h];
            in[h] = image_inside(b, batch, at.column[h]);
            image[h] = (size_t)member * batch + b;
            base[h] = image[h] * IMAGE_OUT + 4 * quarter +
                      ((at.block * OUT_H + at.row) * OUT_W + at.column[h]) * 16;
        }
        if (flags & HAS_RESIDUAL)
#pragma unroll
            for (int k = 0; k < 2 * ROWS; k++)
                if (in[k % 2] && row_inside(at.row + k / 2))
                    copy<8>(own_residual + k * THREADS,
                            residual + base[k % 2] + k / 2 * OUT_W * 16);
        end_group();
        fetch(set + gridDim.x, staged + (turn ^ 1) * SET * Source::SIZE);
        end_group();
        wait_groups<2>();  // for this set; its residuals and the next set are on their way
        __syncthreads();   // for what the other threads copied of it
        float acc[ROWS][2][4] = {};
        convolve<Source, IN_BLOCKS, OUT_BLOCKS, KERNEL, TAPS_X, STRIDE>(
            acc, staged + turn * SET * Source::SIZE, at, lane, shared + at.block * 32 + lane,
            [](int a, int b) { return a * TAPS_X + b; });

        // bias and noise: an element's word is that of its place in [batch, COUT, OUT_H, OUT_W]
        const float4 b4 = *(const float4 *)&bias[member * COUT + channel];
        const float biases[4] = {scale * b4.x, scale * b4.y, scale * b4.z, scale * b4.w};
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int top = ((set * SET + at.image[h]) * COUT + channel) * OUT_H + at.row;
            const u32 place = (u32)top * OUT_W + at.column[h];
#pragma unroll
            for (int r = 0; r < ROWS; r++)
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    float &v = element(acc[r], h, k);
                    v = fmaf(v, scale, biases[k]);
                    if (!(flags & HAS_NOISE)) continue;
                    const u32 word = word_of(place + (k * OUT_H + r) * OUT_W, key);
                    if ((int)word >= below) v = -0.0f;
                }
        }

        // each image's sum of z^2
        float sum[IMAGES][4] = {};
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int h = 0; h < 2; h++)
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    const float v = element(acc[r], h, k);
                    if (row_inside(at.row + r) && (EVEN_COLUMNS || at.column[h] < OUT_W))
                        sum[SIDE_BY_SIDE ? h : 0][k] += v * v;
                }
        float *partial = partials + turn * PARTIAL;
#pragma unroll
        for (int i = 0; i < IMAGES; i++) {
#pragma unroll
            for (int k = 0; k < 4; k++) sum[i][k] = sum_over_columns(sum[i][k]);
            if (group == 0)
                *(float4 *)&partial[((at.image[0] + i) * PARTS + at.part) * COUT + channel] = {
                    sum[i][0], sum[i][1], sum[i][2], sum[i][3]};
        }
        const float4 g4 = *(const float4 *)&gamma[member * COUT + channel];
        const float4 c4 = *(const float4 *)&beta[member * COUT + channel];
        const float4 t4 = *(const float4 *)&tau[member * COUT + channel];
        const float q = HALF_IF_SILU;
        const float gammas[4] = {q * g4.x, q * g4.y, q * g4.z, q * g4.w};
        const float betas[4] = {q * c4.x, q * c4.y, q * c4.z, q * c4.w};
        const float taus[4] = {q * t4.x, q * t4.y, q * t4.z, q * t4.w};
        wait_groups<1>();  // for the residuals, which a thread copied itself
        // For the sums of all parts; and until nobody reads this set's images, which the next turn
        // writes over. The sums have a second buffer instead of a third barrier.
        __syncthreads();

        // FRN, residual and SiLU
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float factor[4];
            total(factor, partial, at.image[h], channel);
            for (int k = 0; k < 4; k++) factor[k] = rsqrtf(factor[k] / POSITIONS + EPS);
            const bool mine = at.part == 0 && group == 0 && (SIDE_BY_SIDE || h == 0);
            if ((flags & KEEPS) && mine && (SET == 1 || set * SET + at.image[h] < batch))
                *(float4 *)&rms[image[h] * COUT + channel] = {factor[0], factor[1], factor[2],
                                                             factor[3]};
            for (int k = 0; k < 4; k++) factor[k] *= gammas[k];
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                float u[4], add[4] = {};
                if (flags & HAS_RESIDUAL) unpack(add, own_residual[(2 * r + h) * THREADS]);
                float(&pairs)[2][4] = acc[r];
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    u[k] = fmaf(factor[k], element(pairs, h, k), betas[k]);
                    u[k] = at_least(u[k], taus[k]);
                    if (flags & HAS_RESIDUAL) u[k] = fmaf(q, add[k], u[k]);
                    if (flags & HAS_SILU) u[k] = fmaf(u[k], tanh_of(u[k]), u[k]);
                }
                if (in[h] && row_inside(at.row + r)) {
                    const size_t where = base[h] + r * OUT_W * 16;
                    *(uint2 *)&y[where] = packed(u);
                    if (flags & KEEPS)
                        *(uint2 *)&z[where] = {pack(pairs[0][2 * h], pairs[0][2 * h + 1]),
                                               pack(pairs[1][2 * h], pairs[1][2 * h + 1])};
                }
            }
        }
    }
}
