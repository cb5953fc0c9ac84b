"""How anything runs: options, device and memory, progress, checkpoints, a Ray cluster."""
