// Mean negative log likelihood of M small MLPs, each on its own batch, and all its gradients:
//
//     u_l = (W_l h_l + b_l) * z_l / (1 - p_l),    h_{l+1} = f_l(u_l),    z_l ~ Bernoulli(1 - p_l)
//
// A member's batch is cut into tiles of rows. Within a tile every quantity is stored
// [feature][row], so that all inner loops run over rows, one vector register of rows at a time, and
// the tile of a small network stays in the L1 cache from the gather to the last gradient.
// Plain C++17 with the vector extensions of GCC and Clang, compiled once for -DREAL=float and once
// for -DREAL=double. tests/kernels/mlp_reference.py is the torch twin.

#include <atomic>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <unistd.h>

#ifndef REAL
#define REAL float
#endif

#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#elif defined(__AVX__)
#define VECTOR_BYTES 32
#else
#define VECTOR_BYTES 16
#endif

#if defined(__clang__)
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, IntVec{__VA_ARGS__})
#define UNROLL _Pragma("GCC unroll 16")  // early, so that arrays of vectors become registers
#endif
#define INLINE __attribute__((always_inline)) inline

#define DEVICE INLINE
namespace noise {
#include "noise.hpp"
}
#undef DEVICE

typedef REAL Real;

extern "C" struct Job {  // mirrored by mlp.py, field by field
    int64_t members, layers, rows, batch;
    const int64_t *widths;                // [layers + 1]
    const int32_t *activation;            // [layers]
    const double *dropout;                // [layers]
    const Real *const *weights;           // [2 layers], each [members, out, in]: the weights, then
                                          // their variances, null where there is no such noise
    const Real *const *biases;            // [2 layers], each [members, out] or null, likewise
    Real *const *weight_grads;            // as weights; null for the loss alone
    Real *const *bias_grads;              // as biases
    const Real *x;                        // [rows, in]
    const void *y;                        // int64 [rows] or Real [rows, D]
    const int64_t *index;                 // [members, batch], or null: every row
    const int64_t *member_ids;            // [members]
    const int64_t *sites;                 // [2 layers], the numbers of the draws: masks, Gaussians
    Real *loss;                           // [members]
    Real *outputs;                        // [members, batch, out] in place of the loss, or null
    uint64_t seed;
    double noise;
    int32_t likelihood, threads;
    int64_t bad_value;                    // out: the index or label that was out of range
};

