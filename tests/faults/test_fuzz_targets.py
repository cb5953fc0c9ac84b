"""The targets of the fuzzer, on bytes that hypothesis makes: they run, and find nothing."""

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.faults.fuzz import TARGETS


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_pickles(data):
    TARGETS["pickle"](data)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_saved_folders(data):
    TARGETS["checksums"](data)
