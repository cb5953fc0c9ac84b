"""Experiments: a frozen Config and run(config) each."""
