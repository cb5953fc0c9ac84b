#include "natural.hpp"

// theta = m + sigma eps, and of each sigma, laid out [M, D], what the KL has of it:
//   lambda sigma^2 - log sigma^2 - 1 - log lambda,   lambda = n delta,   n = numbers[0]
KERNEL_OF(THREADS, 1)
natural_draw(const float *m, const float *log_sigma, const float *delta, const long long *order,
             const Bits *ids, const Bits *seed, const Bits *number, float *theta, float *terms,
             const float *numbers, int count, int width, int piece, int delta_step) {
    Drawn eps = {ids, *seed + *number, unsigned(width), unsigned(piece)};
    const float n = numbers[0];
    for (int k = 0; k < EACH; k++) {
        const int e = (blockIdx.x * EACH + k) * THREADS + threadIdx.x;
        if (e >= count) return;
        const unsigned place = unsigned(order[e]);
        const float s = log_sigma[e], precision = delta[e * (long long)delta_step] * n;
        theta[e] = fmaf(expf(s), eps(place), m[e]);
        terms[place] = precision * expf(2 * s) - 2 * s - 1 - logf(precision);
    }
}