namespace {

enum Activation : int32_t { IDENTITY, RELU, TANH, SILU };
enum Likelihood : int32_t { CATEGORICAL, GAUSSIAN, HETEROSCEDASTIC };
enum Error : int32_t { OK, BAD_INDEX, BAD_LABEL, NO_MEMORY };

constexpr int LANES = VECTOR_BYTES / sizeof(Real);
constexpr int64_t TILE = 512 / sizeof(Real);  // rows; the toy networks' tiles then fit in L1
constexpr int64_t CHUNK = 4 * TILE;           // rows summed into one partial gradient
constexpr int64_t MAX_CHUNKS = 16;            // bounds the memory of the partial gradients
constexpr int64_t THREAD_WORK = 500000;       // multiply-adds that repay waking a thread

// Vectors ---------------------------------------------------------------------------------------

typedef std::conditional_t<sizeof(Real) == 4, int32_t, int64_t> Int;
typedef Real Vec __attribute__((vector_size(VECTOR_BYTES)));
typedef Int IntVec __attribute__((vector_size(VECTOR_BYTES)));
typedef std::make_unsigned_t<Int> UInt;  // bits of a Real: those of NaN may overflow
typedef UInt UIntVec __attribute__((vector_size(VECTOR_BYTES)));
typedef uint32_t Bits __attribute__((vector_size(4 * LANES)));  // 32 bits whatever Real is, so that
typedef int32_t BitMask __attribute__((vector_size(4 * LANES)));  // both have the same masks

INLINE Vec load(const Real *p) { return *reinterpret_cast<const Vec *>(p); }
INLINE void store(Real *p, Vec v) { *reinterpret_cast<Vec *>(p) = v; }
INLINE Vec all(Real value) { return Vec{} + value; }
INLINE Vec abs(Vec a) { return a < 0 ? -a : a; }
INLINE IntVec widen(BitMask mask) { return __builtin_convertvector(mask, IntVec); }

template <int... I> Bits iota(std::integer_sequence<int, I...>) { return Bits{I...}; }
const Bits LANE = iota(std::make_integer_sequence<int, LANES>());

// lane i: a[i] + a[i ^ D] where bit D of i is clear, b[i] + b[i ^ D] where it is set
template <int D, int... I> INLINE Vec fold(Vec a, Vec b, std::integer_sequence<int, I...>) {
    return SHUFFLE(a, b, ((I & D) ? LANES + I : I)...) +
           SHUFFLE(a, b, ((I & D) ? LANES + (I ^ D) : (I ^ D))...);
}
// lane j: the sum over lanes of v[j]
template <int D = LANES / 2> INLINE Vec sums(const Vec (&v)[2 * D]) {
    Vec half[D];
    UNROLL for (int j = 0; j < D; ++j)
        half[j] = fold<D>(v[j], v[j + D], std::make_integer_sequence<int, LANES>());
    if constexpr (D > 1) return sums<D / 2>(half);
    else return half[0];
}
// Exchanges bit D of the vector's number with bit D of the lane's
template <int D, int... I> INLINE void exchange(Vec &a, Vec &b, std::integer_sequence<int, I...>) {
    Vec low = SHUFFLE(a, b, ((I & D) ? LANES + (I ^ D) : I)...);
    b = SHUFFLE(a, b, ((I & D) ? LANES + I : (I ^ D))...);
    a = low;
}
// v[i][j] -> v[j][i]
template <int D = LANES / 2> INLINE void transpose(Vec (&v)[LANES]) {
    UNROLL for (int j = 0; j < LANES; ++j)
        if (!(j & D)) exchange<D>(v[j], v[j | D], std::make_integer_sequence<int, LANES>());
    if constexpr (D > 1) transpose<D / 2>(v);
}
INLINE double sum(Vec v) {
    double total = 0;
    for (int i = 0; i < LANES; ++i) total += v[i];
    return total;
}

constexpr bool SINGLE = sizeof(Real) == 4;
constexpr int MANTISSA = SINGLE ? 23 : 52;
constexpr UInt BIAS = SINGLE ? 127 : 1023;
constexpr Real MAGIC = Real(1.5) * Real(Int(1) << MANTISSA);  // adding it rounds to an integer
constexpr Real LN2_HIGH = SINGLE ? 0.693145751953125 : 6.93147180369123816490e-01;
constexpr Real LN2_LOW = SINGLE ? 1.42860677e-6 : 1.90821492927058770002e-10;

// exp(x) = 2^k exp(r), |r| <= ln(2) / 2, where exp(r) is its Taylor series. Returns exp(r) - 1 and
// sets half = 2^(k - 1), which, unlike 2^k, does not overflow before the result does.
INLINE Vec exp_parts(Vec x, Vec &half) {
    constexpr int terms = SINGLE ? 7 : 13;
    constexpr Real factorial[] = {1., 1., 2., 6., 24., 120., 720., 5040., 40320., 362880.,
                                  3628800., 39916800., 479001600., 6227020800.};
    Vec shifted = x * Real(1.4426950408889634) + MAGIC;
    Vec k = shifted - MAGIC;
    Vec r = (x - k * LN2_HIGH) - k * LN2_LOW;
    half = (Vec)(((UIntVec)shifted << MANTISSA) + ((BIAS - 1) << MANTISSA));
    Vec p = all(1 / factorial[terms]);
    UNROLL for (int n = terms - 1; n > 0; --n) p = p * r + 1 / factorial[n];
    return p * r;
}
INLINE Vec exp(Vec x) {
    constexpr Real low = SINGLE ? -86.6 : -707.7, high = SINGLE ? 88.72 : 709.78;
    Vec half, p = exp_parts(x, half);
    Vec y = (half * p + half) * 2;
    y = x < low ? all(0) : y;
    return x > high ? all(INFINITY) : y;
}
// exp(x) - 1 for x <= 0, accurate near 0 as well
INLINE Vec expm1_negative(Vec x) {
    x = x < -50 ? all(-50) : x;
    Vec half, p = exp_parts(x, half);
    return half * p * 2 + (half * 2 - 1);
}
// log(x) = k ln 2 + 2 atanh((m - 1) / (m + 1)), m in [sqrt(1/2), sqrt(2)); for normal numbers
INLINE Vec log(Vec x) {
    constexpr int terms = SINGLE ? 5 : 10;
    constexpr UInt sqrt_half = SINGLE ? 0x3f3504f3 : UInt(0x3fe6a09e667f3bcd);
    UIntVec k = (UIntVec)((IntVec)((UIntVec)x - sqrt_half) >> MANTISSA);  // signed shift
    Vec m = (Vec)((UIntVec)x - (k << MANTISSA));
    Vec e = (Vec)(k + (UIntVec)all(MAGIC)) - MAGIC;
    Vec s = (m - 1) / (m + 1), s2 = s * s;
    Vec p = all(Real(2) / (2 * terms - 1));
    UNROLL for (int n = terms - 2; n >= 0; --n) p = p * s2 + Real(2) / (2 * n + 1);
    return e * LN2_HIGH + (s * p + e * LN2_LOW) + (x - x);  // x - x: NaN stays NaN
}

// Gaussian noise, as randomness/noise.py has it: sqrt(2) times the inverse of erf at 23 bits of a
// word, by the polynomials of Giles (2012), those for the precision at hand. The uniforms x in
// (-1, 1) are exact in float as well, so that both precisions draw the same.
constexpr Real VARIANCE_FLOOR = 1e-12;  // as methods/gaussian.py has it

INLINE Vec sqrt(Vec v) {
    for (int i = 0; i < LANES; ++i) v[i] = std::sqrt(v[i]);
    return v;
}
template <int N> INLINE Vec polynomial(const double (&c)[N], Vec w) {
    Vec p = all(Real(c[0]));
    UNROLL for (int n = 1; n < N; ++n) p = p * w + Real(c[n]);
    return p;
}
INLINE Vec normal(Bits bits) {
    constexpr double centre[] = {2.81022636e-08, 3.43273939e-07, -3.5233877e-06,
                                 -4.39150654e-06, 0.00021858087, -0.00125372503,
                                 -0.00417768164, 0.246640727, 1.50140941};
    constexpr double tail[] = {-0.000200214257, 0.000100950558, 0.00134934322,
                               -0.00367342844, 0.00573950773, -0.0076224613,
                               0.00943887047, 1.00167406, 2.83297682};
    // in double, for x up to 1 - 2^-23
    constexpr double fine_centre[] = {
        -3.6444120640178196996e-21, -1.685059138182016589e-19, 1.2858480715256400167e-18,
        1.115787767802518096e-17, -1.333171662854620906e-16, 2.0972767875968561637e-17,
        6.6376381343583238325e-15, -4.0545662729752068639e-14, -8.1519341976054721522e-14,
        2.6335093153082322977e-12, -1.2975133253453532498e-11, -5.4154120542946279317e-11,
        1.051212273321532285e-09, -4.1126339803469836976e-09, -2.9070369957882005086e-08,
        4.2347877827932403518e-07, -1.3654692000834678645e-06, -1.3882523362786468719e-05,
        0.0001867342080340571352, -0.00074070253416626697512, -0.0060336708714301490533,
        0.24015818242558961693, 1.6536545626831027356};
    constexpr double fine_tail[] = {
        2.2137376921775787049e-09, 9.0756561938885390979e-08, -2.7517406297064545428e-07,
        1.8239629214389227755e-08, 1.5027403968909827627e-06, -4.013867526981545969e-06,
        2.9234449089955446044e-06, 1.2475304481671778723e-05, -4.7318229009055733981e-05,
        6.8284851459573175448e-05, 2.4031110387097893999e-05, -0.0003550375203628474796,
        0.00095328937973738049703, -0.0016882755560235047313, 0.0024914420961078508066,
        -0.0037512085075692412107, 0.005370914553590063617, 1.0052589676941592334,
        3.0838856104922207635};
    Vec k = __builtin_convertvector((BitMask)(bits >> 9), Vec);
    Vec x = (k + Real(0.5)) * Real(0x1p-22) - 1;
    Vec w = -log((1 - x) * (1 + x)), p;
    if (SINGLE) p = w < 5 ? polynomial(centre, w - Real(2.5)) : polynomial(tail, sqrt(w) - 3);
    else p = w < 6.25 ? polynomial(fine_centre, w - Real(3.125))
                      : polynomial(fine_tail, sqrt(w) - Real(3.25));
    return p * x * Real(1.4142135623730951);
}

// Matrix products over a tile, in blocks of R x S registers --------------------------------------

int64_t up_to(int64_t most, int64_t left) { return left < most ? left : most; }

// Calls f with r and s, 1 <= r, s <= 4, as compile-time constants
template <class F> INLINE void with_block(int64_t r, int64_t s, F f) {
    auto with_s = [&](auto R) {
        switch (s) {
            case 1: return f(R, std::integral_constant<int, 1>());
            case 2: return f(R, std::integral_constant<int, 2>());
            case 3: return f(R, std::integral_constant<int, 3>());
            default: return f(R, std::integral_constant<int, 4>());
        }
    };
    switch (r) {
        case 1: return with_s(std::integral_constant<int, 1>());
        case 2: return with_s(std::integral_constant<int, 2>());
        case 3: return with_s(std::integral_constant<int, 3>());
        default: return with_s(std::integral_constant<int, 4>());
    }
}

template <int R, int S>
void affine_block(const Real *a, int64_t row, int64_t column, int64_t inner, const Real *bias,
                  const Real *in, Real *out, int64_t stride) {
    Vec sum[R][S], h[S];
    UNROLL for (int r = 0; r < R; ++r)
        UNROLL for (int s = 0; s < S; ++s) sum[r][s] = all(bias ? bias[r] : Real(0));
    for (int64_t k = 0; k < inner; ++k) {
        UNROLL for (int s = 0; s < S; ++s) h[s] = load(in + k * stride + s * LANES);
        UNROLL for (int r = 0; r < R; ++r)
            UNROLL for (int s = 0; s < S; ++s) sum[r][s] += a[r * row + k * column] * h[s];
    }
    UNROLL for (int r = 0; r < R; ++r)
        UNROLL for (int s = 0; s < S; ++s) store(out + r * stride + s * LANES, sum[r][s]);
}

// out[r] = bias[r] + sum_k a[r * row + k * column] in[k], for r < outer
void affine(const Real *a, int64_t row, int64_t column, int64_t outer, int64_t inner,
            const Real *bias, const Real *in, Real *out, int64_t stride) {
    for (int64_t lane = 0; lane < stride; lane += 4 * LANES)
        for (int64_t r = 0; r < outer; r += 4)
            with_block(up_to(4, outer - r), up_to(4, (stride - lane) / LANES), [&](auto R, auto S) {
                affine_block<R.value, S.value>(a + r * row, row, column, inner,
                                               bias ? bias + r : nullptr, in + lane,
                                               out + r * stride + lane, stride);
            });
}

// The same for a tile of one row, which is in the first lane: here a register holds outputs in the
// place of rows, and each sum has its terms in the same order.
void affine_of_one(const Real *a, int64_t outer, int64_t inner, const Real *bias, const Real *in,
                   Real *out) {
    for (int64_t first = 0; first < outer; first += LANES) {
        const Real *row[LANES];
        Vec sum, w[LANES];
        for (int j = 0; j < LANES; ++j) {
            int64_t r = up_to(outer - 1, first + j);  // beyond the last one: copies of it
            row[j] = a + r * inner;
            sum[j] = bias ? bias[r] : Real(0);
        }
        int64_t k = 0;
        for (; k + LANES <= inner; k += LANES) {
            UNROLL for (int j = 0; j < LANES; ++j) std::memcpy(&w[j], row[j] + k, sizeof(Vec));
            transpose(w);
            UNROLL for (int j = 0; j < LANES; ++j) sum += w[j] * in[(k + j) * LANES];
        }
        for (; k < inner; ++k) {
            for (int j = 0; j < LANES; ++j) w[0][j] = row[j][k];
            sum += w[0] * in[k * LANES];
        }
        for (int64_t j = 0; j < up_to(LANES, outer - first); ++j)
            store(out + (first + j) * LANES, all(sum[j]));
    }
}

template <int R, int S>
void outer_block(const Real *delta, const Real *in, Real *grad, int64_t row, int64_t stride) {
    Vec sum[R][S], h[S];
    UNROLL for (int r = 0; r < R; ++r)
        UNROLL for (int s = 0; s < S; ++s) sum[r][s] = all(0);
    for (int64_t lane = 0; lane < stride; lane += LANES) {
        UNROLL for (int s = 0; s < S; ++s) h[s] = load(in + s * stride + lane);
        UNROLL for (int r = 0; r < R; ++r) {
            Vec d = load(delta + r * stride + lane);
            UNROLL for (int s = 0; s < S; ++s) sum[r][s] += d * h[s];
        }
    }
    constexpr int groups = (R * S + LANES - 1) / LANES;
    Real total[groups * LANES];
    UNROLL for (int g = 0; g < groups; ++g) {
        Vec part[LANES];
        UNROLL for (int j = 0; j < LANES; ++j) {
            int cell = g * LANES + j;
            part[j] = cell < R * S ? sum[cell / S][cell % S] : all(0);
        }
        Vec folded = sums(part);
        std::memcpy(total + g * LANES, &folded, sizeof folded);
    }
    UNROLL for (int r = 0; r < R; ++r)
        UNROLL for (int s = 0; s < S; ++s) grad[r * row + s] += total[r * S + s];
}

// grad[r, s] += sum over rows of delta[r] in[s]
void outer_product(const Real *delta, const Real *in, Real *grad, int64_t outputs, int64_t inputs,
                   int64_t stride) {
    for (int64_t r = 0; r < outputs; r += 4)
        for (int64_t s = 0; s < inputs; s += 4)
            with_block(up_to(4, outputs - r), up_to(4, inputs - s), [&](auto R, auto S) {
                outer_block<R.value, S.value>(delta + r * stride, in + s * stride,
                                              grad + r * inputs + s, inputs, stride);
            });
}

// delta *= slope (if any); grad[r] += sum over rows of delta[r] (if any)
void through_slope(Real *delta, const Real *slope, Real *grad, int64_t outputs, int64_t stride) {
    for (int64_t r = 0; r < outputs; r += LANES) {
        Vec sum[LANES];
        for (int j = 0; j < LANES; ++j) sum[j] = all(0);
        int64_t some = up_to(LANES, outputs - r);
        for (int64_t j = 0; j < some; ++j)
            for (int64_t at = (r + j) * stride, end = at + stride; at < end; at += LANES) {
                Vec d = load(delta + at);
                if (slope) store(delta + at, d *= load(slope + at));
                sum[j] += d;
            }
        Vec total = sums(sum);
        for (int64_t j = 0; grad && j < some; ++j) grad[r + j] += total[j];
    }
}

// One thread's scratch, and a member's tile, chunk and batch -------------------------------------

struct Worker {
    const Job &job;
    int64_t parameters = 0;  // of one member
    std::unique_ptr<Real, void (*)(void *)> memory{nullptr, std::free};
    std::vector<Real *> h, slope;  // h[l]: input of layer l; slope[l]: d h[l + 1] / d (W h + b)
    std::vector<Real *> spread;    // of layers with Gaussian noise: its variance, then its slope
    Real *delta, *next, *target, *partial;
    Real *squares = nullptr, *spread_delta = nullptr, *spread_next = nullptr;
    std::vector<Real *> weight_grad, bias_grad;  // where the gradients of a chunk are added
    int64_t picked[TILE];                        // rows of x
    int64_t gathered = -1;                       // the start of the tile in h[0], where all share it
    Error error = OK;
    int64_t bad_value = 0;

