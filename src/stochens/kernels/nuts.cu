// The chains of a small MLP on a GPU: a block of threads for each chain, which runs it for as many
// leapfrog steps as asked without leaving the GPU. Compiled for one network: WIDTHS, ACTIVATIONS
// (a list each), BIAS_AT, WEIGHT_AT, LIKELIHOOD, REAL, PARAMETERS, THREADS.
//
// A thread takes every THREADS-th row of the data through the network and back, all in registers,
// the gradient of every parameter included; then the threads' gradients are summed.

typedef REAL Real;
#define DEVICE __device__ inline

namespace math {
DEVICE double infinity() { return __longlong_as_double(0x7ff0000000000000ll); }
DEVICE double ceil(double x) { return ::ceil(x); }
DEVICE double cos(double x) { return ::cos(x); }
DEVICE double exp(double x) { return ::exp(x); }
DEVICE double fmin(double x, double y) { return ::fmin(x, y); }
DEVICE double log(double x) { return ::log(x); }
DEVICE double log1p(double x) { return ::log1p(x); }
DEVICE double pow(double x, double y) { return ::pow(x, y); }
DEVICE double sqrt(double x) { return ::sqrt(x); }
}  // namespace math

#include "nuts.hpp"

enum { IDENTITY, RELU, TANH, SILU };
enum { CATEGORICAL, GAUSSIAN, HETEROSCEDASTIC };

DEVICE constexpr int width(int l) { const int w[] = {WIDTHS}; return w[l]; }
DEVICE constexpr int activation(int l) { const int a[] = {ACTIVATIONS}; return a[l]; }
DEVICE constexpr int weight_at(int l) { const int a[] = {WEIGHT_AT}; return a[l]; }
DEVICE constexpr int bias_at(int l) { const int a[] = {BIAS_AT}; return a[l]; }
constexpr int sizes[] = {WIDTHS};
constexpr int LAYERS = sizeof(sizes) / sizeof(int) - 1, OUT = sizes[LAYERS];
DEVICE constexpr int node_at(int l) { return l == 0 ? 0 : node_at(l - 1) + width(l - 1); }
DEVICE constexpr int widest(int l = LAYERS) {
    return l == 0 ? width(0) : width(l) > widest(l - 1) ? width(l) : widest(l - 1);
}
constexpr int NODES = node_at(LAYERS) + OUT, WIDEST = widest();
constexpr int TARGETS = LIKELIHOOD == HETEROSCEDASTIC ? OUT / 2 : OUT;
constexpr int WARPS = THREADS / 32;
constexpr int SHARE = (PARAMETERS + 31) / 32, PADDED = 32 * SHARE;  // of a lane, of a warp

template <int F> DEVICE Real apply(Real u) {
    if (F == RELU) return u <= 0 ? Real(0) : u;
    if (F == TANH) return ::tanh(u);
    if (F == SILU) return u / (1 + ::exp(-u));
    return u;
}
template <int F> DEVICE Real slope(Real u, Real f) {
    if (F == RELU) return f <= 0 ? Real(0) : Real(1);  // u is then not kept
    if (F == TANH) return 1 - f * f;
    if (F == SILU) {
        Real sigmoid = 1 / (1 + ::exp(-u));
        return sigmoid * (1 + u * (1 - sigmoid));
    }
    return 1;
}

template <int l> DEVICE void forward(const Real *w, Real *h, Real *u) {
#pragma unroll
    for (int j = 0; j < width(l + 1); ++j) {
        Real sum = bias_at(l) < 0 ? Real(0) : w[bias_at(l) + j];
#pragma unroll
        for (int i = 0; i < width(l); ++i)
            sum += w[weight_at(l) + j * width(l) + i] * h[node_at(l) + i];
        u[node_at(l + 1) + j] = sum;
        h[node_at(l + 1) + j] = apply<activation(l)>(sum);
    }
    if constexpr (l + 1 < LAYERS) forward<l + 1>(w, h, u);
}

template <int l>
DEVICE void backward(const Real *w, const Real *h, const Real *u, Real *delta, Real *grad) {
#pragma unroll
    for (int j = 0; j < width(l + 1); ++j) {
        int at = node_at(l + 1) + j;
        delta[j] *= slope<activation(l)>(u[at], h[at]);
        if (bias_at(l) >= 0) grad[bias_at(l) + j] += delta[j];
#pragma unroll
        for (int i = 0; i < width(l); ++i)
            grad[weight_at(l) + j * width(l) + i] += delta[j] * h[node_at(l) + i];
    }
    if constexpr (l > 0) {
        Real next[WIDEST];
#pragma unroll
        for (int i = 0; i < width(l); ++i) {
            next[i] = 0;
#pragma unroll
            for (int j = 0; j < width(l + 1); ++j)
                next[i] += w[weight_at(l) + j * width(l) + i] * delta[j];
        }
        backward<l - 1>(w, h, u, next, grad);
    }
}

