// Mean negative log likelihood of M small MLPs, each on its own batch, and all its gradients, in one call.
//
//     u_l = (W_l h_l + b_l) * z_l / (1 - p_l),    h_{l+1} = f_l(u_l),    z_l ~ Bernoulli(1 - p_l)
//
// A member's batch is cut into tiles of up to 128 rows. Within a tile every quantity is stored
// [feature][row], so that all inner loops run over rows, one vector register of rows at a time, and
// a tile of a small network stays in the L1 cache from the gather to the last gradient.
// Plain C++17 with the vector extensions of GCC and Clang; mlp.py holds the torch twin.

#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#elif defined(__AVX__)
#define VECTOR_BYTES 32
#else
#define VECTOR_BYTES 16
#endif

#if defined(__clang__)
#define SHUFFLE(a, b, type, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, type, ...) __builtin_shuffle(a, b, type{__VA_ARGS__})
#endif

#define UNROLL _Pragma("GCC unroll 16")

enum Activation : int32_t { IDENTITY, RELU, TANH, SILU };
enum Likelihood : int32_t { CATEGORICAL, GAUSSIAN, HETEROSCEDASTIC };
enum Error : int32_t { OK, BAD_INDEX, BAD_LABEL, NO_MEMORY };

extern "C" struct Job {  // mirrored by mlp.py, field by field
    int64_t members, layers, rows, batch;
    const int64_t *widths;                // [layers + 1]
    const int32_t *activation;            // [layers]
    const double *dropout;                // [layers]
    const void *const *weights;           // [layers], each [members, out, in]
    const void *const *biases;            // [layers], each [members, out] or null
    void *const *weight_grads;            // as weights; null for the loss alone
    void *const *bias_grads;              // as biases
    const void *x, *y;                    // [rows, in], int64 [rows] or [rows, D]
    const int64_t *index;                 // [members, batch], or null: every row
    const int64_t *member_ids;            // [members]
    void *loss;                           // [members]
    uint64_t seed;
    double noise;
    int32_t likelihood, threads;
    void (*gomp_parallel)(void (*)(void *), void *, unsigned, unsigned);  // of torch, or null
    int64_t bad_value;                    // out: the index or label that was out of range
};