    Worker(const Job &job, bool with_partial)
        : job(job), weight_grad(2 * job.layers), bias_grad(2 * job.layers) {
        int64_t widest = 0, features = 0;
        bool noisy = false;
        for (int64_t l = 0; l <= job.layers; ++l) {
            widest = widest < job.widths[l] ? job.widths[l] : widest;
            features += 2 * job.widths[l];
            if (l == 0) continue;
            bool gaussian = job.weights[job.layers + l - 1];
            parameters += (1 + gaussian) * job.widths[l] * (job.widths[l - 1] + 1);
            features += gaussian * job.widths[l];
            noisy |= gaussian;
        }
        int64_t scratch = features + (noisy ? 6 : 3) * widest;
        int64_t cells = scratch * TILE + (with_partial ? parameters : 0);
        size_t bytes = (cells * sizeof(Real) + 63) / 64 * 64;
        memory.reset(static_cast<Real *>(std::aligned_alloc(64, bytes)));
        if (!memory) throw std::bad_alloc();
        Real *p = memory.get();
        auto take = [&](int64_t width) { return (p += width * TILE) - width * TILE; };
        for (int64_t l = 0; l <= job.layers; ++l) h.push_back(take(job.widths[l]));
        for (int64_t l = 0; l < job.layers; ++l) {
            bool gaussian = job.weights[job.layers + l];
            bool bends = job.activation[l] != IDENTITY || job.dropout[l] > 0 || gaussian;
            slope.push_back(bends ? take(job.widths[l + 1]) : nullptr);
            spread.push_back(gaussian ? take(job.widths[l + 1]) : nullptr);
        }
        delta = take(widest), next = take(widest), target = take(widest);
        if (noisy)
            squares = take(widest), spread_delta = take(widest), spread_next = take(widest);
        partial = p;
    }

