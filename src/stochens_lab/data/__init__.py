"""Data: what users hand in, as tensors that were checked once."""
