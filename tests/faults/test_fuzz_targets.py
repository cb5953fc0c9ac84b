"""The targets of the fuzzer, on bytes that hypothesis makes: they run, and find nothing."""

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.faults.fuzz import TARGETS

HEADER = b"{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }\n"


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200), st.integers(0, len(HEADER)), st.integers(0, 80))
def test_arrays(data, cut, length):
    TARGETS["npz"](data)
    header = HEADER[:cut] + data[:9] + HEADER[cut:]
    TARGETS["npz"](length.to_bytes(2, "little") + header + bytes(8))


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_saved_folders(data):
    TARGETS["checksums"](data)
