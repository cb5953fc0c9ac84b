"""What a training or a sampler gives: the posterior, and what it is made of."""
