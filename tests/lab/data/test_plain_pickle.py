"""The reader of CIFAR's pickles against Python's own, and against files that mean harm."""

import pickle
import pickletools
import sys

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.lab.data.image_files import pixels, python2_batch

from stochens.errors import InputError
from stochens_lab.data.plain_pickle import read_pickle

X = pixels(3).reshape(3, 3072)
GOOD = python2_batch(X, [1, 2, 3])


def test_python2_batch_is_read_as_python_reads_it():
    ours, theirs = read_pickle(GOOD), pickle.loads(GOOD, encoding="bytes")
    assert ours["batch_label"] == theirs[b"batch_label"]
    assert ours["labels"] == theirs[b"labels"] == [1, 2, 3]
    np.testing.assert_array_equal(ours["data"], theirs[b"data"])
    np.testing.assert_array_equal(ours["data"], X)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("array", [X, np.asfortranarray(X), X[0], X.reshape(3, 3, 32, 32)])
def test_every_protocol_since_2(protocol, array):
    content = {"data": array, b"labels": [0, 300, 70000, -1], "names": ["a", b"b", None, True]}
    ours = read_pickle(pickle.dumps(content, protocol))
    np.testing.assert_array_equal(ours["data"], array)
    assert ours["labels"] == content[b"labels"]
    assert ours["names"] == content["names"]


@given(
    st.dictionaries(
        st.text(),
        st.recursive(
            st.none()
            | st.booleans()
            | st.integers(-(2**300), 2**300)
            | st.text()
            | st.binary(min_size=1),
            lambda inner: st.lists(inner, max_size=5) | st.tuples(inner, inner),
            max_leaves=10,
        ),
        max_size=5,
    ),
    st.sampled_from([2, 3, 4]),
)
def test_plain_data_goes_through(content, protocol):
    assert read_pickle(pickle.dumps(content, protocol)) == content


class Harm:
    """Unpickling it runs a command."""

    def __reduce__(self):
        return (print, ("harm was done",))


HOSTILE = {
    "REDUCE of GLOBAL": b"cbuiltins\nprint\n(U\x04harmtR.",
    "REDUCE of STACK_GLOBAL": b"\x80\x04\x8c\x08builtins\x8c\x05print\x93\x8c\x04harm\x85R.",
    "INST": b"(U\x04harmibuiltins\nprint\n.",
    "OBJ": b"(cbuiltins\nprint\nU\x04harmo.",
    "NEWOBJ": b"cbuiltins\nprint\nU\x04harm\x85\x81.",
    "NEWOBJ_EX": b"\x80\x04cbuiltins\nprint\n)}\x92.",
    "NEWOBJ of an allowed name": b"cnumpy\nndarray\nK\x05\x85\x81.",
    "EXT1": b"\x82\x01.",
    "EXT2": b"\x83\x01\x00.",
    "EXT4": b"\x84\x01\x00\x00\x00.",
    "PERSID": b"Pharm\n.",
    "BINPERSID": b"U\x04harmQ.",
    "os.system": b"cos\nsystem\n(U\x09echo harmtR.",
    "a dotted name": b"\x80\x04\x8c\x05numpy\x8c\x0bndarray.tofile\x93.",
    "numpy's other functions": b"cnumpy\nload\n(U\x04harmtR.",
    "eval": b"c__builtin__\neval\n(U\x0dprint('harm')tR.",
    "BUILD of a name": b"cnumpy\nndarray\n}U\x04harmK\x01sb.",
    "BUILD of a dict": b"}(K\x01tb.",
    "REDUCE of text": b"U\x05print(U\x04harmtR.",
    "an array of objects": b"cnumpy\ndtype\n(U\x02O8K\x00K\x01tR.",
    "a key that is no text": b"}(K\x01K\x02u.",
    "no dict": b"]K\x01a.",
    "nothing": b"",
    "no end": b"}",
    "an empty stack": b".",
    "a mark too few": b"u.",
    "an unknown place": b"h\x07.",
    "NEXT_BUFFER": b"\x97.",
    "FLOAT": b"F1.0\n.",
}


