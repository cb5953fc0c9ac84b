"""The paper's Table 1, the toy experiment, in our units: shares and nats.

"Bayesian posterior approximation with stochastic ensembles", CVPR 2023. Its header says 1e-3 for
entropy and mutual information; by their size these columns are tenths of a nat, so they are read
as such here and turned into nats. Agreement is in per cent there, variance in 1e-2. The paper's
training sets are not published: ours play the same parts, so orders can be compared, digits cannot.
"""

EXPERIMENT = "toy"
DOMAINS = ("in", "out")
TENTH_OF_A_NAT, PER_CENT = 0.1, 0.01

# Metric and the size of its unit, then the paper's digits for each domain, in this order.
COLUMNS = (
    ("entropy error", TENTH_OF_A_NAT),
    ("MI error", TENTH_OF_A_NAT),
    ("agreement", PER_CENT),
    ("variance", PER_CENT),
)
Pair = tuple[float, float]
TABLE_1: dict[tuple[str, str], tuple[Pair, Pair, Pair, Pair]] = {
    ("a", "regular"): ((0.51, 1.18), (0.42, 1.16), (98.3, 95.2), (2.76, 7.49)),
    ("a", "MultiSWA"): ((0.71, 1.32), (0.48, 1.31), (97.30, 94.01), (4.00, 8.46)),
    ("a", "SE3"): ((0.46, 1.14), (0.39, 1.13), (98.4, 95.5), (2.59, 7.00)),
    ("b", "regular"): ((0.30, 0.89), (0.19, 0.87), (98.9, 95.4), (1.61, 5.44)),
    ("b", "MultiSWA"): ((0.49, 1.06), (0.21, 1.03), (97.7, 94.4), (2.89, 6.74)),
    ("b", "SE3"): ((0.25, 0.73), (0.16, 0.71), (98.9, 95.8), (1.41, 4.51)),
    ("c", "regular"): ((0.23, 0.86), (0.12, 0.83), (99.1, 96.8), (1.19, 4.39)),
    ("c", "MultiSWA"): ((0.32, 0.90), (0.10, 0.86), (98.1, 95.5), (2.01, 5.01)),
    ("c", "SE3"): ((0.22, 0.76), (0.11, 0.73), (99.0, 96.7), (1.20, 3.86)),
}


def paper_value(
    experiment: str, set_name: str, method: str, domain: str, metric: str
) -> float | None:
    """What the paper reports there, or None where it reports nothing.

    >>> paper_value("toy", "a", "SE3", "in", "entropy error")
    0.046
    """
    row = TABLE_1.get((set_name, method))
    if experiment != EXPERIMENT or row is None or domain not in DOMAINS:
        return None
    for (name, unit), pair in zip(COLUMNS, row, strict=True):
        if name == metric:
            return round(pair[DOMAINS.index(domain)] * unit, 6)
    return None
