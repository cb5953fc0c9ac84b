// What the kernels conv_*.cu share: convolution, noise, FRN and SiLU of many members' images,
// forwards and backwards. Each is compiled for one layer: CIN (4, or a multiple of 16), COUT (a
// multiple of 16), H, W, STRIDE, KERNEL (3 or 1), FLAGS, and for how its work is shared out
// (conv_plan.py): ROWS, UNITS, BLOCKS_PER_SM, PAIRS.
//
// Activations are bf16 [member, image, channels / 16, row, column, 16]: in blocks of 16 channels,
// so that neighbouring columns are neighbours in memory whatever the number of channels. The first
// layer's images are [member, image, row, column, 4], the fourth channel 0.
//
// A convolution is a sum of products of the tensor cores, 16 columns of a row by 16 inputs times
// 16 inputs by 16 outputs. A warp keeps ROWS rows of 16 columns by 16 outputs in registers, so each
// input that it loads serves up to 3 rows. Where an image has at most 8 columns, two images stand
// side by side. Images are copied to shared memory while the one before is worked on, with a border
// of zeros, so that the products need no care at the edges.

#include "conv_device.hpp"

enum {
    HAS_RESIDUAL = 1, HAS_SILU = 2, HAS_NOISE = 4, KEEPS = 8, SHARED_X = 16, WANTS_DX = 32,
    ADDS_DX = 64
};
constexpr int flags = FLAGS;

// The layer. QUAD: a product takes 4 columns of 4 channels instead of one column of 16.
constexpr bool QUAD = CIN == 4;
constexpr int IN_BLOCKS = QUAD ? 1 : CIN / 16, OUT_BLOCKS = COUT / 16;
constexpr int PAD = KERNEL / 2, TAPS_X = QUAD ? 1 : KERNEL, TAPS = KERNEL * TAPS_X;
constexpr int OUT_H = (H + 2 * PAD - KERNEL) / STRIDE + 1;
constexpr int OUT_W = (W + 2 * PAD - KERNEL) / STRIDE + 1;
constexpr int IMAGE_IN = CIN * H * W, IMAGE_OUT = COUT * OUT_H * OUT_W;
constexpr float EPS = 1e-6f, POSITIONS = OUT_H * OUT_W;
constexpr int FRAGMENTS = TAPS * IN_BLOCKS * OUT_BLOCKS * 32;  // uint4: weights, as lanes want them

// The warps share out units of work: one image or, where it is narrow, two SIDE_BY_SIDE. A warp has
// 16 channels of a part: ROWS rows of a strip of 16 columns (or 8 of each of the two). A block of
// threads has a SET of images at a time: UNITS units, all their parts, all channels.
constexpr bool SIDE_BY_SIDE = OUT_W <= 8;
constexpr int IMAGES = SIDE_BY_SIDE ? 2 : 1, STRIPS = SIDE_BY_SIDE ? 1 : (OUT_W + 15) / 16;
constexpr int BANDS = (OUT_H + ROWS - 1) / ROWS, PARTS = STRIPS * BANDS;
constexpr int WARPS = UNITS * PARTS * OUT_BLOCKS, THREADS = 32 * WARPS, SET = UNITS * IMAGES;
constexpr bool EVEN_ROWS = OUT_H % ROWS == 0;
constexpr bool EVEN_COLUMNS = SIDE_BY_SIDE ? OUT_W == 8 : OUT_W % 16 == 0;
constexpr int TALL = BANDS * ROWS, WIDE = SIDE_BY_SIDE ? 8 : 16 * STRIPS;  // what the parts cover

// 1 / (1 - p) where words, as signed numbers, below `below` are kept; 1 where all are
DEVICE float scale_of(int below) { return 4294967296.0f / ((float)below + 2147483648.0f); }

// Four neighbouring channels, which a thread has together.
DEVICE void unpack(float (&v)[4], uint2 bits) {
    v[0] = low(bits.x), v[1] = high(bits.x), v[2] = low(bits.y), v[3] = high(bits.y);
}
DEVICE uint2 packed(const float (&v)[4]) { return {pack(v[0], v[1]), pack(v[2], v[3])}; }