@pytest.mark.parametrize("protocol", range(6))
def test_an_object_with_reduce_is_refused(protocol, capsys):
    with pytest.raises(InputError):
        read_pickle(pickle.dumps({"data": Harm()}, protocol))
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_pickles_do_nothing(what, capfd):
    with pytest.raises(InputError):
        read_pickle(HOSTILE[what])
    if what in ("no dict", "no end"):
        return
    # the same inside of what is otherwise a dict
    with pytest.raises(InputError):
        read_pickle(b"}U\x04data" + HOSTILE[what].removesuffix(b".") + b"s.")
    assert capfd.readouterr().out == ""


def test_no_module_is_imported():
    assert "antigravity" not in sys.modules
    with pytest.raises(InputError, match="antigravity"):
        read_pickle(b"cantigravity\nfly\n(tR.")
    assert "antigravity" not in sys.modules


@pytest.mark.parametrize(
    "bomb",
    [
        b"\x8e" + (2**62).to_bytes(8, "little") + b"x",  # BINBYTES8 of 4 EiB
        b"\x8d" + (2**62).to_bytes(8, "little") + b"x",  # BINUNICODE8
        b"\x96" + (2**62).to_bytes(8, "little") + b"x",  # BYTEARRAY8
        b"T" + (2**31 - 1).to_bytes(4, "little") + b"x",  # BINSTRING of 2 GiB
        b"\x8b" + (2**31 - 1).to_bytes(4, "little") + b"x",  # LONG4
        b"}r" + (2**32 - 1).to_bytes(4, "little") + b"0",  # a memo place far out
    ],
)
def test_stated_sizes_take_no_memory(bomb):
    with pytest.raises(InputError):
        read_pickle(bomb)


def test_an_array_needs_all_its_bytes():
    good = pickle.dumps({"data": np.zeros((2, 5), np.uint8)}, 2)
    assert good.count(b"K\x02K\x05\x86") == 1
    with pytest.raises(InputError, match=r"10 bytes for an array of shape \[255, 255\]"):
        read_pickle(good.replace(b"K\x02K\x05\x86", b"K\xffK\xff\x86"))


def test_text_cannot_multiply_itself():
    """One text of 100 kB, encoded 2000 times: one copy, not 200 MB."""
    text = b"X" + (100_000).to_bytes(4, "little") + b"a" * 100_000 + b"q\x01"
    again = b"c_codecs\nencode\nh\x01U\x06latin1\x86R"
    values = read_pickle(b"}U\x01d](" + text + 2000 * again + b"es.")["d"]
    assert len({id(value) for value in values[1:]}) == 1


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(data):
    _read_or_refused(data)


OPCODES = st.sampled_from([op.code.encode("latin-1") for op in pickletools.opcodes])


@given(st.lists(OPCODES | st.binary(max_size=6) | st.sampled_from([b"numpy\ndtype\n", b"K\x01"])))
@example([b"\x80", b"\x02"])
def test_any_instructions_are_read_or_refused(parts):
    _read_or_refused(b"".join(parts))


@given(st.data())
def test_a_damaged_batch_is_read_or_refused(data):
    head = len(GOOD) - len(X.tobytes())  # most damage to what is not pixels
    at = data.draw(st.integers(0, head) | st.integers(0, len(GOOD) - 1))
    new = data.draw(st.binary(max_size=4))
    gone = data.draw(st.integers(0, 4))
    _read_or_refused(GOOD[:at] + new + GOOD[at + gone :])


@given(st.integers(0, len(GOOD) - 1))
def test_a_truncated_batch_is_refused(length):
    with pytest.raises(InputError):
        read_pickle(GOOD[:length])


def _read_or_refused(data: bytes) -> None:
    try:
        content = read_pickle(data)
    except InputError:
        return
    assert isinstance(content, dict)
