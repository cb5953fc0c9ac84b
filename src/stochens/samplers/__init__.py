"""Samplers of the posterior over all parameters, and weight averages along a training."""