    bool fail(Error kind, int64_t value) {
        error = kind, bad_value = value;
        return false;
    }

    // h[0][i][lane] = x[row of the lane][i]. Lanes beyond the batch repeat its last row, so that
    // they overflow only where a real row does; their delta is 0.
    bool gather(int64_t m, int64_t start, int64_t rows, int64_t stride) {
        if (!job.index && start == gathered) return true;  // the member before had the same rows
        gathered = start;
        const int64_t *index = job.index ? job.index + m * job.batch + start : nullptr;
        for (int64_t lane = 0; lane < rows; ++lane) {
            int64_t row = index ? index[lane] : start + lane;
            if (row < 0 || row >= job.rows) return fail(BAD_INDEX, row);
            picked[lane] = row;
        }
        for (int64_t lane = rows; lane < stride; ++lane) picked[lane] = picked[rows - 1];
        take_rows(job.x, job.widths[0], h[0], stride);
        return true;
    }
    void take_rows(const Real *from, int64_t width, Real *to, int64_t stride) const {
        for (int64_t i = 0; i < width; ++i)
            for (int64_t lane = 0; lane < stride; ++lane)
                to[i * stride + lane] = from[picked[lane] * width + i];
    }

    // u *= z / (1 - p), u += sqrt(v) eps, then u -> f(u), in place; slope = f'(u) z / (1 - p), and
    // d f / d v = f'(u) eps / (2 sqrt(v)) goes in v's place
    template <int F> void activate(int64_t l, int64_t m, int64_t start, int64_t stride) {
        double p = job.dropout[l];
        auto key_of = [&](int64_t draw) {
            return noise::key_of(job.member_ids[m], job.seed, job.sites[draw]);
        };
        noise::Key mask = p > 0 ? key_of(l) : noise::Key{};
        noise::Key gauss = spread[l] ? key_of(job.layers + l) : noise::Key{};
        // words, as signed numbers, below it are kept
        auto below = int32_t(std::fmin(std::rint(std::ldexp(1 - p, 32)) - 0x1p31, 2147483647.0));
        uint32_t width = job.widths[l + 1];
        Real scale = 1 / (1 - p);
        for (uint32_t node = 0; node < width; ++node) {
            Real *u_row = h[l + 1] + node * stride, *slope_row = slope[l] + node * stride;
            Bits counter = (LANE + uint32_t(start)) * width + node;
            for (int64_t lane = 0; lane < stride; lane += LANES) {
                Vec u = load(u_row + lane), factor = all(1), half_eps_over_sd = all(0);
                if (p > 0) {
                    BitMask kept = (BitMask)noise::word_of(counter, mask) < below;
                    factor = widen(kept) ? all(scale) : all(0);
                    u *= factor;
                }
                if (spread[l]) {
                    Vec sd = sqrt(load(spread[l] + node * stride + lane) + VARIANCE_FLOOR);
                    Vec eps = normal(noise::word_of(counter, gauss));
                    u += sd * eps;
                    half_eps_over_sd = eps / (2 * sd);
                }
                counter += LANES * width;
                Vec f = u, df = all(1);
                if (F == RELU) {
                    f = u <= 0 ? all(0) : u;
                    df = u <= 0 ? all(0) : df;
                } else if (F == TANH) {
                    Vec e = expm1_negative(abs(u) * -2);
                    Vec t = -e / (e + 2);
                    f = u < 0 ? -t : t;
                    df = 1 - f * f;
                } else if (F == SILU) {
                    Vec e = exp(-abs(u));
                    Vec sigmoid = (u < 0 ? e : all(1)) / (e + 1);
                    f = u * sigmoid;
                    df = sigmoid * (1 + u * (1 - sigmoid));
                }
                store(u_row + lane, f);
                store(slope_row + lane, df * factor);
                if (spread[l]) store(spread[l] + node * stride + lane, df * half_eps_over_sd);
            }
        }
    }
    void activate(int64_t l, int64_t m, int64_t start, int64_t stride) {
        switch (job.activation[l]) {
            case RELU: return activate<RELU>(l, m, start, stride);
            case TANH: return activate<TANH>(l, m, start, stride);
            case SILU: return activate<SILU>(l, m, start, stride);
            default: return activate<IDENTITY>(l, m, start, stride);
        }
    }

