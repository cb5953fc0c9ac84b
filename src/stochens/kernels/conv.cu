// Convolution, noise, FRN and SiLU of many members' images, forwards and backwards. Compiled for
// one layer: CIN (4, or a multiple of 16), COUT (a multiple of 16), H, W, STRIDE, KERNEL (3 or 1),
// FLAGS, and for how its work is shared out (conv_plan.py): ROWS, UNITS, BLOCKS, PAIRS.
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

typedef unsigned short bf16;
typedef unsigned int u32;
typedef unsigned long long u64;

#ifndef EMULATED
#define DEVICE __device__ __forceinline__
#define KERNEL_OF(threads, blocks) extern "C" __global__ void __launch_bounds__(threads, blocks)
#define SHARED extern __shared__ uint4 shared[];

// c += a b, with a [16, 16], b [16, 8], c [16, 8]: rows lane / 4 and 8 more, columns 2 (lane % 4)
DEVICE void mma(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// Four 8x8 matrices of bf16 in shared memory: lane 8 i + j gives the address of row j of the i-th
// and gets of each its elements (lane / 4, 2 (lane % 4)) and the next; or of the transposed ones.
DEVICE void load_matrices(u32 (&v)[4], const bf16 *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                 : "r"((u32)__cvta_generic_to_shared(row)));
}
DEVICE void load_transposed(u32 (&v)[4], const bf16 *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                 : "r"((u32)__cvta_generic_to_shared(row)));
}
DEVICE u32 pack(float low, float high) {
    u32 both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}
DEVICE float tanh_of(float u) {  // one operation of the special-function unit; error 2^-11
    float tanh;
    asm("tanh.approx.f32 %0, %1;" : "=f"(tanh) : "f"(u));
    return tanh;
}
DEVICE float at_least(float v, float bound) {  // fmaxf would make a number of what is none
    float larger;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(v), "f"(bound));
    return larger;
}
DEVICE float sum_over_rows(float v) {  // the 8 lanes of the same columns
    for (int m = 4; m < 32; m *= 2) v += __shfl_xor_sync(0xffffffffu, v, m);
    return v;
}
// Copies to shared memory that go on in the background, and the wait until all but the last `n`
// groups of them have come.
template <int BYTES> DEVICE void copy(void *to, const void *from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(
                     (u32)__cvta_generic_to_shared(to)),
                 "l"(from), "n"(BYTES));
}
DEVICE void end_group() { asm volatile("cp.async.commit_group;"); }
template <int N> DEVICE void wait_groups() {  // nothing is read ahead of it
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
DEVICE u32 lows(u32 a, u32 b) { return __byte_perm(a, b, 0x5410); }
DEVICE u32 highs(u32 a, u32 b) { return __byte_perm(a, b, 0x7632); }
#endif

DEVICE float low(u32 v) { return __uint_as_float(v << 16); }
DEVICE float high(u32 v) { return __uint_as_float(v & 0xffff0000u); }

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
constexpr int BACK = STRIDE == 1 ? KERNEL : KERNEL == 1 ? 1 : 2;  // taps of a phase of dx, each way
typedef Staged<NB, HO, WO, TALL + BACK - 1, WIDE + BACK - 1, STRIDE == 1 ? PAD : 0, 16> Gradient;

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
