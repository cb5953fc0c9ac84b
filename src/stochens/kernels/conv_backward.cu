// With du = dy silu'(t + residual), dt = du where gamma n + beta > tau:
//   dz = gamma / rms (dt - n mean(dt n)),  dconv = dz kept / (1 - p),  dx = dconv * weights
//   dbias = sum dconv,  dgamma = sum dt n,  dbeta = sum dt,  dtau = sum (du - dt),  dresidual = du
//
// Grid and warps as in conv_forward.cu. dz has a mean over the image, so a thread goes through its
// elements twice: for dt, which waits in registers, and for dconv, which is written out and staged
// for dx.
//
// Shared memory: weights, inputs and outputs exchanged, [TAPS, OUT_BLOCKS, IN_BLOCKS, 32] uint4;
// partial sums, of dt z and at the end of the parameters' gradients; dconv of the set with its
// border of zeros; z, dy and residuals, [2 ROWS, THREADS] uint2 each, of which a thread copies and
// reads only its own.

#include "conv.hpp"

// With stride 2, the even and the odd rows and columns of dx are four convolutions: its phases.
constexpr int PHASES = STRIDE * STRIDE;
constexpr int PHASE_TAPS = STRIDE == 1 ? KERNEL : KERNEL == 1 ? 1 : 2;  // at most, each way
typedef Staged<OUT_BLOCKS, OUT_H, OUT_W, TALL + PHASE_TAPS - 1, WIDE + PHASE_TAPS - 1,
               STRIDE == 1 ? PAD : 0, 16>
    Gradient;

// silu'(u) = (1 + tanh half) / 2 (1 + half - half tanh half),  u = 2 half
DEVICE float silu_slope(float half) {
    const float tanh = tanh_of(half);
    return fmaf(0.5f, tanh, 0.5f) * (fmaf(-half, tanh, half) + 1.0f);
}

