#include "natural.hpp"

// A step of training/natural.py, whose equations stand there. NaN stays NaN: no fminf, no fmaxf.
// number [1], rate [1] and counted [2], the sum of the shares so far and the last one, lie in
// memory, where a graph reads them anew at each replay. g is s times the mean gradient.
// numbers: n, 1 - b2, b1, s: the step's share, the most that log v may change, and
// (1 - b1^s) / (1 - b1)
KERNEL_OF(THREADS, 1)
natural_step(float *m, float *log_sigma, float *mean, const float *g, const float *delta,
             const float *mu, const long long *order, const Bits *ids, const Bits *seed,
             const Bits *number, const float *counted, const float *rate, const float *numbers,
             int count, int width, int piece, int delta_step, int has_mu) {
    Drawn eps = {ids, *seed + *number, unsigned(width), unsigned(piece)};
    const float n = numbers[0], forget = numbers[1], momentum = numbers[2], share = numbers[3];
    const float most = numbers[4], leaving = numbers[5], kept = powf(momentum, counted[1]);
    const float before = 1 - powf(momentum, counted[0]);
    const float now = 1 - powf(momentum, counted[0] + share);
    const float of_mean = before > 0 ? 1 / before : 1;  // the first step has no G to compare with
    const float forgets = before > 0 ? forget * share : 0, bound = share > 1 ? share : 1;
    for (int k = 0; k < EACH; k++) {
        const int e = (blockIdx.x * EACH + k) * THREADS + threadIdx.x;
        if (e >= count) return;
        const float d = delta[e * (long long)delta_step], gradient = g[e] / share, s = log_sigma[e];
        const float variance = expf(2 * s), from_prior = has_mu ? m[e] - mu[e] : m[e];

        // a = s (1 - b2) (N ((g - G / (1 - b1^(T - s))) sigma eps + delta sigma^2) - 1)
        float a = (gradient - mean[e] * of_mean) * expf(s) * eps(unsigned(order[e])) + variance * d;
        a = n * forgets * a - forgets;
        a = a > most ? most : a < -most ? -most : a;

        // v <- v (1 + a + a^2 / 2);  G <- b1^s' G + (1 - b1) s g
        const float grown = a + 0.5f * a * a, G = kept * mean[e] + (1 - momentum) * g[e];
        log_sigma[e] = s - 0.5f * log1pf(grown);
        mean[e] = G;

        // m <- m - rate N sigma^2 (... G / (1 - b1^T) + s delta (m - mu)), and not farther
        const float wide = rsqrtf(d * n), away = fabsf(from_prior);
        const float farthest = bound * (away > wide ? away : wide);
        float slope = (leaving * G / now + share * d * from_prior) * (variance / (1 + grown)) * n;
        slope = slope > farthest ? farthest : slope < -farthest ? -farthest : slope;
        m[e] -= *rate * slope;
    }
}
