#include "conv.hpp"

// dweights[tap, i, o] = sum over images and positions of x[position + tap, i] dconv[position, o]
// A product sums over 16 columns of a row; a warp has all taps of 16 inputs by 16 outputs in its
// registers and goes down a strip, so that each row of x serves three rows of dconv.
// Shared memory: two sets of x and dconv; at the end, the warps' sums.
constexpr int CREW = 16, CREW_THREADS = 32 * CREW;  // warps of a block
constexpr int SPLITS = CREW / PAIRS;  // PAIRS of (inputs, outputs), by SPLITS of a unit
constexpr int TILE = 256 * TAPS;
constexpr int CUTS = SPLITS > STRIPS ? SPLITS / STRIPS : 1, CUT = (HO + CUTS - 1) / CUTS;  // rows
typedef Staged<KB, H, W, STRIDE *(CUT *CUTS - 1) + KERNEL, STRIDE *(WIDE - 1) + (QUAD ? 4 : KERNEL),
               PAD, QUAD ? 4 : 16>
    Left;
typedef Staged<NB, HO, WO, CUT * CUTS + 2, WIDE + 1, 1, 16> Right;  // a row of zeros at both ends

KERNEL_OF(CREW_THREADS, 1)
conv_weight_gradient(const bf16 *x, const bf16 *dconv, float *out, int batch, int spread) {
    SHARED
    constexpr int BOTH = IMAGES * (Left::SIZE + Right::SIZE);
    bf16 *staged = (bf16 *)shared;
    const int thread = threadIdx.x, lane = thread % 32, g = lane / 4, t = lane % 4;
    const int warp = thread / 32, member = blockIdx.y;
    const int pair = blockIdx.z * PAIRS + warp % PAIRS, in = pair % KB, n = pair / KB;
    const int units = (batch + IMAGES - 1) / IMAGES;
    auto fetch = [&](int unit, bf16 *to) {
        for (int i = 0; i < IMAGES; i++) {
            const int b = unit * IMAGES + i;
            const size_t image = (size_t)member * batch + b;
            bf16 *left = to + i * Left::SIZE, *right = to + IMAGES * Left::SIZE + i * Right::SIZE;
            if (b < batch) {
                const bf16 *from = x + (flags & SHARED_X ? (size_t)b : image) * IMAGE_IN;
                Left::fetch(left, from, thread, CREW_THREADS);
                Right::fetch(right, dconv + image * IMAGE_OUT, thread, CREW_THREADS);
            } else if (unit < units) {  // the second of the last pair is not there
                fill_zero(right, Right::SIZE * 2, thread, CREW_THREADS);
            }
        }
    };
    fill_zero(staged, 2 * BOTH * 2, thread, CREW_THREADS);
    __syncthreads();
    fetch(blockIdx.x, staged);
    end_group();
    float acc[TAPS][2][4] = {};
    int turn = 0;
    for (int unit = blockIdx.x; unit < units; unit += gridDim.x, turn ^= 1) {
        fetch(unit + gridDim.x, staged + (turn ^ 1) * BOTH);
        end_group();
        wait_groups<1>();
        __syncthreads();
        for (int task = warp / PAIRS; task < STRIPS * CUTS; task += SPLITS) {
            const int first = task / STRIPS * CUT, strip = task % STRIPS * 16;
            const bf16 *base = staged + turn * BOTH, *left[TAPS_X], *quads[4];
            // The 16 columns of a strip, or 8 of each of a pair, are what a product sums over: this
            // lane tells where two of them are, one of each operand.
            const int of_left = lane % 8 + 8 * (lane / 16), of_right = lane % 16;
#pragma unroll
            for (int tap = 0; tap < TAPS_X; tap++) {
                const int c = STRIDE * (PAIR ? of_left % 8 : strip + of_left) + tap;
                left[tap] = base + (PAIR ? of_left / 8 : 0) * Left::SIZE + in * Left::BLOCK +
                            (STRIDE * first * Left::PW + c) * 16 + Left::half_at(c, lane / 8 % 2);
            }
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int c = 2 * t + i % 2 + (PAIR ? 0 : strip + 8 * (i / 2));
                quads[i] = base + (PAIR ? i / 2 : 0) * Left::SIZE +
                           (first * Left::PW + c) * 4 + 2 * g;
            }
            const int c = (PAIR ? of_right % 8 : strip + of_right) + 1;
            const bf16 *right = base + IMAGES * Left::SIZE + n * Right::BLOCK +
                                (PAIR ? of_right / 8 : 0) * Right::SIZE +
                                ((first + 1) * Right::PW + c) * 16 + Right::half_at(c, lane / 16);
            auto gradient_row = [&](u32(&to)[4], int row) {
                load_transposed(to, right + row * Right::PW * 16);
            };
            auto input_row = [&](u32(&to)[4], int row, int tap) {
                if (!QUAD) return load_transposed(to, left[tap] + row * Left::PW * 16);
                u32 v[4];
#pragma unroll
                for (int i = 0; i < 4; i++) v[i] = *(const u32 *)(quads[i] + row * Left::PW * 4);
                to[0] = lows(v[0], v[1]), to[1] = highs(v[0], v[1]);
                to[2] = lows(v[2], v[3]), to[3] = highs(v[2], v[3]);
            };
            u32 a[4];
            if (STRIDE == 1 && KERNEL == 3) {
                u32 d[3][4];  // dconv of the rows before, at and after this one of x
                gradient_row(d[0], -1);
                gradient_row(d[1], 0);
#pragma unroll 2
                for (int row = 0; row < CUT; row++) {
                    gradient_row(d[2], row + 1);
#pragma unroll
                    for (int tap = 0; tap < TAPS_X; tap++) {
                        input_row(a, row + 1, tap);
#pragma unroll
                        for (int dy = 0; dy < 3; dy++) {
                            mma(acc[dy * TAPS_X + tap][0], a, d[2 - dy][0], d[2 - dy][1]);
                            mma(acc[dy * TAPS_X + tap][1], a, d[2 - dy][2], d[2 - dy][3]);
                        }
                    }
#pragma unroll
                    for (int i = 0; i < 4; i++) d[0][i] = d[1][i], d[1][i] = d[2][i];
                }
            } else {
                u32 d[4];
#pragma unroll 1
                for (int row = 0; row < CUT; row++) {
                    gradient_row(d, row);
#pragma unroll
                    for (int tap = 0; tap < TAPS; tap++) {
                        input_row(a, STRIDE * row + tap / TAPS_X, tap % TAPS_X);
                        mma(acc[tap][0], a, d[0], d[1]);
                        mma(acc[tap][1], a, d[2], d[3]);
                    }
                }
            }
        }
        __syncthreads();
    }
    wait_groups<0>();
    __syncthreads();
    float *stage = (float *)shared;  // [CREW, TILE]
#pragma unroll
    for (int tap = 0; tap < TAPS; tap++)
#pragma unroll
        for (int j = 0; j < 2; j++)
#pragma unroll
            for (int q = 0; q < 4; q++) {
                const int i = QUAD ? 2 * g + q / 2 : g + 8 * (q / 2), o = 8 * j + 2 * t + q % 2;
                stage[warp * TILE + (o * 16 + i) * TAPS + tap] = acc[tap][j][q];
            }
    __syncthreads();
    // out [blocks, M, COUT, 16 KB, TAPS], the blocks `spread` apart
    out += (size_t)blockIdx.x * spread + (size_t)member * COUT * KB * 16 * TAPS;
    for (int i = thread; i < PAIRS * TILE; i += CREW_THREADS) {
        float s = 0;
#pragma unroll
        for (int split = 0; split < SPLITS; split++) s += stage[split * PAIRS * TILE + i];
        const int which = blockIdx.z * PAIRS + i / TILE, o = i % TILE / (16 * TAPS);
        out[((which / KB * 16 + o) * KB + which % KB) * 16 * TAPS + i % (16 * TAPS)] = s;
    }
}
