#include "conv.hpp"

// Philox 4x32 with 7 rounds (Salmon et al. 2011, the fewest that pass every test of TestU01).
DEVICE uint4 philox(u32 c0, u32 c1, u32 c2, u32 c3, u64 seed) {
    u32 k0 = (u32)seed, k1 = (u32)(seed >> 32);
#pragma unroll
    for (int round = 0; round < 7; round++) {
        u64 a = (u64)0xD2511F53u * c0, b = (u64)0xCD9E8D57u * c2;
        c0 = (u32)(b >> 32) ^ c1 ^ k0, c1 = (u32)b;
        c2 = (u32)(a >> 32) ^ c3 ^ k1, c3 = (u32)a;
        k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    return {c0, c1, c2, c3};
}

// z = (conv(x) + bias) * kept / (1 - p),  n = z / rms(z),  t = max(gamma n + beta, tau),
// y = silu(t + residual).   A dropped z is kept as -0, which no other z is: that is the mask.
// Shared memory: weights, sums of parts, two sets of images, each thread's own residuals.
KERNEL_OF(THREADS, BLOCKS)
conv_forward(const bf16 *x, const uint4 *weights, const float *bias, const float *gamma,
             const float *beta, const float *tau, const bf16 *residual, const u64 *seed,
             const int *members, bf16 *z, bf16 *y, float *rms, int batch, int layer,
             int threshold) {
    SHARED
    const int thread = threadIdx.x, lane = thread % 32, g = lane / 4, t = lane % 4;
    const int member = blockIdx.y;
    const Place at(thread / 32, NB, g);
    const int channel = at.n * 16 + 4 * t;
    float *partial = (float *)(shared + FRAGMENTS);
    bf16 *staged = (bf16 *)(partial + 2 * PARTIAL);
    uint2 *adds = (uint2 *)(staged + 2 * SET * Source::SIZE) + thread;
    for (int i = thread; i < FRAGMENTS; i += THREADS)
        copy<16>(shared + i, weights + (size_t)member * FRAGMENTS + i);
    fill_zero(staged, 2 * SET * Source::SIZE * 2, thread, THREADS);
    const float scale = 65536.0f / (65536 - threshold);
    const u64 key = *seed;
    const u32 id = members[member];
    __syncthreads();

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
            in[h] = inside(b, batch, at.column[h]);
            image[h] = (size_t)member * batch + b;
            base[h] = image[h] * IMAGE_OUT + 4 * t +
                      ((at.n * HO + at.row) * WO + at.column[h]) * 16;
        }
        if (flags & HAS_RESIDUAL)
#pragma unroll
            for (int k = 0; k < 2 * ROWS; k++)
                if (in[k % 2] && row_inside(at.row + k / 2))
                    copy<8>(adds + k * THREADS, residual + base[k % 2] + k / 2 * WO * 16);
        end_group();
        fetch(set + gridDim.x, staged + (turn ^ 1) * SET * Source::SIZE);
        end_group();
        wait_groups<2>();
        __syncthreads();
        float acc[ROWS][2][4] = {};
        convolve<Source, KB, NB, KERNEL, TAPS_X, STRIDE>(
            acc, staged + turn * SET * Source::SIZE, at, lane, shared + at.n * 32 + lane,
            [](int a, int b) { return a * TAPS_X + b; });

        const float4 b4 = *(const float4 *)&bias[member * COUT + channel];
        const float biases[4] = {scale * b4.x, scale * b4.y, scale * b4.z, scale * b4.w};
#pragma unroll
        for (int r = 0; r < ROWS; r += 2)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int place = ((at.row + r) / 2 * WO + at.column[h]) * (COUT / 4);
                uint4 bits = {0u, 0u, 0u, 0u};
                if (flags & HAS_NOISE)
                    bits = philox(place + channel / 4, set * SET + at.image[h], id, layer, key);
                const u32 words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
                for (int k = 0; k < 8; k++) {
                    const u32 own = k % 2 ? words[k / 2] >> 16 : words[k / 2] & 0xffffu;
                    float &v = acc[r + k / 4][k / 2 % 2][2 * h + k % 2];
                    v = fmaf(v, scale, biases[k % 4]);
                    if ((flags & HAS_NOISE) && own < (u32)threshold) v = -0.0f;
                }
            }
        float sum[IMAGES][4] = {};
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int h = 0; h < 2; h++)
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    const float v = acc[r][k / 2][2 * h + k % 2];
                    if (row_inside(at.row + r) && (EVEN_COLUMNS || at.column[h] < WO))
                        sum[PAIR ? h : 0][k] += v * v;
                }
        float *own = partial + turn * PARTIAL;
#pragma unroll
        for (int i = 0; i < IMAGES; i++) {
#pragma unroll
            for (int k = 0; k < 4; k++) sum[i][k] = sum_over_rows(sum[i][k]);
            if (g == 0)
                *(float4 *)&own[((at.image[0] + i) * PARTS + at.part) * COUT + channel] = {
                    sum[i][0], sum[i][1], sum[i][2], sum[i][3]};
        }
        const float4 g4 = *(const float4 *)&gamma[member * COUT + channel];
        const float4 c4 = *(const float4 *)&beta[member * COUT + channel];
        const float4 t4 = *(const float4 *)&tau[member * COUT + channel];
        const float q = half_if_silu();
        const float gammas[4] = {q * g4.x, q * g4.y, q * g4.z, q * g4.w};
        const float betas[4] = {q * c4.x, q * c4.y, q * c4.z, q * c4.w};
        const float taus[4] = {q * t4.x, q * t4.y, q * t4.z, q * t4.w};
        wait_groups<1>();
        __syncthreads();
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float factor[4];
            total(factor, own, at.image[h], channel);
            for (int k = 0; k < 4; k++) factor[k] = rsqrtf(factor[k] / POSITIONS + EPS);
            const bool mine = at.part == 0 && g == 0 && (PAIR || h == 0);
            if ((flags & KEEPS) && mine && (SET == 1 || set * SET + at.image[h] < batch))
                *(float4 *)&rms[image[h] * COUT + channel] = {factor[0], factor[1], factor[2],
                                                             factor[3]};
            for (int k = 0; k < 4; k++) factor[k] *= gammas[k];
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                float u[4], add[4] = {};
                if (flags & HAS_RESIDUAL) unpack(add, adds[(2 * r + h) * THREADS]);
                float(&pairs)[2][4] = acc[r];
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    u[k] = fmaf(factor[k], pairs[k / 2][2 * h + k % 2], betas[k]);
                    u[k] = at_least(u[k], taus[k]);
                    if (flags & HAS_RESIDUAL) u[k] = fmaf(q, add[k], u[k]);
                    if (flags & HAS_SILU) u[k] = fmaf(u[k], tanh_of(u[k]), u[k]);
                }
                if (in[h] && row_inside(at.row + r)) {
                    const size_t where = base[h] + r * WO * 16;
                    *(uint2 *)&y[where] = {pack(u[0], u[1]), pack(u[2], u[3])};
                    if (flags & KEEPS)
                        *(uint2 *)&z[where] = {pack(pairs[0][2 * h], pairs[0][2 * h + 1]),
                                               pack(pairs[1][2 * h], pairs[1][2 * h + 1])};
                }
            }
        }
    }
}
