"""Predictive distributions: what they are, how they are summed up, how they are exported."""
