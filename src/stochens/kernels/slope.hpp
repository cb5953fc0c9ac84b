// N nll and its slope, of one chain's flat parameters, by mlp.cpp, which is included before.

namespace {

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

}  // namespace