    // The weight of a lane in the mean: 1 / batch, or 0 beyond the batch
    Vec lane_weight(int64_t lane, int64_t rows) const {
        BitMask inside = (BitMask)(LANE < uint32_t(rows - lane));
        return widen(inside) ? all(Real(1) / Real(job.batch)) : all(0);
    }

    // nll = log sum_c exp(z_c) - z_y,  delta_c = softmax(z)_c - [c = y]
    double categorical(const Real *z, int64_t rows, int64_t stride) {
        Int classes = job.widths[job.layers];
        Int *label = reinterpret_cast<Int *>(target);
        for (int64_t lane = 0; lane < stride; ++lane) {
            int64_t y = static_cast<const int64_t *>(job.y)[picked[lane]];
            if (y < 0 || y >= classes) return fail(BAD_LABEL, y);
            label[lane] = y;
        }
        Vec total = all(0);
        for (int64_t lane = 0; lane < stride; lane += LANES) {
            IntVec y = *reinterpret_cast<IntVec *>(label + lane);
            Vec top = load(z + lane), sum = all(0), chosen = all(0);
            for (Int c = 1; c < classes; ++c) {
                Vec z_c = load(z + c * stride + lane);
                top = z_c > top ? z_c : top;
            }
            for (Int c = 0; c < classes; ++c) {
                Vec shifted = load(z + c * stride + lane) - top, e = exp(shifted);
                store(delta + c * stride + lane, e);
                chosen = y == c ? shifted : chosen;
                sum += e;
            }
            Vec weight = lane_weight(lane, rows), scale = weight / sum;
            total += (log(sum) - chosen) * weight;
            for (Int c = 0; c < classes; ++c) {
                Real *d = delta + c * stride + lane;
                store(d, load(d) * scale - (y == c ? weight : all(0)));
            }
        }
        return sum(total);
    }

