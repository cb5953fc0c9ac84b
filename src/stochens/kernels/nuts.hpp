// NUTS and HMC of one chain, one leapfrog step at a time: posteriors/nuts.py and fixed.py say what
// it does, in the same order and with the same random numbers. Shared by nuts.cpp, where a chain is
// run by one thread, and nuts.cu, where it is run by a block of threads. A Team has
//
//     each(n, f)    f(i) for i < n, every i by the same thread each time
//     sums(n, f)    the two sums over i < n of f(i), the same bits for every thread
//
// and all its threads hold equal copies of the scalars, so that they branch alike. gradient(q, g)
// returns the likelihood's energy and writes its slope into g, whose i is of the thread of i in each.

#include "splitmix.hpp"

typedef long long Int;

struct Pair { double first, second; };

struct Sampler {  // mirrored by nuts.py, field by field
    Int chains, parameters, checkpoints, warmup, transitions, samples, max_depth, max_leapfrogs;
    double target_accept, length, jitter, max_error, precision;
    const unsigned char *slow, *closes;          // [warmup + 1]
    Real *draws;                                 // [chains, samples, parameters]
    double *stats;                               // [chains, transitions, STATS]
    // the State of trajectory.py, in its order
    Real *ends_q, *ends_p, *ends_g;
    Int *side;
    double *start_energy;
    Real *tree_q, *tree_g;
    double *tree_energy;
    Real *tree_rho;
    double *tree_weight;
    Real *sub_q, *sub_g;
    double *sub_energy;
    Real *sub_rho;
    double *sub_weight;
    Real *check_p, *check_rho;
    double *accept;
    Int *depth, *leaf, *length_left, *leapfrogs, *diverged, *transition;
    Bits *key;
    // the Adaptation of adaptation.py, in its order
    Real *inverse_mass, *mean, *scatter;
    double *seen, *log_step, *log_step_mean, *shortfall, *centre, *updates;
};

enum { STATS = 8 };
enum { MOMENTUM, LEAF, DIRECTION, MERGE, LENGTH, PURPOSES = 8 };
DEVICE double uniform(Bits key, Int transition, int purpose, Bits index) {
    Bits stream = mix(key + Bits(transition * PURPOSES + purpose + 1) * GOLDEN);
    return (double(mix((stream + index + 1) * GOLDEN) >> 12) + 0.5) * 0x1p-52;
}
DEVICE double normal_number(Bits key, Int transition, int purpose, Bits i, Bits count) {
    double radius = math::sqrt(-2 * math::log(uniform(key, transition, purpose, i)));
    double angle = uniform(key, transition, purpose, i + count);
    return radius * math::cos(2 * 3.141592653589793 * angle);
}
DEVICE double log_add(double a, double b) {
    double top = a > b ? a : b, low = a > b ? b : a;
    return top == -math::infinity() ? top : top + math::log1p(math::exp(low - top));
}
DEVICE int ones(Int n) {
    int count = 0;
    for (; n; n &= n - 1) ++count;
    return count;
}

struct Energy { double likelihood, prior, kinetic; };

