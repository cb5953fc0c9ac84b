"""From a network and data to a posterior: starts, steps, the loop, blocks of members."""