namespace {

constexpr int64_t TILE = 512 / sizeof(float);
constexpr int64_t CHUNK = 4 * TILE;   // rows summed into one partial gradient, whoever computes it
constexpr int64_t MAX_CHUNKS = 16;    // bounds the memory of partial gradients
constexpr int64_t THREAD_WORK = 200000;  // multiply-adds that repay waking a thread

// ---------------------------------------------------------------------------------------------
// Lanes: one vector register of rows, and the functions of it

template <class T> struct Constants;
template <> struct Constants<float> {
    using Int = int32_t;
    static constexpr int mantissa = 23, exp_terms = 7, log_terms = 5;
    static constexpr Int bias = 127, sqrt_half = 0x3f3504f3;
    static constexpr float exp_low = -86.6f, exp_high = 88.72f;
    static constexpr float ln2_high = 0.693145751953125f, ln2_low = 1.42860677e-6f;
};
template <> struct Constants<double> {
    using Int = int64_t;
    static constexpr int mantissa = 52, exp_terms = 13, log_terms = 10;
    static constexpr Int bias = 1023, sqrt_half = 0x3fe6a09e667f3bcd;
    static constexpr double exp_low = -707.7, exp_high = 709.78;
    static constexpr double ln2_high = 6.93147180369123816490e-01,
                            ln2_low = 1.90821492927058770002e-10;
};

template <class T> struct Lanes {
    static constexpr int count = VECTOR_BYTES / sizeof(T);
    using IntLane = typename Constants<T>::Int;
    typedef T Real __attribute__((vector_size(VECTOR_BYTES)));
    typedef IntLane Int __attribute__((vector_size(VECTOR_BYTES)));
    typedef uint32_t Bits __attribute__((vector_size(4 * count)));   // 32-bit whatever T is: one
    typedef int32_t BitMask __attribute__((vector_size(4 * count))); // mask for float and double

    static Real load(const T *p) { return *reinterpret_cast<const Real *>(p); }
    static void store(T *p, Real v) { *reinterpret_cast<Real *>(p) = v; }
    static Real all(T value) { return Real{} + value; }
    static Real max(Real a, Real b) { return a > b ? a : b; }
    static Real abs(Real a) { return a < 0 ? -a : a; }

    template <int... I> static Bits iota(std::integer_sequence<int, I...>) { return Bits{I...}; }
    static Bits iota() { return iota(std::make_integer_sequence<int, count>()); }

    // lane i: a[i] + a[i ^ D] where bit D of i is clear, b[i] + b[i ^ D] where it is set
    template <int D, int... I>
    static Real fold(Real a, Real b, std::integer_sequence<int, I...>) {
        return SHUFFLE(a, b, Int, ((I & D) ? count + I : I)...) +
               SHUFFLE(a, b, Int, ((I & D) ? count + (I ^ D) : (I ^ D))...);
    }
    // lane j of the result is the sum over lanes of v[j], for `count` vectors at once
    template <int D = count / 2>
    __attribute__((always_inline)) static inline Real sums(const Real (&v)[2 * D]) {
        Real half[D];
        UNROLL for (int j = 0; j < D; ++j)
            half[j] = fold<D>(v[j], v[j + D], std::make_integer_sequence<int, count>());
        if constexpr (D > 1) return sums<D / 2>(half);
        else return half[0];
    }
    static double sum(Real v) {
        double total = 0;
        for (int i = 0; i < count; ++i) total += v[i];
        return total;
    }

    // exp(x) = 2^k exp(r), |r| <= ln(2) / 2. Returns exp(r) - 1 and sets half = 2^(k - 1), which,
    // unlike 2^k, is a normal number for every finite result above 2^-125.
    static Real exp_parts(Real x, Real &half) {
        using C = Constants<T>;
        constexpr T magic = T(1.5) * T(IntLane(1) << C::mantissa);  // adding it rounds to integer
        Real shifted = x * T(1.4426950408889634) + magic;
        Real k = shifted - magic;
        Real r = (x - k * C::ln2_high) - k * C::ln2_low;
        half = (Real)(((Int)shifted << C::mantissa) + ((C::bias - 1) << C::mantissa));
        constexpr T factorial[] = {1., 1., 2., 6., 24., 120., 720., 5040., 40320., 362880.,
                                   3628800., 39916800., 479001600., 6227020800.};
        Real p = all(1 / factorial[C::exp_terms]);
        for (int n = C::exp_terms - 1; n > 0; --n) p = p * r + 1 / factorial[n];
        return p * r;
    }
    static Real exp(Real x) {
        Real half, p = exp_parts(x, half);
        Real y = (half * p + half) * 2;
        y = x < Constants<T>::exp_low ? all(0) : y;
        return x > Constants<T>::exp_high ? all(INFINITY) : y;
    }
    // exp(x) - 1 for x <= 0, to full relative accuracy near 0
    static Real expm1_negative(Real x) {
        x = x < -50 ? all(-50) : x;
        Real half, p = exp_parts(x, half);
        return half * p * 2 + (half * 2 - 1);
    }
    // log(x) = k ln 2 + 2 atanh((m - 1) / (m + 1)), m in [sqrt(1/2), sqrt(2)), for normal x
    static Real log(Real x) {
        using C = Constants<T>;
        constexpr T magic = T(1.5) * T(IntLane(1) << C::mantissa);
        Int bits = (Int)x;
        Int k = (bits - C::sqrt_half) >> C::mantissa;
        Real m = (Real)(bits - (k << C::mantissa));
        Real e = (Real)(k + (Int)all(magic)) - magic;  // int to real without an instruction for it
        Real s = (m - 1) / (m + 1), s2 = s * s;
        Real p = all(T(2) / (2 * C::log_terms - 1));
        for (int n = C::log_terms - 2; n >= 0; --n) p = p * s2 + T(2) / (2 * n + 1);
        return e * C::ln2_high + (s * p + e * C::ln2_low) + (x - x);  // x - x: NaN stays NaN
    }
};

// ---------------------------------------------------------------------------------------------
// Dropout bits: a 32-bit avalanche hash of the counter row * width + node under a 64-bit key

template <class U> U avalanche(U x, uint32_t key = 0) {  // lowbias32 of C. Wellons, keyed midway
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= key;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    x ^= x >> 16;
    return x;
}

struct Key { uint32_t first, second; };

Key dropout_key(uint64_t seed, int64_t member, int64_t layer) {
    const uint32_t words[] = {uint32_t(seed), uint32_t(seed >> 32), uint32_t(member),
                              uint32_t(uint64_t(member) >> 32), uint32_t(layer)};
    Key key{0x9e3779b9u, 0x85ebca6bu};
    for (uint32_t word : words) {
        key.first = avalanche(key.first ^ word) + 0x9e3779b9u;
        key.second = avalanche(key.second ^ word) + 0x85ebca6bu;
    }
    return key;
}

// ---------------------------------------------------------------------------------------------
// Matrix products over a tile, in register blocks of R x S

template <class T, int R, int S>
void affine_block(const T *a, int64_t row, int64_t column, int64_t inner, const T *bias,
                  const T *in, T *out, int64_t stride) {
    using V = Lanes<T>;
    typename V::Real sum[R][S];
    UNROLL for (int r = 0; r < R; ++r)
        UNROLL for (int s = 0; s < S; ++s) sum[r][s] = V::all(bias ? bias[r] : T(0));
    for (int64_t k = 0; k < inner; ++k) {
        typename V::Real h[S];
        UNROLL for (int s = 0; s < S; ++s) h[s] = V::load(in + k * stride + s * V::count);
        UNROLL for (int r = 0; r < R; ++r)
            UNROLL for (int s = 0; s < S; ++s) sum[r][s] += a[r * row + k * column] * h[s];
    }
    UNROLL for (int r = 0; r < R; ++r)
        UNROLL for (int s = 0; s < S; ++s) V::store(out + r * stride + s * V::count, sum[r][s]);
}

template <class T, int R, int S>
void outer_block(const T *delta, const T *in, T *grad, int64_t row, int64_t stride) {
    using V = Lanes<T>;
    typename V::Real sum[R][S];
    UNROLL for (int r = 0; r < R; ++r)
        UNROLL for (int s = 0; s < S; ++s) sum[r][s] = V::all(0);
    for (int64_t lane = 0; lane < stride; lane += V::count) {
        typename V::Real h[S];
        UNROLL for (int s = 0; s < S; ++s) h[s] = V::load(in + s * stride + lane);
        UNROLL for (int r = 0; r < R; ++r) {
            typename V::Real d = V::load(delta + r * stride + lane);
            UNROLL for (int s = 0; s < S; ++s) sum[r][s] += d * h[s];
        }
    }
    constexpr int groups = (R * S + V::count - 1) / V::count;
    T total[groups * V::count];
    UNROLL for (int g = 0; g < groups; ++g) {
        typename V::Real part[V::count];
        UNROLL for (int j = 0; j < V::count; ++j) {
            int cell = g * V::count + j;
            part[j] = cell < R * S ? sum[cell / S][cell % S] : V::all(0);
        }
        typename V::Real v = V::sums(part);
        std::memcpy(total + g * V::count, &v, sizeof v);
    }
    UNROLL for (int r = 0; r < R; ++r)
        UNROLL for (int s = 0; s < S; ++s) grad[r * row + s] += total[r * S + s];
}

// Calls f(integral_constant<R>, integral_constant<S>) for 1 <= R, S <= 4
template <class F> void with_block(int64_t r, int64_t s, F f) {
    auto inner = [&](auto R) {
        switch (s) {
            case 1: return f(R, std::integral_constant<int, 1>());
            case 2: return f(R, std::integral_constant<int, 2>());
            case 3: return f(R, std::integral_constant<int, 3>());
            default: return f(R, std::integral_constant<int, 4>());
        }
    };
    switch (r) {
        case 1: return inner(std::integral_constant<int, 1>());
        case 2: return inner(std::integral_constant<int, 2>());
        case 3: return inner(std::integral_constant<int, 3>());
        default: return inner(std::integral_constant<int, 4>());
    }
}

int64_t up_to(int64_t block, int64_t left) { return left < block ? left : block; }

// out[r] = bias[r] + sum_k a[r * row + k * column] in[k], for r < outer
template <class T>
void affine(const T *a, int64_t row, int64_t column, int64_t outer, int64_t inner, const T *bias,
            const T *in, T *out, int64_t stride) {
    int64_t vectors = stride / Lanes<T>::count;
    for (int64_t v = 0; v < vectors; v += 4)
        for (int64_t r = 0; r < outer; r += 4)
            with_block(up_to(4, outer - r), up_to(4, vectors - v), [&](auto R, auto S) {
                int64_t lane = v * Lanes<T>::count;
                affine_block<T, R.value, S.value>(a + r * row, row, column, inner,
                                                  bias ? bias + r : nullptr, in + lane,
                                                  out + r * stride + lane, stride);
            });
}

// grad[r, s] += sum over rows of delta[r] in[s]
template <class T>
void outer_product(const T *delta, const T *in, T *grad, int64_t outputs, int64_t inputs,
                   int64_t stride) {
    for (int64_t r = 0; r < outputs; r += 4)
        for (int64_t s = 0; s < inputs; s += 4)
            with_block(up_to(4, outputs - r), up_to(4, inputs - s), [&](auto R, auto S) {
                outer_block<T, R.value, S.value>(delta + r * stride, in + s * stride,
                                                 grad + r * inputs + s, inputs, stride);
            });
}

// delta *= slope (unless null); grad[r] += sum over rows of delta[r] (unless null)
template <class T>
void through_slope(T *delta, const T *slope, T *grad, int64_t outputs, int64_t stride) {
    using V = Lanes<T>;
    for (int64_t r = 0; r < outputs; r += V::count) {
        typename V::Real sum[V::count];
        for (int j = 0; j < V::count; ++j) sum[j] = V::all(0);
        int64_t some = up_to(V::count, outputs - r);
        for (int64_t j = 0; j < some; ++j)
            for (int64_t at = (r + j) * stride, end = at + stride; at < end; at += V::count) {
                typename V::Real d = V::load(delta + at);
                if (slope) V::store(delta + at, d *= V::load(slope + at));
                sum[j] += d;
            }
        typename V::Real total = V::sums(sum);
        for (int64_t j = 0; grad && j < some; ++j) grad[r + j] += total[j];
    }
}

// ---------------------------------------------------------------------------------------------
// One member's tile, chunk and batch

template <class T> struct Worker {
    using V = Lanes<T>;
    using Real = typename V::Real;

    const Job &job;
    int64_t widest = 0, parameters = 0;
    std::unique_ptr<T, void (*)(void *)> memory{nullptr, std::free};
    std::vector<T *> h, slope;  // h[l]: input of layer l; slope[l]: d h[l + 1] / d (W h + b)
    T *delta, *next, *target, *partial;
    std::vector<T *> weight_grad, bias_grad;  // where the gradients of a chunk are added
    int64_t picked[TILE];                     // rows of x
    Error error = OK;
    int64_t bad_value = 0;

    Worker(const Job &job, bool with_partial)
        : job(job), weight_grad(job.layers), bias_grad(job.layers) {
        int64_t L = job.layers, rows = 0;
        for (int64_t l = 0; l <= L; ++l) {
            widest = widest < job.widths[l] ? job.widths[l] : widest;
            rows += job.widths[l] + (l > 0 && has_slope(l - 1) ? job.widths[l] : 0);
            if (l > 0) parameters += job.widths[l] * (job.widths[l - 1] + 1);
        }
        rows += 3 * widest;
        size_t cells = rows * TILE + (with_partial ? (parameters + V::count) : 0);
        cells = (cells + 15) / 16 * 16;
        memory.reset(static_cast<T *>(std::aligned_alloc(64, cells * sizeof(T))));
        if (!memory) throw std::bad_alloc();
        T *p = memory.get();
        auto take = [&](int64_t width) { T *here = p; p += width * TILE; return here; };
        for (int64_t l = 0; l <= L; ++l) h.push_back(take(job.widths[l]));
        for (int64_t l = 0; l < L; ++l)
            slope.push_back(has_slope(l) ? take(job.widths[l + 1]) : nullptr);
        delta = take(widest), next = take(widest), target = take(widest);
        partial = p;
    }

    bool has_slope(int64_t l) const { return job.activation[l] != IDENTITY || job.dropout[l] > 0; }
    const T *weights(int64_t l, int64_t m) const {
        return static_cast<const T *>(job.weights[l]) + m * job.widths[l] * job.widths[l + 1];
    }
    const T *biases(int64_t l, int64_t m) const {
        auto b = static_cast<const T *>(job.biases[l]);
        return b ? b + m * job.widths[l + 1] : nullptr;
    }

    // h[0][i][lane] = x[row of lane][i]; lanes beyond the batch repeat its last row, so that they
    // overflow only where a real row does, and get delta = 0
    bool gather(int64_t m, int64_t start, int64_t rows, int64_t stride) {
        const int64_t *index = job.index ? job.index + m * job.batch + start : nullptr;
        for (int64_t lane = 0; lane < rows; ++lane) {
            int64_t row = index ? index[lane] : start + lane;
            if (row < 0 || row >= job.rows) return fail(BAD_INDEX, row);
            picked[lane] = row;
        }
        for (int64_t lane = rows; lane < stride; ++lane) picked[lane] = picked[rows - 1];
        take_rows(static_cast<const T *>(job.x), job.widths[0], h[0], stride);
        return true;
    }
    void take_rows(const T *from, int64_t width, T *to, int64_t stride) const {
        for (int64_t i = 0; i < width; ++i)
            for (int64_t lane = 0; lane < stride; ++lane)
                to[i * stride + lane] = from[picked[lane] * width + i];
    }
    bool fail(Error kind, int64_t value) {
        error = kind, bad_value = value;
        return false;
    }

    // u *= z / (1 - p) and u -> f(u) in place; slope = f'(u) z / (1 - p)
    template <int F> void activate(int64_t l, int64_t m, int64_t start, int64_t stride) {
        double p = job.dropout[l];
        Key key = p > 0 ? dropout_key(job.seed, job.member_ids[m], l) : Key{};
        auto threshold = uint32_t(std::fmin(std::rint(std::ldexp(p, 32)), 4294967295.0));
        uint32_t width = job.widths[l + 1];
        T scale = 1 / (1 - p);
        for (uint32_t node = 0; node < width; ++node) {
            T *u_row = h[l + 1] + node * stride, *slope_row = slope[l] + node * stride;
            typename V::Bits counter = (V::iota() + uint32_t(start)) * width + node;
            for (int64_t lane = 0; lane < stride; lane += V::count) {
                Real u = V::load(u_row + lane), factor = V::all(1);
                if (p > 0) {
                    auto bits = avalanche<typename V::Bits>(counter ^ key.first, key.second);
                    auto keep = __builtin_convertvector(
                        (typename V::BitMask)(bits >= threshold), typename V::Int);
                    factor = keep ? V::all(scale) : V::all(0);
                    u *= factor;
                    counter += uint32_t(V::count) * width;
                }
                Real f = u, df = V::all(1);
                if (F == RELU) {
                    f = u <= 0 ? V::all(0) : u;
                    df = u <= 0 ? V::all(0) : df;
                } else if (F == TANH) {
                    Real e = V::expm1_negative(V::abs(u) * -2);
                    Real t = -e / (e + 2);
                    f = u < 0 ? -t : t;
                    df = 1 - f * f;
                } else if (F == SILU) {
                    Real e = V::exp(-V::abs(u));
                    Real sigmoid = (u < 0 ? e : V::all(1)) / (e + 1);
                    f = u * sigmoid;
                    df = sigmoid * (1 + u * (1 - sigmoid));
                }
                V::store(u_row + lane, f);
                V::store(slope_row + lane, df * factor);
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

    // weight of a lane in the mean: 1 / batch, and 0 beyond the batch
    Real lane_weight(int64_t lane, int64_t rows) const {
        auto inside = (typename V::BitMask)(V::iota() < uint32_t(rows - lane));
        return __builtin_convertvector(inside, typename V::Int) ? V::all(T(1) / T(job.batch))
                                                                 : V::all(0);
    }

    // nll = log sum_c exp(z_c) - z_y;  delta_c = softmax(z)_c - [c = y]
    double categorical(const T *z, int64_t rows, int64_t stride) {
        int64_t classes = job.widths[job.layers];
        auto *label = reinterpret_cast<typename V::IntLane *>(target);
        for (int64_t lane = 0; lane < stride; ++lane) {
            int64_t y = static_cast<const int64_t *>(job.y)[picked[lane]];
            if (y < 0 || y >= classes) return fail(BAD_LABEL, y);
            label[lane] = y;
        }
        Real total = V::all(0);
        for (int64_t lane = 0; lane < stride; lane += V::count) {
            auto y = *reinterpret_cast<typename V::Int *>(label + lane);
            Real top = V::load(z + lane), sum = V::all(0), chosen = V::all(0);
            for (int64_t c = 1; c < classes; ++c) top = V::max(V::load(z + c * stride + lane), top);
            for (int64_t c = 0; c < classes; ++c) {
                Real shifted = V::load(z + c * stride + lane) - top;
                Real e = V::exp(shifted);
                V::store(delta + c * stride + lane, e);
                chosen = y == typename V::IntLane(c) ? shifted : chosen;
                sum += e;
            }
            Real weight = lane_weight(lane, rows), scale = weight / sum;
            total += (V::log(sum) - chosen) * weight;
            for (int64_t c = 0; c < classes; ++c) {
                Real hit = y == typename V::IntLane(c) ? weight : V::all(0);
                T *d = delta + c * stride + lane;
                V::store(d, V::load(d) * scale - hit);
            }
        }
        return V::sum(total);
    }

    // nll = sum_d ((y_d - mu_d)^2 / s^2 + log(2 pi s^2)) / 2
    double gaussian(const T *mean, int64_t rows, int64_t stride) {
        int64_t D = job.widths[job.layers];
        T precision = 1 / (job.noise * job.noise), constant = std::log(2 * M_PI / precision) / 2;
        take_rows(static_cast<const T *>(job.y), D, target, stride);
        Real total = V::all(0);
        for (int64_t lane = 0; lane < stride; lane += V::count) {
            Real weight = lane_weight(lane, rows);
            for (int64_t at = lane; at < D * stride; at += stride) {
                Real residual = V::load(mean + at) - V::load(target + at);
                total += (residual * residual * (precision / 2) + constant) * weight;
                V::store(delta + at, residual * precision * weight);
            }
        }
        return V::sum(total);
    }

    // nll = sum_d ((y_d - mu_d)^2 exp(-v_d) + v_d + log(2 pi)) / 2
    double heteroscedastic(const T *mean, int64_t rows, int64_t stride) {
        int64_t D = job.widths[job.layers] / 2;
        T constant = std::log(2 * M_PI) / 2;
        take_rows(static_cast<const T *>(job.y), D, target, stride);
        Real total = V::all(0);
        for (int64_t lane = 0; lane < stride; lane += V::count) {
            Real weight = lane_weight(lane, rows);
            for (int64_t at = lane; at < D * stride; at += stride) {
                Real residual = V::load(mean + at) - V::load(target + at);
                Real log_variance = V::load(mean + D * stride + at);
                Real precision = V::exp(-log_variance);
                Real square = residual * residual * precision;
                total += ((square + log_variance) * T(0.5) + constant) * weight;
                V::store(delta + at, residual * precision * weight);
                V::store(delta + D * stride + at, (1 - square) * T(0.5) * weight);
            }
        }
        return V::sum(total);
    }

    // Returns the tile's part of the loss and adds that of the gradients
    double tile(int64_t m, int64_t start, int64_t rows) {
        int64_t L = job.layers, stride = (rows + V::count - 1) / V::count * V::count;
        if (!gather(m, start, rows, stride)) return 0;
        for (int64_t l = 0; l < L; ++l) {
            int64_t in = job.widths[l], out = job.widths[l + 1];
            affine(weights(l, m), in, 1, out, in, biases(l, m), h[l], h[l + 1], stride);
            if (slope[l]) activate(l, m, start, stride);
        }
        double loss = job.likelihood == CATEGORICAL ? categorical(h[L], rows, stride)
                      : job.likelihood == GAUSSIAN  ? gaussian(h[L], rows, stride)
                                                    : heteroscedastic(h[L], rows, stride);
        if (!job.weight_grads || error) return loss;
        for (int64_t l = L - 1; l >= 0; --l) {
            int64_t in = job.widths[l], out = job.widths[l + 1];
            through_slope(delta, slope[l], bias_grad[l], out, stride);
            outer_product(delta, h[l], weight_grad[l], out, in, stride);
            if (l == 0) break;
            affine<T>(weights(l, m), 1, in, in, out, nullptr, delta, next, stride);
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

    // Sets where gradients are added, and clears it: the outputs of member m, or, if there is one,
    // a buffer of `parameters` cells
    void aim(int64_t m, T *buffer) {
        for (int64_t l = 0; l < job.layers && job.weight_grads; ++l) {
            int64_t in = job.widths[l], out = job.widths[l + 1];
            auto w = static_cast<T *>(job.weight_grads[l]), b = static_cast<T *>(job.bias_grads[l]);
            weight_grad[l] = buffer ? buffer : w + m * in * out;
            bias_grad[l] = !b ? nullptr : buffer ? buffer + in * out : b + m * out;
            std::memset(weight_grad[l], 0, in * out * sizeof(T));
            if (b) std::memset(bias_grad[l], 0, out * sizeof(T));
            if (buffer) buffer += (in + 1) * out;
        }
    }
    // outputs of member m += buffer
    void add(int64_t m, const T *buffer) const {
        for (int64_t l = 0; l < job.layers && job.weight_grads; ++l) {
            int64_t in = job.widths[l], out = job.widths[l + 1];
            auto w = static_cast<T *>(job.weight_grads[l]), b = static_cast<T *>(job.bias_grads[l]);
            for (int64_t i = 0; i < in * out; ++i) w[m * in * out + i] += buffer[i];
            for (int64_t i = 0; b && i < out; ++i) b[m * out + i] += buffer[in * out + i];
            buffer += (in + 1) * out;
        }
    }
};

// ---------------------------------------------------------------------------------------------
// Threads. The sum over a batch is always the sum of its chunks in order, so that the bits of the
// result depend neither on the number of threads nor on whether they share members or chunks.

// work(thread), on up to `threads` threads: those of torch's own OpenMP runtime if Job names it.
// (A second set of threads would fight for the cores with torch's, which spin for milliseconds
// after each of torch's operations.) Fewer threads may come: the work is shared by a counter.
template <class F> void parallel(const Job &job, int64_t threads, F work) {
    struct Team { F &work; std::atomic<int64_t> tickets; } team{work, {0}};
    auto enter = [](void *data) {
        auto *team = static_cast<Team *>(data);
        team->work(team->tickets++);
    };
    if (threads == 1) return enter(&team);
    if (job.gomp_parallel) return job.gomp_parallel(enter, &team, threads, 0);
    std::vector<std::thread> others;
    try {
        for (int64_t t = 1; t < threads; ++t) others.emplace_back(+enter, &team);
    } catch (const std::system_error &) {
    }
    enter(&team);
    for (auto &other : others) other.join();
}

template <class T> Error run(Job &job) {
    int64_t chunk_rows = CHUNK;
    while (chunk_rows * MAX_CHUNKS < job.batch) chunk_rows *= 2;
    int64_t chunks = (job.batch + chunk_rows - 1) / chunk_rows, macs = 0;
    for (int64_t l = 0; l < job.layers; ++l) macs += job.widths[l] * job.widths[l + 1];
    int64_t useful = 1 + 3 * macs * job.batch * job.members / THREAD_WORK;
    int64_t threads = up_to(useful, job.threads);
    bool split = chunks > 1 && threads > 1 && job.members < 4 * threads;
    int64_t items = split ? job.members * chunks : job.members;
    threads = up_to(items, threads);
    bool with_grad = job.weight_grads != nullptr;
    T *loss = static_cast<T *>(job.loss);

    std::vector<Worker<T>> workers;
    workers.reserve(threads);
    for (int64_t t = 0; t < threads; ++t)
        workers.emplace_back(job, with_grad && chunks > 1 && !split);
    std::vector<T> partials;        // split: [members, chunks - 1, parameters]
    std::vector<double> losses(items);
    if (split && with_grad) partials.resize(job.members * (chunks - 1) * workers[0].parameters);
    auto partial = [&](int64_t m, int64_t c) {
        return partials.data() + (m * (chunks - 1) + c - 1) * workers[0].parameters;
    };

    std::atomic<int64_t> next{0};
    parallel(job, threads, [&](int64_t t) {
        Worker<T> &worker = workers[t];
        for (int64_t item; (item = next++) < items && !worker.error;) {
            int64_t m = split ? item / chunks : item, first = split ? item % chunks : 0;
            int64_t last = split ? first + 1 : chunks;
            losses[item] = 0;
            for (int64_t c = first; c < last; ++c) {
                int64_t start = c * chunk_rows, end = up_to(start + chunk_rows, job.batch);
                T *buffer = c == 0 ? nullptr : split ? partial(m, c) : worker.partial;
                worker.aim(m, buffer);
                losses[item] += worker.chunk(m, start, end);
                if (buffer && !split) worker.add(m, buffer);
            }
        }
    });
    for (const Worker<T> &worker : workers)
        if (worker.error) {
            job.bad_value = worker.bad_value;
            return worker.error;
        }
    for (int64_t m = 0; m < job.members; ++m) {
        double total = 0;
        for (int64_t i = 0, n = items / job.members; i < n; ++i) total += losses[m * n + i];
        loss[m] = T(total);
        for (int64_t c = 1; split && c < chunks; ++c) workers[0].add(m, partial(m, c));
    }
    return OK;
}

template <class T> int32_t guarded(Job *job) {
    try {
        return run<T>(*job);
    } catch (const std::bad_alloc &) {
        return NO_MEMORY;
    }
}

}  // namespace

extern "C" int32_t mlp_nll_float(Job *job) { return guarded<float>(job); }
extern "C" int32_t mlp_nll_double(Job *job) { return guarded<double>(job); }