// sums [gridDim.x, 4, members, COUT], the blocks `spread` apart: of bias, gamma, beta and tau
KERNEL_OF(THREADS, BLOCKS_PER_SM)
conv_backward(const bf16 *dy, const bf16 *z, const float *rms, const bf16 *residual,
              const uint4 *weights, const float *gamma, const float *beta, const float *tau,
              bf16 *dconv, bf16 *dresidual, bf16 *dx, float *sums, int batch, int below,
              int spread) {
    SHARED
    const int thread = threadIdx.x, lane = thread % 32, group = lane / 4, quarter = lane % 4;
    const int member = blockIdx.y;
    const Place at(thread / 32, OUT_BLOCKS, group);
    const int channel = at.block * 16 + 4 * quarter;
    float *partial = (float *)(shared + FRAGMENTS);
    bf16 *staged = (bf16 *)(partial + 4 * UNITS * PARTS * COUT);
    uint2 *own_z = (uint2 *)(staged + SET * Gradient::SIZE) + thread;
    uint2 *own_dy = own_z + 2 * ROWS * THREADS, *own_residual = own_dy + 2 * ROWS * THREADS;
    if (flags & WANTS_DX)
        for (int i = thread; i < FRAGMENTS; i += THREADS)
            copy<16>(shared + i, weights + (size_t)member * FRAGMENTS + i);
    fill_zero(staged, SET * Gradient::SIZE * 2, thread, THREADS);
    const float scale = scale_of(below);
    float of_bias[4] = {}, of_gamma[4] = {}, of_beta[4] = {}, of_both[4] = {};  // both: + tau

    auto start = [&](int set, int h) {
        return ((size_t)member * batch + set * SET + at.image[h]) * IMAGE_OUT + 4 * quarter +
               ((at.block * OUT_H + at.row) * OUT_W + at.column[h]) * 16;
    };
    auto fetch = [&](int set) {  // what is not in the image has the gradient 0
        const size_t base[2] = {start(set, 0), start(set, 1)};
#pragma unroll
        for (int k = 0; k < 2 * ROWS; k++) {
            const size_t where = base[k % 2] + k / 2 * OUT_W * 16;
            if (image_inside(set * SET + at.image[k % 2], batch, at.column[k % 2]) &&
                row_inside(at.row + k / 2)) {
                copy<8>(own_z + k * THREADS, z + where);
                copy<8>(own_dy + k * THREADS, dy + where);
                if (flags & HAS_RESIDUAL) copy<8>(own_residual + k * THREADS, residual + where);
            } else {
                own_z[k * THREADS] = own_dy[k * THREADS] = {0u, 0u};
                if (flags & HAS_RESIDUAL) own_residual[k * THREADS] = {0u, 0u};
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
            in[h] = image_inside(b, batch, at.column[h]);
            base[h] = start(set, h);
            float4 r4 = {0, 0, 0, 0};
            if (SET == 1 || b < batch)
                r4 = *(const float4 *)&rms[((size_t)member * batch + b) * COUT + channel];
            inverse[h][0] = r4.x, inverse[h][1] = r4.y, inverse[h][2] = r4.z, inverse[h][3] = r4.w;
        }
        const float4 g4 = *(const float4 *)&gamma[member * COUT + channel];
        const float4 c4 = *(const float4 *)&beta[member * COUT + channel];
        const float4 t4 = *(const float4 *)&tau[member * COUT + channel];
        const float q = HALF_IF_SILU;
        const float gammas[4] = {g4.x, g4.y, g4.z, g4.w};
        const float betas[4] = {q * c4.x, q * c4.y, q * c4.z, q * c4.w};
        const float taus[4] = {q * t4.x, q * t4.y, q * t4.z, q * t4.w};
        float sum[IMAGES][4] = {};  // of dt z
        uint2 kept[ROWS][2], dt[ROWS][2];  // packed: they wait in registers for the mean
        wait_groups<0>();  // no barrier: a thread reads what it copied itself
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                kept[r][h] = own_z[(2 * r + h) * THREADS];
                float v[4], du[4], d[4], add[4] = {};
                unpack(v, kept[r][h]);
                unpack(du, own_dy[(2 * r + h) * THREADS]);
                if (flags & HAS_RESIDUAL) unpack(add, own_residual[(2 * r + h) * THREADS]);
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    const float above = fmaf(q * gammas[k] * inverse[h][k], v[k], betas[k]);
                    if (flags & HAS_SILU) {
                        float half = at_least(above, taus[k]);
                        if (flags & HAS_RESIDUAL) half = fmaf(0.5f, add[k], half);
                        du[k] *= silu_slope(half);
                    }
                    d[k] = above > taus[k] ? du[k] : 0.0f;
                    sum[SIDE_BY_SIDE ? h : 0][k] += d[k] * v[k];
                    of_beta[k] += d[k];
                    of_both[k] += du[k];
                }
                dt[r][h] = {pack(d[0], d[1]), pack(d[2], d[3])};
                if ((flags & HAS_RESIDUAL) && in[h] && row_inside(at.row + r))
                    *(uint2 *)&dresidual[base[h] + r * OUT_W * 16] = {pack(du[0], du[1]),
                                                                    pack(du[2], du[3])};
            }
#pragma unroll
        for (int i = 0; i < IMAGES; i++) {
#pragma unroll
            for (int k = 0; k < 4; k++) {
                of_gamma[k] += sum[i][k] * inverse[i][k];
                sum[i][k] = sum_over_columns(sum[i][k]);
            }
            if (group == 0)
                *(float4 *)&partial[((at.image[0] + i) * PARTS + at.part) * COUT + channel] = {
                    sum[i][0], sum[i][1], sum[i][2], sum[i][3]};
        }
        // For the sums of all parts (at first, of the weights and zeros, too), and until nobody
        // reads dconv of the set before, for its dx.
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
            bf16 *to = staged + at.image[h] * Gradient::SIZE + at.block * Gradient::BLOCK +
                       ((at.row + Gradient::FROM) * Gradient::WIDTH + column) * 16 +
                       Gradient::half_at(column, quarter / 2) + quarter % 2 * 4;
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
                *(uint2 *)&dconv[base[h] + r * OUT_W * 16] = both;
                *(uint2 *)&to[r * Gradient::WIDTH * 16] = both;
            }
        }
        __syncthreads();  // for all of dconv, and until nobody reads the partial sums

        // dx: the warps share it out anew, by blocks of inputs instead of outputs and by phases
        if (flags & WANTS_DX) {
            constexpr bool EVEN_IN = EVEN_ROWS && H % STRIDE == 0;
            for (int item = thread / 32; item < UNITS * PARTS * IN_BLOCKS * PHASES; item += WARPS) {
                const int phase = item % PHASES, py = phase / STRIDE, px = phase % STRIDE;
                const Place to(item / PHASES, IN_BLOCKS, group);
                bf16 *p[2];
                bool there[2];
                float acc[ROWS][2][4];
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    const int b = set * SET + to.image[h], column = STRIDE * to.column[h] + px;
                    there[h] = (SET == 1 || b < batch) &&
                               ((EVEN_COLUMNS && W % STRIDE == 0) || column < W);
                    p[h] = dx + ((size_t)member * batch + b) * IMAGE_IN + 4 * quarter +
                           ((to.block * H + STRIDE * to.row + py) * W + column) * 16;
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
                const uint4 *w = shared + to.block * 32 + lane;
                if (STRIDE == 1) {
                    convolve<Gradient, OUT_BLOCKS, IN_BLOCKS, KERNEL, TAPS_X, 1>(
                        acc, staged, to, lane, w,
                        [](int a, int b) { return (KERNEL - 1 - a) * KERNEL + KERNEL - 1 - b; });
                } else if (KERNEL == 1) {  // the other phases meet no tap
                    if (phase == 0)
                        convolve<Gradient, OUT_BLOCKS, IN_BLOCKS, 1, 1, 1>(acc, staged, to, lane, w,
                                                            [](int, int) { return 0; });
                    // An even row of x meets the middle tap (1) of dconv's row, an odd one the
                    // last (2) of that row and the first (0) of the next: 2 - 2 a. Likewise the
                    // columns; 3 times the tap of rows plus that of columns is the tap.
                } else if (py == 0 && px == 0) {
                    convolve<Gradient, OUT_BLOCKS, IN_BLOCKS, 1, 1, 1>(acc, staged, to, lane, w,
                                                        [](int, int) { return 4; });
                } else if (py == 0) {
                    convolve<Gradient, OUT_BLOCKS, IN_BLOCKS, 1, 2, 1>(acc, staged, to, lane, w,
                                                        [](int, int b) { return 5 - 2 * b; });
                } else if (px == 0) {
                    convolve<Gradient, OUT_BLOCKS, IN_BLOCKS, 2, 1, 1>(
                        acc, staged, to, lane, w, [](int a, int) { return 7 - 6 * a; });
                } else {
                    convolve<Gradient, OUT_BLOCKS, IN_BLOCKS, 2, 2, 1>(
                        acc, staged, to, lane, w,
                        [](int a, int b) { return 8 - 6 * a - 2 * b; });
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
    // The sums of this block of threads: over lanes, then over warps.
    constexpr int SHARES = UNITS * PARTS;
    __syncthreads();
#pragma unroll
    for (int q = 0; q < 4; q++) {
        float s[4];
#pragma unroll
        for (int k = 0; k < 4; k++)
            s[k] = sum_over_columns(q == 0   ? of_bias[k]
                                    : q == 1 ? of_gamma[k]
                                    : q == 2 ? of_beta[k]
                                             : of_both[k] - of_beta[k]);
        if (group == 0)
            *(float4 *)&partial[((q * UNITS + at.unit) * PARTS + at.part) * COUT + channel] = {
                s[0], s[1], s[2], s[3]};
    }
    __syncthreads();
    for (int i = thread; i < 4 * COUT; i += THREADS) {
        float s = 0;
        for (int part = 0; part < SHARES; part++)
            s += partial[(i / COUT * SHARES + part) * COUT + i % COUT];
        const size_t at_block = (size_t)blockIdx.x * spread;
        sums[at_block + (i / COUT * gridDim.y + member) * COUT + i % COUT] = s;
    }
}