    // nll = sum_d ((mu_d - y_d)^2 / s^2 + log(2 pi s^2)) / 2
    double gaussian(const Real *mean, int64_t rows, int64_t stride) {
        int64_t D = job.widths[job.layers];
        double variance = job.noise * job.noise;
        Real precision = 1 / variance, constant = std::log(2 * M_PI * variance) / 2;
        take_rows(static_cast<const Real *>(job.y), D, target, stride);
        Vec total = all(0);
        for (int64_t lane = 0; lane < stride; lane += LANES) {
            Vec weight = lane_weight(lane, rows);
            for (int64_t at = lane; at < D * stride; at += stride) {
                Vec residual = load(mean + at) - load(target + at);
                total += (residual * residual * (precision / 2) + constant) * weight;
                store(delta + at, residual * precision * weight);
            }
        }
        return sum(total);
    }

    // nll = sum_d ((mu_d - y_d)^2 exp(-v_d) + v_d + log(2 pi)) / 2, the v_d below the mu_d
    double heteroscedastic(const Real *mean, int64_t rows, int64_t stride) {
        int64_t D = job.widths[job.layers] / 2;
        Real constant = std::log(2 * M_PI) / 2;
        take_rows(static_cast<const Real *>(job.y), D, target, stride);
        Vec total = all(0);
        for (int64_t lane = 0; lane < stride; lane += LANES) {
            Vec weight = lane_weight(lane, rows);
            for (int64_t at = lane; at < D * stride; at += stride) {
                Vec residual = load(mean + at) - load(target + at);
                Vec log_variance = load(mean + D * stride + at), precision = exp(-log_variance);
                Vec square = residual * residual * precision;
                total += ((square + log_variance) * Real(0.5) + constant) * weight;
                store(delta + at, residual * precision * weight);
                store(delta + D * stride + at, (1 - square) * Real(0.5) * weight);
            }
        }
        return sum(total);
    }

    void square(const Real *from, int64_t width, int64_t stride) {
        for (int64_t at = 0; at < width * stride; at += LANES)
            store(squares + at, load(from + at) * load(from + at));
    }