template <class Team, class Gradient> struct Chain {
    const Sampler &c;
    Team &team;
    Gradient &gradient;
    const Int m, D;
    Int side, depth, leaf, length, leapfrogs, diverged, transition;
    Bits key;
    Energy start, tree, sub;
    double tree_weight, sub_weight, accept;
    double seen, log_step, log_step_mean, shortfall, centre, updates;
    Real *tree_q, *tree_g, *tree_rho, *sub_q, *sub_g, *sub_rho, *inverse_mass, *mean, *scatter;

    DEVICE Chain(const Sampler &c, Int m, Team &team, Gradient &gradient)
        : c(c), team(team), gradient(gradient), m(m), D(c.parameters) {
        side = c.side[m], depth = c.depth[m], leaf = c.leaf[m], length = c.length_left[m];
        leapfrogs = c.leapfrogs[m], diverged = c.diverged[m], transition = c.transition[m];
        key = c.key[m];
        start = read(c.start_energy), tree = read(c.tree_energy), sub = read(c.sub_energy);
        tree_weight = c.tree_weight[m], sub_weight = c.sub_weight[m], accept = c.accept[m];
        seen = c.seen[m], log_step = c.log_step[m], log_step_mean = c.log_step_mean[m];
        shortfall = c.shortfall[m], centre = c.centre[m], updates = c.updates[m];
        tree_q = c.tree_q + m * D, tree_g = c.tree_g + m * D, tree_rho = c.tree_rho + m * D;
        sub_q = c.sub_q + m * D, sub_g = c.sub_g + m * D, sub_rho = c.sub_rho + m * D;
        inverse_mass = c.inverse_mass + m * D, mean = c.mean + m * D, scatter = c.scatter + m * D;
    }
    DEVICE void save() const {
        c.side[m] = side, c.depth[m] = depth, c.leaf[m] = leaf, c.length_left[m] = length;
        c.leapfrogs[m] = leapfrogs, c.diverged[m] = diverged, c.transition[m] = transition;
        write(c.start_energy, start), write(c.tree_energy, tree), write(c.sub_energy, sub);
        c.tree_weight[m] = tree_weight, c.sub_weight[m] = sub_weight, c.accept[m] = accept;
        c.seen[m] = seen, c.log_step[m] = log_step, c.log_step_mean[m] = log_step_mean;
        c.shortfall[m] = shortfall, c.centre[m] = centre, c.updates[m] = updates;
    }
    DEVICE Energy read(const double *e) const { return {e[3 * m], e[3 * m + 1], e[3 * m + 2]}; }
    DEVICE void write(double *to, const Energy &e) const {
        to[3 * m] = e.likelihood, to[3 * m + 1] = e.prior, to[3 * m + 2] = e.kinetic;
    }
    DEVICE Real *end(Real *of, Int which) const { return of + (2 * m + which) * D; }
    DEVICE bool resting() const { return transition >= c.transitions; }

    // One leapfrog step, and whatever follows from where it arrives
    DEVICE void iterate() {
        Real *q = end(c.ends_q, side), *p = end(c.ends_p, side), *g = end(c.ends_g, side);
        Real step = (side ? 1 : -1) * math::exp(log_step), half = Real(0.5) * step;
        team.each(D, [&](Int i) {
            p[i] -= half * g[i];
            q[i] += step * inverse_mass[i] * p[i];
        });
        Energy here;
        here.likelihood = gradient(q, g);  // and its slope, into g
        Pair squares = team.sums(D, [&](Int i) {
            g[i] += Real(c.precision) * q[i];
            p[i] -= half * g[i];
            return Pair{double(q[i]) * q[i], double(inverse_mass[i]) * (double(p[i]) * p[i])};
        });
        here.prior = 0.5 * c.precision * squares.first;
        here.kinetic = 0.5 * squares.second;
        ++leapfrogs;
        double error = (here.likelihood - start.likelihood) + (here.prior - start.prior) +
                       (here.kinetic - start.kinetic);
        bool bad = !(error < c.max_error);
        if (bad) diverged = 1;
        if (c.length > 0) arrive(q, g, here, error, bad);
        else grow(q, p, g, here, error, bad);
    }

    // HMC: the end of the trajectory is taken with probability min(1, exp(-error))
    DEVICE void arrive(const Real *q, const Real *g, const Energy &here, double error, bool bad) {
        if (!bad && leapfrogs < length) return;
        double probability = bad ? 0 : math::fmin(1, math::exp(-error));
        if (!bad && uniform(key, transition, MERGE, 0) < probability) {
            team.each(D, [&](Int i) { tree_q[i] = q[i], tree_g[i] = g[i]; });
            tree = here;
        }
        finish(probability);
    }

    // NUTS: the point joins the subtree, the subtree perhaps the tree, and the tree may be done
    DEVICE void grow(const Real *q, const Real *p, const Real *g, const Energy &here, double error,
                     bool bad) {
        double weight = bad ? -math::infinity() : -error;
        sub_weight = log_add(sub_weight, weight);
        accept += math::fmin(1, math::exp(weight));
        if (math::log(uniform(key, transition, LEAF, leapfrogs)) < weight - sub_weight) {
            team.each(D, [&](Int i) { sub_q[i] = q[i], sub_g[i] = g[i]; });
            sub = here;
        }
        bool first = leaf == 0;
        team.each(D, [&](Int i) { sub_rho[i] = first ? p[i] : sub_rho[i] + p[i]; });
        bool turns = checkpoint(p);
        ++leaf;
        bool good = !bad && !turns;
        if (good && leaf < (Int(1) << depth)) return;
        if (good) good = !merge();
        if (!good || depth >= c.max_depth) return finish(accept / leapfrogs);
        side = uniform(key, transition, DIRECTION, depth) < 0.5;
        leaf = 0, sub_weight = -math::infinity();
    }

    DEVICE bool checkpoint(const Real *p) {
        int last = ones(leaf >> 1);
        Real *check_p = c.check_p + m * c.checkpoints * D;
        Real *check_rho = c.check_rho + m * c.checkpoints * D;
        if (leaf % 2 == 0) {
            team.each(D, [&](Int i) {
                check_p[last * D + i] = p[i], check_rho[last * D + i] = sub_rho[i];
            });
            return false;
        }
        int closed = ones(leaf ^ (leaf + 1)) - 1;
        for (int k = last; k > last - closed; --k) {
            const Real *left = check_p + k * D, *before = check_rho + k * D;
            if (turning(left, p, [&](Int i) { return sub_rho[i] - before[i] + left[i]; }))
                return true;
        }
        return false;
    }

    template <class Rho> DEVICE bool turning(const Real *left, const Real *right, Rho rho) {
        Pair dots = team.sums(D, [&](Int i) {
            Real v = inverse_mass[i] * (rho(i) - Real(0.5) * (left[i] + right[i]));
            return Pair{double(left[i] * v), double(right[i] * v)};
        });
        return dots.first <= 0 || dots.second <= 0;
    }

    DEVICE bool merge() {
        if (math::log(uniform(key, transition, MERGE, depth)) < sub_weight - tree_weight) {
            team.each(D, [&](Int i) { tree_q[i] = sub_q[i], tree_g[i] = sub_g[i]; });
            tree = sub;
        }
        team.each(D, [&](Int i) { tree_rho[i] += sub_rho[i]; });
        tree_weight = log_add(tree_weight, sub_weight);
        ++depth;
        return turning(end(c.ends_p, 0), end(c.ends_p, 1), [&](Int i) { return tree_rho[i]; });
    }

    DEVICE void finish(double acceptance) {
        double *stats = c.stats + (m * c.transitions + transition) * STATS;
        stats[0] = tree.likelihood, stats[1] = tree.prior;
        stats[2] = tree.likelihood + tree.prior + tree.kinetic;
        stats[3] = acceptance, stats[4] = math::exp(log_step), stats[5] = double(depth);
        stats[6] = double(leapfrogs), stats[7] = double(diverged);
        if (transition >= c.warmup) {
            Real *draw = c.draws + (m * c.samples + transition - c.warmup) * D;
            team.each(D, [&](Int i) { draw[i] = tree_q[i]; });
        } else {
            adapt(acceptance);
        }
        ++transition;
        begin();
    }

    DEVICE void adapt(double acceptance) {
        updates += 1;
        double share = 1 / (updates + 10);
        shortfall = (1 - share) * shortfall + share * (c.target_accept - acceptance);
        log_step = centre - math::sqrt(updates) / 0.05 * shortfall;
        double weight = math::pow(updates, -0.75);
        log_step_mean = weight * log_step + (1 - weight) * log_step_mean;
        if (c.slow[transition]) {
            seen += 1;
            team.each(D, [&](Int i) {
                Real before = tree_q[i] - mean[i];
                mean[i] += before / Real(seen);
                scatter[i] += before * (tree_q[i] - mean[i]);
            });
        }
        if (c.closes[transition]) {
            Real n = seen, others = seen > 2 ? n - 1 : 1;
            team.each(D, [&](Int i) {
                inverse_mass[i] = scatter[i] / others * n / (n + 5) + Real(1e-3) * 5 / (n + 5);
                mean[i] = 0, scatter[i] = 0;
            });
            seen = 0, updates = 0, shortfall = 0;
            log_step = log_step_mean, centre = log_step_mean + 2.302585092994046;
        }
        if (transition == c.warmup - 1) log_step = log_step_mean;
    }

    DEVICE void begin() {
        Real *q0 = end(c.ends_q, 0), *p0 = end(c.ends_p, 0), *g0 = end(c.ends_g, 0);
        Real *q1 = end(c.ends_q, 1), *p1 = end(c.ends_p, 1), *g1 = end(c.ends_g, 1);
        Pair squares = team.sums(D, [&](Int i) {
            Real p = Real(normal_number(key, transition, MOMENTUM, i, D)) /
                     Real(math::sqrt(inverse_mass[i]));
            q0[i] = q1[i] = tree_q[i], g0[i] = g1[i] = tree_g[i];
            p0[i] = p1[i] = tree_rho[i] = p;
            return Pair{double(inverse_mass[i]) * (double(p) * p), 0};
        });
        tree.kinetic = 0.5 * squares.first;
        start = tree;
        tree_weight = 0, sub_weight = -math::infinity(), accept = 0;
        depth = leaf = leapfrogs = diverged = length = 0;
        side = c.length > 0 || uniform(key, transition, DIRECTION, 0) < 0.5;
        if (c.length > 0) {
            double u = uniform(key, transition, LENGTH, 0);
            double steps = math::ceil(c.length * (1 + c.jitter * (2 * u - 1)) / math::exp(log_step));
            length = steps < 1 ? 1 : steps > c.max_leapfrogs ? c.max_leapfrogs : Int(steps);
        }
    }
};
