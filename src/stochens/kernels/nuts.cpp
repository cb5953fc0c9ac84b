// The chains of a small MLP on a CPU: a thread takes a chain and moves it on, with the gradient of
// mlp.cpp. Chains do not wait for each other.

#include "mlp.cpp"

#define DEVICE inline
namespace math {
inline double infinity() { return INFINITY; }
using std::ceil;
using std::cos;
using std::exp;
using std::fmin;
using std::log;
using std::log1p;
using std::pow;
using std::sqrt;
}  // namespace math

namespace sampling {
#include "nuts.hpp"

struct Alone {
    template <class F> INLINE void each(Int n, F f) {
        for (Int i = 0; i < n; ++i) f(i);
    }
    template <class F> INLINE Pair sums(Int n, F f) {
        Pair total{0, 0};
        for (Int i = 0; i < n; ++i) {
            Pair one = f(i);
            total.first += one.first, total.second += one.second;
        }
        return total;
    }
};

// N nll and its slope, of one chain's flat parameters
struct Slope {
    Job job;
    std::vector<const Real *> weights, biases;
    std::vector<Real *> weight_grads, bias_grads;
    const int64_t *weight_at, *bias_at;  // where each layer's begin in q; -1 for no bias
    int64_t parameters;
    Worker worker;

    Slope(const Job &like, const int64_t *weight_at, const int64_t *bias_at, int64_t parameters)
        : job(like), weights(2 * like.layers), biases(2 * like.layers),
          weight_grads(2 * like.layers), bias_grads(2 * like.layers), weight_at(weight_at),
          bias_at(bias_at), parameters(parameters), worker(aimed(), false) {}

    const Job &aimed() {
        job.weights = weights.data(), job.biases = biases.data();
        job.weight_grads = weight_grads.data(), job.bias_grads = bias_grads.data();
        return job;
    }
    double operator()(const Real *q, Real *g) {
        for (int64_t l = 0; l < job.layers; ++l) {
            weights[l] = q + weight_at[l], weight_grads[l] = g + weight_at[l];
            bool bias = bias_at[l] >= 0;
            biases[l] = bias ? q + bias_at[l] : nullptr;
            bias_grads[l] = bias ? g + bias_at[l] : nullptr;
        }
        worker.aim(0, nullptr);
        double mean = worker.chunk(0, 0, job.batch);
        for (int64_t i = 0; i < parameters; ++i) g[i] *= Real(job.batch);
        return mean * double(job.batch);
    }
};

}  // namespace sampling

extern "C" int32_t nuts_advance(Job *job, const sampling::Sampler *sampler,
                                const int64_t *weight_at, const int64_t *bias_at,
                                int64_t iterations) {
    using namespace sampling;
    try {
        int64_t threads = up_to(job->threads, sampler->chains);
        std::vector<std::unique_ptr<Slope>> slopes;
        for (int64_t t = 0; t < threads; ++t)
            slopes.push_back(
                std::make_unique<Slope>(*job, weight_at, bias_at, sampler->parameters));
        std::atomic<int64_t> next{0}, tickets{0};
        pool().run(threads, [&] {
            Slope &slope = *slopes[tickets++];
            Alone team;
            for (int64_t m; (m = next++) < sampler->chains && !slope.worker.error;) {
                Chain<Alone, Slope> chain(*sampler, m, team, slope);
                for (int64_t i = 0; i < iterations && !chain.resting(); ++i) chain.iterate();
                chain.save();
            }
        });
        for (const auto &slope : slopes)
            if (slope->worker.error) {
                job->bad_value = slope->worker.bad_value;
                return slope->worker.error;
            }
        return OK;
    } catch (const std::bad_alloc &) {
        return NO_MEMORY;
    }
}