    // The outputs themselves, from [node][lane] to [row][node]; they have no loss
    double write(const Real *z, int64_t m, int64_t start, int64_t rows, int64_t stride) {
        int64_t out = job.widths[job.layers];
        Real *to = job.outputs + (m * job.batch + start) * out;
        for (int64_t row = 0; row < rows; ++row)
            for (int64_t c = 0; c < out; ++c) to[row * out + c] = z[c * stride + row];
        return 0;
    }

    // Returns the tile's part of the loss and adds its part of the gradients
    double tile(int64_t m, int64_t start, int64_t rows) {
        int64_t L = job.layers, stride = (rows + LANES - 1) / LANES * LANES;
        if (!gather(m, start, rows, stride)) return 0;
        for (int64_t l = 0; l < L; ++l) {
            int64_t in = job.widths[l], out = job.widths[l + 1];
            const Real *bias = job.biases[l] ? job.biases[l] + m * out : nullptr;
            const Real *weights = job.weights[l] + m * in * out;
            if (rows == 1) affine_of_one(weights, out, in, bias, h[l], h[l + 1]);
            else affine(weights, in, 1, out, in, bias, h[l], h[l + 1], stride);
            if (spread[l]) {
                square(h[l], in, stride);
                const Real *variance = job.biases[L + l] ? job.biases[L + l] + m * out : nullptr;
                affine(job.weights[L + l] + m * in * out, in, 1, out, in, variance, squares,
                       spread[l], stride);
            }
            if (slope[l]) activate(l, m, start, stride);
        }
        if (job.outputs) return write(h[L], m, start, rows, stride);
        double loss = job.likelihood == CATEGORICAL ? categorical(h[L], rows, stride)
                      : job.likelihood == GAUSSIAN  ? gaussian(h[L], rows, stride)
                                                    : heteroscedastic(h[L], rows, stride);
        if (!job.weight_grads || error) return loss;
        for (int64_t l = L - 1; l >= 0; --l) {
            int64_t in = job.widths[l], out = job.widths[l + 1];
            if (spread[l]) {  // d loss / d v, and what follows from it
                std::memcpy(spread_delta, delta, out * stride * sizeof(Real));
                through_slope(spread_delta, spread[l], bias_grad[L + l], out, stride);
                square(h[l], in, stride);
                outer_product(spread_delta, squares, weight_grad[L + l], out, in, stride);
            }
            through_slope(delta, slope[l], bias_grad[l], out, stride);
            outer_product(delta, h[l], weight_grad[l], out, in, stride);
            if (l == 0) break;
            affine(job.weights[l] + m * in * out, 1, in, in, out, nullptr, delta, next, stride);
            if (spread[l]) {  // d v / d h = 2 h times the variances
                affine(job.weights[L + l] + m * in * out, 1, in, in, out, nullptr, spread_delta,
                       spread_next, stride);
                for (int64_t at = 0; at < in * stride; at += LANES)
                    store(next + at,
                          load(next + at) + 2 * load(h[l] + at) * load(spread_next + at));
            }
            std::swap(delta, next);
        }
        return loss;
    }

    double chunk(int64_t m, int64_t start, int64_t end) {
        double loss = 0;
        for (int64_t at = start; at < end && !error; at += TILE)
            loss += tile(m, at, up_to(TILE, end - at));
        return loss;
    }

    // Chooses where gradients are added, and clears it: a buffer of `parameters` cells, or, if
    // that is null, the outputs of member m
    void aim(int64_t m, Real *buffer) {
        for (int64_t l = 0; job.weight_grads && l < 2 * job.layers; ++l) {
            if (!job.weight_grads[l]) continue;
            int64_t out = job.widths[l % job.layers + 1], cells = job.widths[l % job.layers] * out;
            Real *bias = job.bias_grads[l];
            weight_grad[l] = buffer ? buffer : job.weight_grads[l] + m * cells;
            bias_grad[l] = !bias ? nullptr : buffer ? buffer + cells : bias + m * out;
            std::memset(weight_grad[l], 0, cells * sizeof(Real));
            if (bias) std::memset(bias_grad[l], 0, out * sizeof(Real));
            if (buffer) buffer += cells + out;
        }
    }
    // outputs of member m += buffer
    void add(int64_t m, const Real *buffer) const {
        for (int64_t l = 0; job.weight_grads && l < 2 * job.layers; ++l) {
            if (!job.weight_grads[l]) continue;
            int64_t out = job.widths[l % job.layers + 1], cells = job.widths[l % job.layers] * out;
            Real *weight = job.weight_grads[l] + m * cells, *bias = job.bias_grads[l];
            for (int64_t i = 0; i < cells; ++i) weight[i] += buffer[i];
            for (int64_t i = 0; bias && i < out; ++i) bias[m * out + i] += buffer[cells + i];
            buffer += cells + out;
        }
    }
};

// Threads ----------------------------------------------------------------------------------------

// Helper threads that stay. A call shares its items with them by a counter and never waits for a
// helper that has not begun: when the cores are busy (with torch's own threads, which spin after
// each operation, or with other programs) the caller does more of the work itself.
struct Pool {
    const pid_t process = getpid();
    std::mutex mutex;
    std::condition_variable wake, idle;
    std::vector<std::thread> helpers;
    const std::function<void()> *work = nullptr;  // not null: a call is under way
    int64_t wanted = 0, active = 0;               // helpers that may still begin, and that have

