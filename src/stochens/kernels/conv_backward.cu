#include "conv.hpp"

constexpr int BACK = STRIDE == 1 ? KERNEL : KERNEL == 1 ? 1 : 2;  // taps of a phase of dx, each way
typedef Staged<NB, HO, WO, TALL + BACK - 1, WIDE + BACK - 1, STRIDE == 1 ? PAD : 0, 16> Gradient;

// With du = dy silu'(t + residual), dt = du where gamma n + beta > tau:
//   dz = gamma / rms (dt - n mean(dt n)),  dconv = dz kept / (1 - p),  dx = dconv * weights
//   dbias = sum dconv,  dgamma = sum dt n,  dbeta = sum dt,  dtau = sum (du - dt),  dresidual = du
// Shared memory: weights, sums of parts, dconv of a set of images, each thread's own z, dy and
// residuals of the next set.
KERNEL_OF(THREADS, BLOCKS)
conv_backward(const bf16 *dy, const bf16 *z, const float *rms, const bf16 *residual,
              const uint4 *weights, const float *gamma, const float *beta, const float *tau,
              bf16 *dconv, bf16 *dresidual, bf16 *dx, float *sums, int batch, int threshold,
              int spread) {
    SHARED
    const int thread = threadIdx.x, lane = thread % 32, g = lane / 4, t = lane % 4;
    const int member = blockIdx.y;
    const Place at(thread / 32, NB, g);
    const int channel = at.n * 16 + 4 * t;
    float *partial = (float *)(shared + FRAGMENTS);
    bf16 *staged = (bf16 *)(partial + 4 * UNITS * PARTS * COUT);
    uint2 *own_z = (uint2 *)(staged + SET * Gradient::SIZE) + thread;
    uint2 *own_dy = own_z + 2 * ROWS * THREADS, *adds = own_dy + 2 * ROWS * THREADS;
    if (flags & WANTS_DX)
        for (int i = thread; i < FRAGMENTS; i += THREADS)
            copy<16>(shared + i, weights + (size_t)member * FRAGMENTS + i);
    fill_zero(staged, SET * Gradient::SIZE * 2, thread, THREADS);
    const float scale = 65536.0f / (65536 - threshold);
    float of_bias[4] = {}, of_gamma[4] = {}, of_beta[4] = {}, of_both[4] = {};  // beta and tau

    auto start = [&](int set, int h) {
        return ((size_t)member * batch + set * SET + at.image[h]) * IMAGE_OUT + 4 * t +
               ((at.n * HO + at.row) * WO + at.column[h]) * 16;
    };
    auto fetch = [&](int set) {  // what is not in the image has the gradient 0
        const size_t base[2] = {start(set, 0), start(set, 1)};
#pragma unroll
        for (int k = 0; k < 2 * ROWS; k++) {
            const size_t where = base[k % 2] + k / 2 * WO * 16;
            if (inside(set * SET + at.image[k % 2], batch, at.column[k % 2]) &&
                row_inside(at.row + k / 2)) {
                copy<8>(own_z + k * THREADS, z + where);
                copy<8>(own_dy + k * THREADS, dy + where);
                if (flags & HAS_RESIDUAL) copy<8>(adds + k * THREADS, residual + where);
            } else {
                own_z[k * THREADS] = own_dy[k * THREADS] = {0u, 0u};
                if (flags & HAS_RESIDUAL) adds[k * THREADS] = {0u, 0u};
            }
        }
    };
    fetch(blockIdx.x);
    end_group();
    for (int set = blockIdx.x; set * SET < batch; set += gridDim.x) {
        bool in[2];
        size_t base[2];
        float inverse[2][4];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int b = set * SET + at.image[h];
            in[h] = inside(b, batch, at.column[h]);
            base[h] = start(set, h);
            float4 r4 = {0, 0, 0, 0};
            if (SET == 1 || b < batch)
                r4 = *(const float4 *)&rms[((size_t)member * batch + b) * COUT + channel];
            inverse[h][0] = r4.x, inverse[h][1] = r4.y, inverse[h][2] = r4.z, inverse[h][3] = r4.w;
        }
        const float4 g4 = *(const float4 *)&gamma[member * COUT + channel];
        const float4 c4 = *(const float4 *)&beta[member * COUT + channel];
        const float4 t4 = *(const float4 *)&tau[member * COUT + channel];
        const float q = half_if_silu();
        const float gammas[4] = {g4.x, g4.y, g4.z, g4.w};
        const float betas[4] = {q * c4.x, q * c4.y, q * c4.z, q * c4.w};
        const float taus[4] = {q * t4.x, q * t4.y, q * t4.z, q * t4.w};
        float sum[IMAGES][4] = {};  // of dt z
        uint2 kept[ROWS][2], dt[ROWS][2];  // packed: they wait in registers for the mean
        wait_groups<0>();
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                kept[r][h] = own_z[(2 * r + h) * THREADS];
                float v[4], du[4], d[4], add[4] = {};
                unpack(v, kept[r][h]);
                unpack(du, own_dy[(2 * r + h) * THREADS]);
                if (flags & HAS_RESIDUAL) unpack(add, adds[(2 * r + h) * THREADS]);
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    const float above = fmaf(q * gammas[k] * inverse[h][k], v[k], betas[k]);
                    if (flags & HAS_SILU) {  // silu'(u) = (1 + tanh h) / 2 (1 + h - h tanh h)
                        float half = at_least(above, taus[k]);
                        if (flags & HAS_RESIDUAL) half = fmaf(0.5f, add[k], half);
                        const float tanh = tanh_of(half);
                        du[k] *= fmaf(0.5f, tanh, 0.5f) * (fmaf(-half, tanh, half) + 1.0f);
                    }
                    d[k] = above > taus[k] ? du[k] : 0.0f;
                    sum[PAIR ? h : 0][k] += d[k] * v[k];
                    of_beta[k] += d[k];
                    of_both[k] += du[k];
                }
                dt[r][h] = {pack(d[0], d[1]), pack(d[2], d[3])};
                if ((flags & HAS_RESIDUAL) && in[h] && row_inside(at.row + r))
                    *(uint2 *)&dresidual[base[h] + r * WO * 16] = {pack(du[0], du[1]),
                                                                  pack(du[2], du[3])};
            }
