"""Hand-written kernels, each beside its plain torch twin; all are optional."""
