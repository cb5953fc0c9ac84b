// Microcanonical Langevin chains of a small MLP on a CPU: samplers/mclmc_steps.py says what a step
// does and mclmc_trials.py what a trial does, in the same order and with the same random numbers. A thread takes a chain and moves it on,
// with the gradient of mlp.cpp. Chains do not wait for each other.

#include "mlp.cpp"

#define DEVICE inline

namespace walking {
#include "splitmix.hpp"
#include "slope.hpp"

extern "C" struct Walk {  // mirrored by kernels/mclmc.py, field by field
    int64_t members, parameters, steps, first, watches, trials;
    double precision, turn, large, forget, trust, shrink, learn, rare, small, target;
    const double *wanted;  // [steps], the energy variance that h is tuned to; null: h stays
    const Bits *key;       // [members]
    // the State of mclmc_steps.py, in its order
    Real *q, *u, *g;
    double *energy;
    Real *scale, *mean, *square;
    double *seen, *size, *most, *ratio, *weight, *length, *errors, *failed;
    // the Trial of mclmc_trials.py, in its order; only where there are trials
    Real *begin_q, *begin_g;
    double *begin_energy, *left, *total, *accept, *ended, *log_size, *share;
};

enum { MOMENTUM, LEAF, DIRECTION, MERGE, LENGTH, PURPOSES = 8 };

struct Chain {
    const Walk &walk;
    Slope &slope;
    const int64_t m, D;
    Real *q, *u, *g, *scale, *mean, *square;
    std::vector<Real> new_q, new_u, new_g;

    Chain(const Walk &walk, int64_t m, Slope &slope)
        : walk(walk), slope(slope), m(m), D(walk.parameters), q(walk.q + m * D),
          u(walk.u + m * D), g(walk.g + m * D), scale(walk.scale + m * D),
          mean(walk.mean + m * D), square(walk.square + m * D), new_q(D), new_u(D), new_g(D) {}

