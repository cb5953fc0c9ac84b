// What the kernels conv_*.cu share: convolution, noise, FRN and SiLU of many members' images,
// forwards and backwards. Each is compiled for one layer: CIN (4, or a multiple of 16), COUT (a
// multiple of 16), H, W, STRIDE, KERNEL (3 or 1), FLAGS, and for how its work is shared out
// (conv_plan.py): ROWS, UNITS, BLOCKS, PAIRS.
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

constexpr bool QUAD = CIN == 4;  // a product takes 4 columns of 4 channels instead of 16 channels
constexpr int KB = QUAD ? 1 : CIN / 16, NB = COUT / 16;
constexpr int PAD = KERNEL / 2, TAPS_X = QUAD ? 1 : KERNEL, TAPS = KERNEL * TAPS_X;
constexpr int HO = (H + 2 * PAD - KERNEL) / STRIDE + 1, WO = (W + 2 * PAD - KERNEL) / STRIDE + 1;
constexpr int IMAGE_IN = CIN * H * W, IMAGE_OUT = COUT * HO * WO;
constexpr float EPS = 1e-6f, POSITIONS = HO * WO;
constexpr int FRAGMENTS = TAPS * KB * NB * 32;  // uint4: the weights, in the order of the lanes

// The warps share out units of work: one image or, where it is narrow, a pair of them. A warp has
// 16 channels of a part: ROWS rows of a strip of 16 columns (or 8 of each of the pair).
constexpr bool PAIR = WO <= 8;
constexpr int IMAGES = PAIR ? 2 : 1, STRIPS = PAIR ? 1 : (WO + 15) / 16;
constexpr int BANDS = (HO + ROWS - 1) / ROWS, PARTS = STRIPS * BANDS;
constexpr int WARPS = UNITS * PARTS * NB, THREADS = 32 * WARPS, SET = UNITS * IMAGES;
constexpr int PARTIAL = SET * PARTS * COUT;  // float: sums of the parts of images
constexpr bool EVEN_ROWS = HO % ROWS == 0, EVEN_COLUMNS = PAIR ? WO == 8 : WO % 16 == 0;
constexpr int TALL = BANDS * ROWS, WIDE = PAIR ? 8 : 16 * STRIPS;  // what the parts cover

// Where a thread's 2 x ROWS x 4 elements are: the halves are columns 0-7 and 8-15, or two images.
struct Place {
    int part, n, unit, row, column[2], image[2];
    DEVICE Place(int warp, int blocks, int g) {
        n = warp % blocks;
        part = warp / blocks % PARTS;
        unit = warp / blocks / PARTS;
        row = part / STRIPS * ROWS;
        for (int h = 0; h < 2; h++) {
            column[h] = PAIR ? g : part % STRIPS * 16 + 8 * h + g;
            image[h] = unit * IMAGES + (PAIR ? h : 0);  // within the set
        }
    }
};

// An image in shared memory, [blocks, PH, PW, PX], its first pixel at (FROM, FROM). The two halves
// of 16 channels change places in every other four columns: 8 neighbours then lie in all the banks.
template <int BLOCKS_, int SH_, int SW_, int PH_, int PW_, int FROM_, int PX_> struct Staged {
    static constexpr int SH = SH_, SW = SW_, PH = PH_, PW = PW_, FROM = FROM_, PX = PX_;
    static constexpr int BLOCK = PH * PW * PX, SIZE = (BLOCKS_ * BLOCK + 7) / 8 * 8;  // bf16
    // Rows and columns that no tap reaches are left out.
    static constexpr int ROWS_IN = SH < PH - FROM ? SH : PH - FROM;
    static constexpr int COLUMNS_IN = SW < PW - FROM ? SW : PW - FROM;

    static DEVICE int half_at(int column, int half) {
        return PX == 16 ? (half ^ (column >> 2 & 1)) * 8 : 0;
    }
    static DEVICE void fetch(bf16 *to, const bf16 *from, int thread, int threads) {
        constexpr int PER = PX == 16 ? 2 : 1, BYTES = PX == 16 ? 16 : 8;  // copies of a pixel
#pragma unroll 1  // addresses made ahead would fill the registers
        for (int i = thread; i < BLOCKS_ * ROWS_IN * COLUMNS_IN * PER; i += threads) {
            const int column = i / PER % COLUMNS_IN, line = i / PER / COLUMNS_IN;
            const int row = line % ROWS_IN, block = line / ROWS_IN, half = i % PER;
            copy<BYTES>(to + block * BLOCK + ((row + FROM) * PW + column + FROM) * PX +
                            half_at(column + FROM, half),
                        from + ((block * SH + row) * SW + column) * PX + 8 * half);
        }
    }
};
typedef Staged<KB, H, W, STRIDE *(TALL - 1) + KERNEL, STRIDE *(WIDE - 1) + (QUAD ? 4 : KERNEL), PAD,
               QUAD ? 4 : 16>
    Source;