#pragma unroll
        for (int i = 0; i < IMAGES; i++) {
#pragma unroll
            for (int k = 0; k < 4; k++) {
                of_gamma[k] += sum[i][k] * inverse[i][k];
                sum[i][k] = sum_over_rows(sum[i][k]);
            }
            if (g == 0)
                *(float4 *)&partial[((at.image[0] + i) * PARTS + at.part) * COUT + channel] = {
                    sum[i][0], sum[i][1], sum[i][2], sum[i][3]};
        }
        __syncthreads();
        if ((set + gridDim.x) * SET < batch) fetch(set + gridDim.x);
        end_group();
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float of_dt[4], of_z[4];  // dconv = of_dt dt - of_z z
            total(of_z, partial, at.image[h], channel);
            for (int k = 0; k < 4; k++) {
                of_dt[k] = scale * gammas[k] * inverse[h][k];
                of_z[k] *= of_dt[k] * inverse[h][k] * inverse[h][k] / POSITIONS;
            }
            const int column = at.column[h] + Gradient::FROM;
            bf16 *to = staged + at.image[h] * Gradient::SIZE + at.n * Gradient::BLOCK +
                       ((at.row + Gradient::FROM) * Gradient::PW + column) * 16 +
                       Gradient::half_at(column, t / 2) + t % 2 * 4;
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                float v[4], d[4];
                unpack(v, kept[r][h]);
                unpack(d, dt[r][h]);
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    d[k] = fmaf(of_dt[k], d[k], -of_z[k] * v[k]);
                    if ((flags & HAS_NOISE) && __float_as_uint(v[k]) == 0x80000000u) d[k] = 0.0f;
                    of_bias[k] += d[k];
                }
                if (!in[h] || !row_inside(at.row + r)) continue;
                const uint2 both = {pack(d[0], d[1]), pack(d[2], d[3])};
                *(uint2 *)&dconv[base[h] + r * WO * 16] = both;
                *(uint2 *)&to[r * Gradient::PW * 16] = both;
            }
        }
        __syncthreads();
        if (flags & WANTS_DX) {
            constexpr bool EVEN_IN = EVEN_ROWS && H % STRIDE == 0;
            constexpr int PHASES = STRIDE * STRIDE;  // even and odd rows and columns of dx
            for (int item = thread / 32; item < UNITS * PARTS * KB * PHASES; item += WARPS) {
                const int phase = item % PHASES, py = phase / STRIDE, px = phase % STRIDE;
                const Place to(item / PHASES, KB, g);
                bf16 *p[2];
                bool there[2];
                float acc[ROWS][2][4];
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    const int b = set * SET + to.image[h], column = STRIDE * to.column[h] + px;
                    there[h] = (SET == 1 || b < batch) &&
                               ((EVEN_COLUMNS && W % STRIDE == 0) || column < W);
                    p[h] = dx + ((size_t)member * batch + b) * IMAGE_IN + 4 * t +
                           ((to.n * H + STRIDE * to.row + py) * W + column) * 16;
#pragma unroll
                    for (int r = 0; r < ROWS; r++) {
                        const bool adds_it = (flags & ADDS_DX) && there[h] &&
                                             (EVEN_IN || STRIDE * (to.row + r) + py < H);
                        uint2 v = {0u, 0u};
                        if (adds_it) v = *(const uint2 *)(p[h] + r * STRIDE * W * 16);
                        acc[r][0][2 * h] = low(v.x), acc[r][0][2 * h + 1] = high(v.x);
                        acc[r][1][2 * h] = low(v.y), acc[r][1][2 * h + 1] = high(v.y);
                    }
                }
                const uint4 *w = shared + to.n * 32 + lane;
                if (STRIDE == 1) {
                    convolve<Gradient, NB, KB, KERNEL, TAPS_X, 1>(
                        acc, staged, to, lane, w,
                        [](int a, int b) { return (KERNEL - 1 - a) * KERNEL + KERNEL - 1 - b; });
                } else if (KERNEL == 1) {
                    if (phase == 0)
                        convolve<Gradient, NB, KB, 1, 1, 1>(acc, staged, to, lane, w,
                                                            [](int, int) { return 0; });
                } else if (py == 0 && px == 0) {
                    convolve<Gradient, NB, KB, 1, 1, 1>(acc, staged, to, lane, w,
                                                        [](int, int) { return 4; });
                } else if (py == 0) {
                    convolve<Gradient, NB, KB, 1, 2, 1>(acc, staged, to, lane, w,
                                                        [](int, int b) { return 5 - 2 * b; });
                } else if (px == 0) {
                    convolve<Gradient, NB, KB, 2, 1, 1>(acc, staged, to, lane, w,
                                                        [](int a, int) { return 7 - 6 * a; });
                } else {
                    convolve<Gradient, NB, KB, 2, 2, 1>(
                        acc, staged, to, lane, w, [](int a, int b) { return 8 - 6 * a - 2 * b; });
                }
#pragma unroll
                for (int r = 0; r < ROWS; r++)
#pragma unroll
                    for (int h = 0; h < 2; h++)
                        if (there[h] && (EVEN_IN || STRIDE * (to.row + r) + py < H))
                            *(uint2 *)(p[h] + r * STRIDE * W * 16) = {
                                pack(acc[r][0][2 * h], acc[r][0][2 * h + 1]),
                                pack(acc[r][1][2 * h], acc[r][1][2 * h + 1])};
            }
        }
    }
    // sums [blocks, 4, M, COUT], the blocks `spread` apart: of the bias, gamma, beta and tau
    constexpr int MANY = UNITS * PARTS;
    __syncthreads();
#pragma unroll
    for (int q = 0; q < 4; q++) {
        float s[4];
#pragma unroll
        for (int k = 0; k < 4; k++)
            s[k] = sum_over_rows(q == 0   ? of_bias[k]
                                 : q == 1 ? of_gamma[k]
                                 : q == 2 ? of_beta[k]
                                          : of_both[k] - of_beta[k]);
        if (g == 0)
            *(float4 *)&partial[((q * UNITS + at.unit) * PARTS + at.part) * COUT + channel] = {
                s[0], s[1], s[2], s[3]};
    }
    __syncthreads();
    for (int i = thread; i < 4 * COUT; i += THREADS) {
        float s = 0;
        for (int part = 0; part < MANY; part++)
            s += partial[(i / COUT * MANY + part) * COUT + i % COUT];
        const size_t at_block = (size_t)blockIdx.x * spread;
        sums[at_block + (i / COUT * gridDim.y + member) * COUT + i % COUT] = s;
    }
}
