"""The paper's Tables 2 and 3, typed again from the specification."""

import pytest

from stochens_lab.report.paper import CIFAR_ROWS, TABLE_2, TABLE_3, paper_value

METRICS = ("accuracy", "NLL", "ECE", "agreement", "variance", "OOD AUROC")
SCALES = (100, 1, 1, 100, 100, 100)
TYPED_2 = """
cifar10 HMC 90.68 0.307 0.059 100 0 85.3
cifar10 regular 88.82 0.339 0.028 92.5 10.0 83.7
cifar10 MultiSWA 88.49 0.372 0.051 92.3 11.6 83.0
cifar10 SE1 90.82 0.301 0.057 94.1 8.0 85.5
cifar100 HMC 67.39 1.205 0.131 100 0 72.5
cifar100 regular 62.84 1.477 0.157 71.4 29.8 71.5
cifar100 MultiSWA 61.86 1.526 0.164 70.3 31.3 71.6
cifar100 SE1 68.49 1.167 0.124 77.2 22.2 73.5
"""
TYPED_3 = """
cifar10 HMC 71.05 0.879 0.079 100 0
cifar10 regular 78.48 0.647 0.042 79.8 20.6
cifar10 MultiSWA 77.43 0.690 0.058 80.2 20.9
cifar10 SE1 76.32 0.713 0.064 83.1 16.4
cifar100 HMC 42.10 2.610 0.113 100 0
cifar100 regular 49.33 2.067 0.115 53.3 39.7
cifar100 MultiSWA 47.48 2.153 0.112 53.4 39.9
cifar100 SE1 48.35 2.115 0.089 61.1 32.0
"""


@pytest.mark.parametrize(
    ("typed", "domain", "table"),
    [(TYPED_2, "test", TABLE_2), (TYPED_3, "corrupted", TABLE_3)],
)
def test_every_number_is_the_papers(typed, domain, table):
    lines = [line.split() for line in typed.split("\n") if line]
    assert {(a, b) for a, b, *_ in lines} == set(table)
    for set_name, method, *digits in lines:
        assert method in CIFAR_ROWS
        for metric, scale, text in zip(METRICS, SCALES, digits, strict=False):
            found = paper_value("cifar", set_name, method, domain, metric)
            assert found == pytest.approx(float(text) / scale)


def test_what_the_paper_does_not_report_is_none():
    assert paper_value("cifar", "cifar10", "SE1", "corrupted", "OOD AUROC") is None
    assert paper_value("cifar", "cifar10", "SE3", "test", "accuracy") is None
    assert paper_value("cifar", "cifar10", "SE1", "fog-1", "accuracy") is None
    assert paper_value("cifar", "svhn", "SE1", "test", "accuracy") is None
    assert paper_value("toy", "cifar10", "SE1", "test", "accuracy") is None