DEVICE void fill_zero(void *memory, int bytes, int thread, int threads) {
    for (int i = thread; i < bytes / 16; i += threads) ((uint4 *)memory)[i] = {0u, 0u, 0u, 0u};
}
DEVICE void unpack(float (&v)[4], uint2 bits) {
    v[0] = low(bits.x), v[1] = high(bits.x), v[2] = low(bits.y), v[3] = high(bits.y);
}

// acc[r] += sum over a, b of source[S (row + r) + a, S column + b] . weights[tap(a, b)]
template <class In, int K, int N, int NY, int NX, int S, class Tap>
DEVICE void convolve(float (&acc)[ROWS][2][4], const bf16 *source, const Place &at, int lane,
                     const uint4 *weights, Tap tap) {
    // the 16 columns are rows of a product: this lane tells where the one of its number is
    const int g = lane % 8, h = lane / 8 % 2, t = lane % 4;
    const int column = PAIR ? g : at.part % STRIPS * 16 + 8 * h + g;
    const bf16 *from[NX], *quads[2];
#pragma unroll
    for (int b = 0; b < NX; b++)
        from[b] = source + (at.unit * IMAGES + (PAIR ? h : 0)) * In::SIZE +
                  (S * at.row * In::PW + S * column + b) * In::PX +
                  In::half_at(S * column + b, lane / 16);
    for (int i = 0; i < 2; i++)
        quads[i] = source + at.image[i] * In::SIZE + (at.row * In::PW + at.column[i] + t) * In::PX;
#pragma unroll 1
    for (int k = 0; k < K; k++) {
#pragma unroll
        for (int b = 0; b < NX; b++) {
            uint4 w[NY];
#pragma unroll
            for (int a = 0; a < NY; a++) w[a] = weights[(tap(a, b) * K + k) * N * 32];
#pragma unroll
            for (int i = 0; i < S * (ROWS - 1) + NY; i++) {
                u32 in[4];
                if (In::PX == 16) {
                    load_matrices(in, from[b] + i * In::PW * 16);
                } else {  // 4 columns of 4 channels, which is no place for a matrix
#pragma unroll
                    for (int j = 0; j < 2; j++) {
                        const uint2 v = *(const uint2 *)(quads[j] + i * In::PW * In::PX);
                        in[j] = v.x, in[2 + j] = v.y;
                    }
                }
#pragma unroll
                for (int r = 0; r < ROWS; r++) {
                    if (i < S * r || i >= S * r + NY) continue;
                    const uint4 f = w[i - S * r];
                    mma(acc[r][0], in, f.x, f.y);
                    mma(acc[r][1], in, f.z, f.w);
                }
            }
            from[b] += In::BLOCK;
        }
    }
}

// The sum over an image's parts of 4 channels, from what the warps left in shared memory.
DEVICE void total(float (&sum)[4], const float *partial, int image, int channel) {
    for (int k = 0; k < 4; k++) sum[k] = 0;
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
        const float4 v = *(const float4 *)&partial[(image * PARTS + part) * COUT + channel];
        sum[0] += v.x, sum[1] += v.y, sum[2] += v.z, sum[3] += v.w;
    }
}

enum {
    HAS_RESIDUAL = 1, HAS_SILU = 2, HAS_NOISE = 4, KEEPS = 8, SHARED_X = 16, WANTS_DX = 32,
    ADDS_DX = 64
};
constexpr int flags = FLAGS;

DEVICE bool inside(int b, int batch, int column) {
    return (SET == 1 || b < batch) && (EVEN_COLUMNS || column < WO);
}
DEVICE bool row_inside(int row) { return EVEN_ROWS || row < HO; }
// silu(u) = h + h tanh(h),  h = u / 2
DEVICE float half_if_silu() { return flags & HAS_SILU ? 0.5f : 1.0f; }