    void help() {
        std::unique_lock<std::mutex> lock(mutex);
        for (;;) {
            wake.wait(lock, [&] { return wanted > 0; });
            --wanted, ++active;
            auto *mine = work;
            lock.unlock();
            (*mine)();
            lock.lock();
            if (--active == 0) idle.notify_one();
        }
    }
    void run(int64_t threads, const std::function<void()> &mine) {
        std::unique_lock<std::mutex> lock(mutex);
        if (threads == 1 || work) {  // a call from another thread has the helpers
            lock.unlock();
            return mine();
        }
        try {
            while (int64_t(helpers.size()) < threads - 1) helpers.emplace_back([this] { help(); });
        } catch (const std::system_error &) {
        }  // the system allows no more: do with those there are
        work = &mine, wanted = threads - 1;
        lock.unlock();
        wake.notify_all();
        mine();
        lock.lock();
        wanted = 0;
        idle.wait(lock, [&] { return active == 0; });
        work = nullptr;
    }
};

// The pool of this process: a forked child has none of its parent's threads and makes its own.
// Never deleted, since its threads live until the process ends.
Pool &pool() {
    static std::atomic<Pool *> current{nullptr};
    Pool *old = current;
    if (!old || old->process != getpid()) {
        auto *fresh = new Pool;
        if (current.compare_exchange_strong(old, fresh)) return *fresh;
        delete fresh;  // another thread was faster
    }
    return *old;
}

// The sum over a batch is the sum of its chunks in order, whoever computes them: the bits of a
// member's result depend neither on the number of threads nor on the other members.
Error run(Job &job) {
    int64_t chunk_rows = CHUNK;
    while (chunk_rows * MAX_CHUNKS < job.batch) chunk_rows *= 2;
    int64_t chunks = (job.batch + chunk_rows - 1) / chunk_rows, work = 0;
    for (int64_t l = 0; l < job.layers; ++l)
        work += 3 * job.widths[l] * job.widths[l + 1] * job.batch * job.members;
    int64_t threads = up_to(job.threads, 1 + work / THREAD_WORK);
    bool split = chunks > 1 && threads > 1 && job.members < 4 * threads;  // else whole members
    int64_t parts = split ? chunks : 1, items = job.members * parts;
    threads = up_to(items, threads);

    std::vector<Worker> workers;
    workers.reserve(threads);
    for (int64_t t = 0; t < threads; ++t) workers.emplace_back(job, chunks > 1 && !split);
    int64_t parameters = job.weight_grads ? workers[0].parameters : 0;
    std::vector<Real> partials(split ? items * parameters : 0);  // [members, chunks, parameters]
    std::vector<double> losses(items);

    // Neighbouring members share cache lines of the outputs, so a thread takes several at a time
    int64_t block = 1 + up_to(15, items / (16 * threads));
    std::atomic<int64_t> next{0}, tickets{0};
    pool().run(threads, [&] {
        Worker &worker = workers[tickets++];
        auto one = [&](int64_t item) {
            int64_t m = item / parts, first = split ? item % parts : 0;
            for (int64_t c = first; c < (split ? first + 1 : chunks); ++c) {
                Real *own = split ? partials.data() + item * parameters : worker.partial;
                Real *buffer = c == 0 ? nullptr : own;
                worker.aim(m, buffer);
                losses[item] += worker.chunk(m, c * chunk_rows,
                                             up_to((c + 1) * chunk_rows, job.batch));
                if (buffer && !split) worker.add(m, buffer);
            }
        };
        for (int64_t at; (at = next.fetch_add(block)) < items;)
            for (int64_t i = at; i < up_to(items, at + block) && !worker.error; ++i) one(i);
    });
    for (const Worker &worker : workers)
        if (worker.error) {
            job.bad_value = worker.bad_value;
            return worker.error;
        }
    for (int64_t m = 0; m < job.members; ++m) {
        double total = 0;
        for (int64_t item = m * parts; item < (m + 1) * parts; ++item) {
            total += losses[item];
            if (item > m * parts) workers[0].add(m, partials.data() + item * parameters);
        }
        job.loss[m] = total;
    }
    return OK;
}

}  // namespace

extern "C" int32_t mlp_nll(Job *job) {
    try {
        return run(*job);
    } catch (const std::bad_alloc &) {
        return NO_MEMORY;
    }
}

// to[t][m, :] = by[m] * from[t][m, :], on the calling thread: too little work to wake others for
extern "C" void mlp_scale(int64_t tensors, int64_t members, const int64_t *cells, const Real *by,
                          const Real *const *from, Real *const *to) {
    for (int64_t t = 0; t < tensors; ++t)
        for (int64_t m = 0; m < members; ++m)
            for (int64_t i = m * cells[t]; i < (m + 1) * cells[t]; ++i)
                to[t][i] = by[m] * from[t][i];
}
