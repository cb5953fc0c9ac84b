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

#include "slope.hpp"

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
