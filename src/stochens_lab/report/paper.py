"""The paper's tables in our units, shares and nats: Table 1, the toy; Tables 2 and 3, CIFAR.

"Bayesian posterior approximation with stochastic ensembles", CVPR 2023. The header of Table 1 says
1e-3 for entropy and mutual information; by their size these columns are tenths of a nat, so they
are read as such here and turned into nats. Agreement is in per cent there, variance in 1e-2. The
paper's toy sets are not published: ours play the same parts, so orders can be compared, digits
cannot.
"""

from collections.abc import Iterator
from typing import NamedTuple

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


class Column(NamedTuple):
    """A metric, the size of the paper's unit, and how many digits it prints."""

    metric: str
    unit: float
    digits: int


CIFAR = "cifar"
TEST, CORRUPTED = "test", "corrupted"
CIFAR_COLUMNS = (
    Column("accuracy", PER_CENT, 2),
    Column("NLL", 1.0, 3),
    Column("ECE", 1.0, 3),
    Column("agreement", PER_CENT, 1),
    Column("variance", PER_CENT, 1),
    Column("OOD AUROC", PER_CENT, 1),  # the paper's text does not name the other set
)
CIFAR_ROWS = ("HMC", "regular", "MultiSWA", "SE1")
# The paper's digits, in the order of the columns.
TABLE_2: dict[tuple[str, str], tuple[float, ...]] = {
    ("cifar10", "HMC"): (90.68, 0.307, 0.059, 100, 0, 85.3),
    ("cifar10", "regular"): (88.82, 0.339, 0.028, 92.5, 10.0, 83.7),
    ("cifar10", "MultiSWA"): (88.49, 0.372, 0.051, 92.3, 11.6, 83.0),
    ("cifar10", "SE1"): (90.82, 0.301, 0.057, 94.1, 8.0, 85.5),
    ("cifar100", "HMC"): (67.39, 1.205, 0.131, 100, 0, 72.5),
    ("cifar100", "regular"): (62.84, 1.477, 0.157, 71.4, 29.8, 71.5),
    ("cifar100", "MultiSWA"): (61.86, 1.526, 0.164, 70.3, 31.3, 71.6),
    ("cifar100", "SE1"): (68.49, 1.167, 0.124, 77.2, 22.2, 73.5),
}
# The mean over 80 corrupted sets; no OOD column.
TABLE_3: dict[tuple[str, str], tuple[float, ...]] = {
    ("cifar10", "HMC"): (71.05, 0.879, 0.079, 100, 0),
    ("cifar10", "regular"): (78.48, 0.647, 0.042, 79.8, 20.6),
    ("cifar10", "MultiSWA"): (77.43, 0.690, 0.058, 80.2, 20.9),
    ("cifar10", "SE1"): (76.32, 0.713, 0.064, 83.1, 16.4),
    ("cifar100", "HMC"): (42.10, 2.610, 0.113, 100, 0),
    ("cifar100", "regular"): (49.33, 2.067, 0.115, 53.3, 39.7),
    ("cifar100", "MultiSWA"): (47.48, 2.153, 0.112, 53.4, 39.9),
    ("cifar100", "SE1"): (48.35, 2.115, 0.089, 61.1, 32.0),
}


def _list_values() -> Iterator[tuple[tuple[str, ...], float]]:
    for place, row in TABLE_1.items():
        for (metric, unit), pair in zip(COLUMNS, row, strict=True):
            for domain, value in zip(DOMAINS, pair, strict=True):
                yield (EXPERIMENT, *place, domain, metric), round(value * unit, 6)
    for domain, table in ((TEST, TABLE_2), (CORRUPTED, TABLE_3)):
        for place, values in table.items():
            for column, value in zip(CIFAR_COLUMNS, values, strict=False):  # Table 3 has fewer
                yield (CIFAR, *place, domain, column.metric), round(value * column.unit, 6)


VALUES = dict(_list_values())


def paper_value(
    experiment: str, set_name: str, method: str, domain: str, metric: str
) -> float | None:
    """What the paper reports there, or None where it reports nothing.

    >>> paper_value("toy", "a", "SE3", "in", "entropy error")
    0.046
    >>> paper_value("cifar", "cifar10", "SE1", "test", "agreement")
    0.941
    """
    return VALUES.get((experiment, set_name, method, domain, metric))
