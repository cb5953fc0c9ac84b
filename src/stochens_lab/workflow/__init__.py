"""A model of one's own on data of one's own: behind fit, predict, evaluate and compare."""