// Which elements (r, h, k) a thread has: rows r < ROWS from `row` on, halves h < 2, which are
// columns 0-7 and 8-15 of a strip or two images, and channels k < 4: a quarter of a block.
struct Place {
    int part, unit, block;         // block: of 16 channels
    int row, column[2], image[2];  // image: within the set
    DEVICE Place(int task, int blocks, int group) {  // group: lane / 4
        block = task % blocks;
        part = task / blocks % PARTS;
        unit = task / blocks / PARTS;
        row = part / STRIPS * ROWS;
        for (int h = 0; h < 2; h++) {
            column[h] = SIDE_BY_SIDE ? group : part % STRIPS * 16 + 8 * h + group;
            image[h] = unit * IMAGES + (SIDE_BY_SIDE ? h : 0);
        }
    }
};
// Where a product of the tensor cores has them. That the four channels of a thread are neighbours
// is owed to the order of the weights (conv_pack.cu).
DEVICE float &element(float (&row)[2][4], int h, int k) { return row[k / 2][2 * h + k % 2]; }

// Whether a column is of an image that is there, and a row of any image.
DEVICE bool image_inside(int b, int batch, int column) {
    return (SET == 1 || b < batch) && (EVEN_COLUMNS || column < OUT_W);
}
DEVICE bool row_inside(int row) { return EVEN_ROWS || row < OUT_H; }

// An image in shared memory, [CHANNEL_BLOCKS, STAGED_H, STAGED_W, PIXEL], its first pixel at (FROM,
// FROM). The two halves of 16 channels change places in every other four columns: 8 neighbours then
// lie in all the banks. Sizes are in bf16.
template <int CHANNEL_BLOCKS, int IMAGE_H, int IMAGE_W, int STAGED_H, int STAGED_W, int FROM_,
          int PIXEL_>
struct Staged {
    static constexpr int FROM = FROM_, PIXEL = PIXEL_, WIDTH = STAGED_W, LINE = WIDTH * PIXEL;
    static constexpr int BLOCK = STAGED_H * LINE, SIZE = (CHANNEL_BLOCKS * BLOCK + 7) / 8 * 8;
    // Rows and columns that no tap reaches are left out.
    static constexpr int ROWS_IN = IMAGE_H < STAGED_H - FROM ? IMAGE_H : STAGED_H - FROM;
    static constexpr int COLUMNS_IN = IMAGE_W < STAGED_W - FROM ? IMAGE_W : STAGED_W - FROM;

    static DEVICE int half_at(int column, int half) {
        return PIXEL == 16 ? (half ^ (column >> 2 & 1)) * 8 : 0;
    }
    static DEVICE void fetch(bf16 *to, const bf16 *from, int thread, int threads) {
        constexpr int COPIES = PIXEL == 16 ? 2 : 1, BYTES = PIXEL == 16 ? 16 : 8;  // of a pixel
#pragma unroll 1  // addresses made ahead would fill the registers
        for (int i = thread; i < CHANNEL_BLOCKS * ROWS_IN * COLUMNS_IN * COPIES; i += threads) {
            const int column = i / COPIES % COLUMNS_IN, line = i / COPIES / COLUMNS_IN;
            const int row = line % ROWS_IN, block = line / ROWS_IN, half = i % COPIES;
            copy<BYTES>(to + block * BLOCK + ((row + FROM) * WIDTH + column + FROM) * PIXEL +
                            half_at(column + FROM, half),
                        from + ((block * IMAGE_H + row) * IMAGE_W + column) * PIXEL + 8 * half);
        }
    }
};
// The inputs that so many rows of outputs need.
template <int ROWS_OUT>
using Inputs = Staged<IN_BLOCKS, H, W, STRIDE *(ROWS_OUT - 1) + KERNEL,
                      STRIDE *(WIDE - 1) + (QUAD ? 4 : KERNEL), PAD, QUAD ? 4 : 16>;