// -log p(y | z), and delta = its slope in z
DEVICE Real loss(const Real *z, const void *y, Int row, double noise, Real *delta) {
    if constexpr (LIKELIHOOD == CATEGORICAL) {
        int label = int(static_cast<const Int *>(y)[row]);
        Real top = z[0], sum = 0, chosen = 0;
#pragma unroll
        for (int c = 1; c < OUT; ++c) top = z[c] > top || z[c] != z[c] ? z[c] : top;
#pragma unroll
        for (int c = 0; c < OUT; ++c) {
            delta[c] = ::exp(z[c] - top);
            sum += delta[c];
            if (c == label) chosen = z[c] - top;
        }
#pragma unroll
        for (int c = 0; c < OUT; ++c) delta[c] = delta[c] / sum - (c == label ? Real(1) : Real(0));
        return ::log(sum) - chosen;
    } else {
        const Real *wanted = static_cast<const Real *>(y) + row * TARGETS;
        Real total = 0;
#pragma unroll
        for (int d = 0; d < TARGETS; ++d) {
            Real log_variance = LIKELIHOOD == HETEROSCEDASTIC ? z[OUT - TARGETS + d]
                                                              : Real(2 * ::log(noise));
            Real precision = ::exp(-log_variance), residual = z[d] - wanted[d];
            Real square = residual * residual * precision;
            total += Real(0.5) * (square + log_variance + Real(1.8378770664093453));
            delta[d] = residual * precision;
            if (LIKELIHOOD == HETEROSCEDASTIC) delta[OUT - TARGETS + d] = Real(0.5) * (1 - square);
        }
        return total;
    }
}

struct Block {
    Pair (*buffers)[WARPS];  // two, so that one wait for all the threads is enough
    int turn = 0;

    template <class F> DEVICE void each(Int n, F f) {
        for (Int i = threadIdx.x; i < n; i += THREADS) f(i);
    }
    template <class F> DEVICE Pair sums(Int n, F f) {
        Pair own{0, 0};
        for (Int i = threadIdx.x; i < n; i += THREADS) {
            Pair one = f(i);
            own.first += one.first, own.second += one.second;
        }
        for (int step = 16; step; step >>= 1) {
            own.first += __shfl_xor_sync(~0u, own.first, step);
            own.second += __shfl_xor_sync(~0u, own.second, step);
        }
        Pair *buffer = buffers[turn ^= 1];
        if (threadIdx.x % 32 == 0) buffer[threadIdx.x / 32] = own;
        __syncthreads();
        Pair total{0, 0};
        for (int w = 0; w < WARPS; ++w)
            total.first += buffer[w].first, total.second += buffer[w].second;
        return total;
    }
};

struct Slope {
    const Real *x;
    const void *y;
    Int rows;
    double noise;
    Block &team;
    Real *w;                  // [PARAMETERS] shared
    Real (*partial)[PADDED];  // [WARPS] shared
    double *losses;           // [WARPS] shared

    // v[k] of every lane, summed over the warp: lane i keeps those of i * SHARE + k
    template <int HALF, int BIT> DEVICE static void scatter(Real *v, int lane) {
        bool high = lane & BIT;
#pragma unroll
        for (int k = 0; k < HALF; ++k) {
            Real send = high ? v[k] : v[k + HALF], keep = high ? v[k + HALF] : v[k];
            v[k] = keep + __shfl_xor_sync(~0u, send, BIT);
        }
        if constexpr (BIT > 1) scatter<HALF / 2, BIT / 2>(v, lane);
    }

    DEVICE double operator()(const Real *q, Real *g) {
        team.each(PARAMETERS, [&](Int i) { w[i] = q[i]; });
        __syncthreads();
        Real grad[PADDED], h[NODES], u[NODES], delta[WIDEST];
#pragma unroll
        for (int i = 0; i < PADDED; ++i) grad[i] = 0;
        double energy = 0;
        for (Int row = threadIdx.x; row < rows; row += THREADS) {
#pragma unroll
            for (int i = 0; i < width(0); ++i) h[i] = x[row * width(0) + i];
            forward<0>(w, h, u);
            energy += double(loss(h + node_at(LAYERS), y, row, noise, delta));
            backward<LAYERS - 1>(w, h, u, delta, grad);
        }
        int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        scatter<PADDED / 2, 16>(grad, lane);
#pragma unroll
        for (int k = 0; k < SHARE; ++k) partial[warp][lane * SHARE + k] = grad[k];
        for (int step = 16; step; step >>= 1) energy += __shfl_xor_sync(~0u, energy, step);
        if (lane == 0) losses[warp] = energy;
        __syncthreads();
        team.each(PARAMETERS, [&](Int i) {
            Real sum = 0;
            for (int k = 0; k < WARPS; ++k) sum += partial[k][i];
            g[i] = sum;
        });
        energy = 0;
        for (int k = 0; k < WARPS; ++k) energy += losses[k];
        return energy;
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    nuts_advance(const Sampler *__restrict__ sampler, const Real *__restrict__ x, const void *y, const double *noise,
                 int rows, int iterations) {
    __shared__ Pair buffers[2][WARPS];
    __shared__ Real w[PARAMETERS], partial[WARPS][PADDED];
    __shared__ double losses[WARPS];
    Block team{buffers};
    Slope gradient{x, y, rows, *noise, team, w, partial, losses};
    Chain<Block, Slope> chain(*sampler, blockIdx.x, team, gradient);
    for (int i = 0; i < iterations && !chain.resting(); ++i) chain.iterate();
    __syncthreads();
    if (threadIdx.x == 0) chain.save();
}