    // U at new_q, and its slope in new_g
    double look() {
        double likelihood = slope(new_q.data(), new_g.data()), prior = 0;
        for (int64_t i = 0; i < D; ++i) {
            prior += double(new_q[i]) * double(new_q[i]);
            new_g[i] += Real(walk.precision) * new_q[i];
        }
        return likelihood + 0.5 * walk.precision * prior;
    }
    // new_u turned for a time h in the field of `force`; (D - 1) log r
    double turn(const Real *force, double h) {
        double size = 0, along = 0, length = 0;
        for (int64_t i = 0; i < D; ++i) {
            double f = double(scale[i]) * double(force[i]);
            size += f * f, along -= f * double(new_u[i]);
        }
        size = std::sqrt(size);
        if (size < std::numeric_limits<Real>::min()) size = std::numeric_limits<Real>::min();
        along /= size;
        along = along > 1 ? 1 : along < -1 ? -1 : along;
        double delta = h * size / double(D - 1), zeta = std::exp(-delta);
        double towards = -(1 - zeta) * (1 + zeta + along * (1 - zeta)) / size;
        for (int64_t i = 0; i < D; ++i) {
            double turned = towards * double(scale[i]) * double(force[i]) + 2 * zeta * new_u[i];
            length += turned * turned;
            new_u[i] = Real(turned);
        }
        length = 1 / std::sqrt(length);
        for (int64_t i = 0; i < D; ++i) new_u[i] = Real(new_u[i] * length);
        double inside = 0.5 * (1 + along + (1 - along) * std::exp(-2 * delta));
        return double(D - 1) * (delta + std::log(inside));
    }
    void drift(double half) {
        for (int64_t i = 0; i < D; ++i) new_q[i] += Real(half) * scale[i] * new_u[i];
    }
    bool finite() const {
        double total = 0;  // a number that is none makes the sum none
        for (int64_t i = 0; i < D; ++i) total += std::abs(new_q[i]) + std::abs(new_g[i]);
        for (int64_t i = 0; i < D; ++i) total += std::abs(new_u[i]);
        return std::isfinite(total);
    }
    double uniform(int64_t step, Bits index, int purpose = MOMENTUM) const {
        Bits stream = mix(walk.key[m] + Bits(step * PURPOSES + purpose + 1) * GOLDEN);
        return (double(mix((stream + index + 1) * GOLDEN) >> 12) + 0.5) * 0x1p-52;
    }
    void forget_direction(int64_t step, double h) {
        turn_by_noise(step, 1, std::sqrt(std::expm1(2 * h / walk.length[m]) / double(D)));
    }
    // u <- (keep u + nu n) / |keep u + nu n|
    void turn_by_noise(int64_t step, double keep, double nu) {
        double length = 0;
        for (int64_t i = 0; i < D; ++i) {
            double radius = std::sqrt(-2 * std::log(uniform(step, Bits(i))));
            double n = radius * std::cos(2 * 3.141592653589793 * uniform(step, Bits(i + D)));
            double v = keep * double(u[i]) + nu * n;
            length += v * v;
            u[i] = Real(v);
        }
        length = 1 / std::sqrt(length);
        for (int64_t i = 0; i < D; ++i) u[i] = Real(u[i] * length);
    }
    void adapt(double wanted, double error, bool fine, double before) {
        double h = walk.size[m], round = 0.5 * std::numeric_limits<Real>::epsilon() * before;
        double &ratio = walk.ratio[m], &weight = walk.weight[m], &most = walk.most[m];
        double xi = error * error / (wanted * double(D) + 2 * round * round) + 1e-8;
        double far = std::log(xi) / (6 * walk.trust), w = fine ? std::exp(-0.5 * far * far) : 0;
        ratio = walk.forget * ratio + (fine ? w * xi : 0) / std::pow(h, 6);
        weight = walk.forget * weight + w;
        if (!fine) most = walk.shrink * h;
        double size = weight > 0 ? std::pow(ratio / weight, -1.0 / 6) : h;
        walk.size[m] = size < most ? size : most;
    }
    void watch() {
        double h = walk.size[m], seen = walk.seen[m] += h;
        Real share = Real(h / seen), weight = Real(h);
        for (int64_t i = 0; i < D; ++i) {
            Real away = q[i] - mean[i];
            mean[i] += share * away;
            square[i] += weight * away * (q[i] - mean[i]);
        }
    }
    // One step without its noise, in new_q, new_u and new_g; its error in the energy
    double flow(double &energy, double h) {
        std::copy(q, q + D, new_q.begin());
        std::copy(u, u + D, new_u.begin());
        double error = turn(g, walk.turn * h);
        drift(0.5 * h);
        look();
        error += turn(new_g.data(), (1 - 2 * walk.turn) * h);
        drift(0.5 * h);
        energy = look();
        return error + (turn(new_g.data(), walk.turn * h) + energy - walk.energy[m]);
    }
    void take(double energy, double error) {
        std::copy(new_q.begin(), new_q.end(), q);
        std::copy(new_u.begin(), new_u.end(), u);
        std::copy(new_g.begin(), new_g.end(), g);
        walk.energy[m] = energy, walk.errors[m] += error * error;
    }
    void step(int64_t k) {
        double h = walk.size[m], before = walk.energy[m], energy, error = flow(energy, h);
        bool fine = std::abs(error) < walk.large && finite();
        if (fine) {
            take(energy, error);
        } else {
            for (int64_t i = 0; i < D; ++i) u[i] = -u[i];
            walk.failed[m] += 1;
        }
        forget_direction(walk.first + k, h);
        if (walk.wanted) adapt(walk.wanted[k], error, fine, before);
        if (walk.watches) watch();
    }
    void try_step(int64_t k) {
        double energy, error = flow(energy, walk.share[m] * walk.size[m]);
        double total = walk.total[m] + error;
        if (std::abs(total) < walk.large && finite())
            take(energy, error);
        else
            total = std::numeric_limits<double>::infinity();
        walk.total[m] = total;
        if ((walk.left[m] -= 1) <= 0) end_trial(walk.first + k, total);
    }
    void end_trial(int64_t step, double total) {
        double accept = std::exp(-total), h = walk.size[m];
        accept = accept > 1 ? 1 : accept;
        Real *begin_q = walk.begin_q + m * D, *begin_g = walk.begin_g + m * D;
        if (uniform(step, 0, LEAF) < accept) {
            std::copy(q, q + D, begin_q);
            std::copy(g, g + D, begin_g);
            walk.begin_energy[m] = walk.energy[m];
        } else {
            std::copy(begin_q, begin_q + D, q);
            std::copy(begin_g, begin_g + D, g);
            walk.energy[m] = walk.begin_energy[m];
        }
        turn_by_noise(step, 0, 1);
        walk.left[m] = std::ceil(2 * uniform(step, 0, LENGTH) * walk.length[m] / h);
        walk.total[m] = 0, walk.accept[m] = accept;
        walk.share[m] = uniform(step, 1, LENGTH) < walk.rare ? walk.small : 1;
        double count = walk.ended[m] += 1;
        if (std::isnan(walk.target)) return;
        double size = std::log(h) + (accept - walk.target) * std::pow(count, -walk.learn);
        walk.log_size[m] += (size - walk.log_size[m]) * 2 / (count + 1);
        walk.size[m] = std::exp(size);
    }
};

}  // namespace walking

extern "C" int32_t mclmc_advance(Job *job, const walking::Walk *walk, const int64_t *weight_at,
                                 const int64_t *bias_at) {
    using namespace walking;
    try {
        int64_t threads = up_to(job->threads, walk->members);
        std::vector<std::unique_ptr<Slope>> slopes;
        for (int64_t t = 0; t < threads; ++t)
            slopes.push_back(std::make_unique<Slope>(*job, weight_at, bias_at, walk->parameters));
        std::atomic<int64_t> next{0}, tickets{0};
        pool().run(threads, [&] {
            Slope &slope = *slopes[tickets++];
            for (int64_t m; (m = next++) < walk->members && !slope.worker.error;) {
                Chain chain(*walk, m, slope);
                for (int64_t k = 0; k < walk->steps && !slope.worker.error; ++k)
                    walk->trials ? chain.try_step(k) : chain.step(k);
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