DEVICE void fill_zero(void *memory, int bytes, int thread, int threads) {
    for (int i = thread; i < bytes / 16; i += threads) ((uint4 *)memory)[i] = {0u, 0u, 0u, 0u};
}

// acc[r] += sum over dy < DOWN, dx < ACROSS of
//     source[STEP (row + r) + dy, STEP column + dx] . weights[tap(dy, dx)]
// from FROM blocks of inputs to one of TO blocks of outputs. A line of the source is loaded once
// for all the rows that it serves.
template <class In, int FROM, int TO, int DOWN, int ACROSS, int STEP, class Tap>
DEVICE void convolve(float (&acc)[ROWS][2][4], const bf16 *source, const Place &at,
                     int lane, const uint4 *weights, Tap tap) {
    // The 16 columns are the rows of a product: this lane tells where the one of its number is.
    const int eighth = lane % 8, half = lane / 8 % 2, quarter = lane % 4;
    const int column = SIDE_BY_SIDE ? eighth : at.part % STRIPS * 16 + 8 * half + eighth;
    const bf16 *from[ACROSS], *quads[2];
#pragma unroll
    for (int dx = 0; dx < ACROSS; dx++)
        from[dx] = source + (at.unit * IMAGES + (SIDE_BY_SIDE ? half : 0)) * In::SIZE +
                   (STEP * at.row * In::WIDTH + STEP * column + dx) * In::PIXEL +
                   In::half_at(STEP * column + dx, lane / 16);
    for (int h = 0; h < 2; h++)
        quads[h] = source + at.image[h] * In::SIZE +
                   (at.row * In::WIDTH + at.column[h] + quarter) * In::PIXEL;
#pragma unroll 1
    for (int block = 0; block < FROM; block++) {
#pragma unroll
        for (int dx = 0; dx < ACROSS; dx++) {
            uint4 w[DOWN];
#pragma unroll
            for (int dy = 0; dy < DOWN; dy++)
                w[dy] = weights[(tap(dy, dx) * FROM + block) * TO * 32];
#pragma unroll
            for (int line = 0; line < STEP * (ROWS - 1) + DOWN; line++) {
                u32 in[4];
                if (In::PIXEL == 16) {
                    load_matrices(in, from[dx] + line * In::LINE);
                } else {  // 4 columns of 4 channels, which is no place for a matrix
#pragma unroll
                    for (int h = 0; h < 2; h++) {
                        const uint2 v = *(const uint2 *)(quads[h] + line * In::LINE);
                        in[h] = v.x, in[2 + h] = v.y;
                    }
                }
#pragma unroll
                for (int r = 0; r < ROWS; r++) {
                    if (line < STEP * r || line >= STEP * r + DOWN) continue;  // no tap meets it
                    const uint4 of_tap = w[line - STEP * r];
                    mma(acc[r][0], in, of_tap.x, of_tap.y);
                    mma(acc[r][1], in, of_tap.z, of_tap.w);
                }
            }
            from[dx] += In::BLOCK;
        }
    }
}

// Sums over images, which no warp has whole: each leaves those of its part in shared memory,
// partial [SET, PARTS, COUT], and after a barrier every thread adds up those of its channels.
constexpr int PARTIAL = SET * PARTS * COUT;

DEVICE void total(float (&sum)[4], const float *partial, int image, int channel) {
    for (int k = 0; k < 4; k++) sum[k] = 0;
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
        const float4 v = *(const float4 *)&partial[(image * PARTS + part) * COUT + channel];
        sum[0] += v.x, sum[1] += v.y, sum[2] += v.z, sum[3] += v.w;
    }
}

// silu(u) = h + h tanh(h) with h = u / 2: beta, tau and what multiplies n are halved beforehand.
constexpr float HALF_IF_SILU = flags & HAS_SILU ? 0.5f : 1.0f;
