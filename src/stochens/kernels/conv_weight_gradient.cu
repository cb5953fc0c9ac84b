// dweights[tap, i, o] = sum over images and positions of x[position + tap, i] dconv[position, o]
//
// A product sums over 16 columns of a row: x, transposed, times dconv. A warp has all taps of 16
// inputs by 16 outputs in its registers and goes down a strip, so that each row of x serves three
// rows of dconv.
//
// Grid: (blocks that share a member's images, members, pairs of 16 inputs and 16 outputs / PAIRS).
// A block goes from unit to unit of images, gridDim.x apart. Its CREW of warps is PAIRS by SPLITS,
// which share out a unit's tasks: its strips, in CUTS where they are too few.
//
// Shared memory: two buffers, in turn, of a unit's x and dconv; at the end, the warps' sums.

#include "conv.hpp"

constexpr int CREW = 16, CREW_THREADS = 32 * CREW, SPLITS = CREW / PAIRS;
constexpr int CUTS = SPLITS > STRIPS ? SPLITS / STRIPS : 1;
constexpr int CUT_ROWS = (OUT_H + CUTS - 1) / CUTS, TALLEST = CUTS * CUT_ROWS;
constexpr int TILE = 16 * 16 * TAPS;  // sums of a warp
typedef Inputs<TALLEST> Left;
typedef Staged<OUT_BLOCKS, OUT_H, OUT_W, TALLEST + 2, WIDE + 1, 1, 16> Right;  // zeros above, below
constexpr int BUFFER = IMAGES * (Left::SIZE + Right::SIZE);  // all of Left, then all of Right

// out [gridDim.x, members, COUT, 16 IN_BLOCKS, TAPS], the blocks `spread` apart
KERNEL_OF(CREW_THREADS, 1)
conv_weight_gradient(const bf16 *x, const bf16 *dconv, float *out, int batch, int spread) {
    SHARED
    bf16 *staged = (bf16 *)shared;
    const int thread = threadIdx.x, lane = thread % 32, group = lane / 4, quarter = lane % 4;
    const int warp = thread / 32, member = blockIdx.y;
    const int pair = blockIdx.z * PAIRS + warp % PAIRS;
    const int in_block = pair % IN_BLOCKS, out_block = pair / IN_BLOCKS;
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
    fill_zero(staged, 2 * BUFFER * 2, thread, CREW_THREADS);
    __syncthreads();  // no zero comes to stand on a pixel
    fetch(blockIdx.x, staged);
    end_group();
    float acc[TAPS][2][4] = {};
    int turn = 0;
    for (int unit = blockIdx.x; unit < units; unit += gridDim.x, turn ^= 1) {
        fetch(unit + gridDim.x, staged + (turn ^ 1) * BUFFER);
        end_group();
        wait_groups<1>();  // for this unit; the next is on its way
        __syncthreads();   // for what the other threads copied of it
        for (int task = warp / PAIRS; task < STRIPS * CUTS; task += SPLITS) {
            const int first = task / STRIPS * CUT_ROWS, strip = task % STRIPS * 16;
            const bf16 *base = staged + turn * BUFFER, *left[TAPS_X], *quads[4];
            // The 16 columns of a strip, or 8 of each of a pair, are what a product sums over: this
            // lane tells where two of them are, one of each operand.
            const int of_left = lane % 8 + 8 * (lane / 16), of_right = lane % 16;
#pragma unroll
            for (int tap = 0; tap < TAPS_X; tap++) {
                const int column = STRIDE * (SIDE_BY_SIDE ? of_left % 8 : strip + of_left) + tap;
                left[tap] = base + (SIDE_BY_SIDE ? of_left / 8 : 0) * Left::SIZE +
                            in_block * Left::BLOCK +
                            (STRIDE * first * Left::WIDTH + column) * 16 +
                            Left::half_at(column, lane / 8 % 2);
            }
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int column = 2 * quarter + i % 2 + (SIDE_BY_SIDE ? 0 : strip + 8 * (i / 2));
                quads[i] = base + (SIDE_BY_SIDE ? i / 2 : 0) * Left::SIZE +
                           (first * Left::WIDTH + column) * 4 + 2 * group;
            }
            const int column = (SIDE_BY_SIDE ? of_right % 8 : strip + of_right) + 1;
            const bf16 *right = base + IMAGES * Left::SIZE + out_block * Right::BLOCK +
                                (SIDE_BY_SIDE ? of_right / 8 : 0) * Right::SIZE +
                                ((first + 1) * Right::WIDTH + column) * 16 +
                                Right::half_at(column, lane / 16);
            auto gradient_row = [&](u32(&to)[4], int row) {
                load_transposed(to, right + row * Right::WIDTH * 16);
            };
            auto input_row = [&](u32(&to)[4], int row, int tap) {
                if (!QUAD) return load_transposed(to, left[tap] + row * Left::WIDTH * 16);
                u32 v[4];
#pragma unroll
                for (int i = 0; i < 4; i++) v[i] = *(const u32 *)(quads[i] + row * Left::WIDTH * 4);
                to[0] = lows(v[0], v[1]), to[1] = highs(v[0], v[1]);
                to[2] = lows(v[2], v[3]), to[3] = highs(v[2], v[3]);
            };
            // With stride 1, three rows of dconv stay in registers and move on by one; otherwise
            // each row of dconv meets all its rows of x.
            u32 a[4];
            if (STRIDE == 1 && KERNEL == 3) {
                u32 d[3][4];  // dconv of the rows before, at and after this one of x
                gradient_row(d[0], -1);
                gradient_row(d[1], 0);
#pragma unroll 2
                for (int row = 0; row < CUT_ROWS; row++) {
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
                for (int row = 0; row < CUT_ROWS; row++) {
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
        __syncthreads();  // until nobody reads this buffer, which the next turn fills
    }
    wait_groups<0>();
    __syncthreads();  // no copy is on its way to where the sums go
    float *tiles = (float *)shared;  // [SPLITS, PAIRS, TILE]
#pragma unroll
    for (int tap = 0; tap < TAPS; tap++)
#pragma unroll
        for (int j = 0; j < 2; j++)
#pragma unroll
            for (int q = 0; q < 4; q++) {
                const int i = QUAD ? 2 * group + q / 2 : group + 8 * (q / 2);
                const int o = 8 * j + 2 * quarter + q % 2;
                tiles[warp * TILE + (o * 16 + i) * TAPS + tap] = acc[tap][j][q];
            }
    __syncthreads();
    out += (size_t)blockIdx.x * spread + (size_t)member * COUT * IN_BLOCKS * 16 * TAPS;
    for (int i = thread; i < PAIRS * TILE; i += CREW_THREADS) {
        float s = 0;
#pragma unroll
        for (int split = 0; split < SPLITS; split++) s += tiles[split * PAIRS * TILE + i];
        const int own = blockIdx.z * PAIRS + i / TILE, o = i % TILE / (16 * TAPS);
        out[((own / IN_BLOCKS * 16 + o) * IN_BLOCKS + own % IN_BLOCKS) * 16 * TAPS +
            i % (16 * TAPS)] = s;
    }
}
