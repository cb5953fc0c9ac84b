"""Further cases of a statement: `make test` leaves them out, `make long` runs them.

A test is marked by `@pytest.mark.long`, some cases of one by the functions below. Whoever names a
test on the command line (`pytest tests/test_prior.py::test_...`) gets all of its cases.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import pytest


def long_but(kept: Collection[Any], cases: Iterable[Any]) -> list[Any]:
    """All cases, of which `make test` runs those that are kept.

    >>> [bool(case.marks) for case in long_but({"b"}, ["a", "b"])]
    [True, False]
    """
    cases = list(cases)
    unknown = [case for case in kept if case not in cases]
    assert not unknown, f"none of the cases: {unknown}"
    return [pytest.param(case, marks=[] if case in kept else pytest.mark.long) for case in cases]


def crossed(rows: Sequence[Any], columns: Sequence[Any], *, each: int = 2) -> list[Any]:
    """Every pair (row, column), of which `make test` runs so many in each row. Where they are is
    shifted from row to row, such that columns take turns.

    >>> kept = [case.values for case in crossed("ab", "123", each=1) if not case.marks]
    >>> kept
    [('a', '1'), ('b', '2')]
    """
    count = len(columns)
    return [
        pytest.param(row, column, marks=[] if (k - each * n) % count < each else pytest.mark.long)
        for n, row in enumerate(rows)
        for k, column in enumerate(columns)
    ]
