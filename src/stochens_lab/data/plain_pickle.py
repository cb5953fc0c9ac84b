"""Reads the pickles of CIFAR without Python's pickle: nothing in a file can be called.

It is written by hand since every library that reads a pickle runs what the pickle says.

A pickle is a program for a stack machine. This machine knows only the instructions that build
dicts, lists, tuples, bytes, text and whole numbers. The names that a pickled numpy array calls
(NAMES) are never looked up: they are words here, and the one thing they can make is a uint8 array
over bytes that the file holds. Every other instruction or name is an error.
"""

import functools
import math
import pickletools
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from stochens.errors import InputError

RECONSTRUCT, FROM_BUFFER, NDARRAY, DTYPE, ENCODE = "array", "from buffer", "ndarray", "dtype", "enc"
NAMES = {
    "numpy.core.multiarray _reconstruct": RECONSTRUCT,
    "numpy._core.multiarray _reconstruct": RECONSTRUCT,
    "numpy.core.numeric _frombuffer": FROM_BUFFER,
    "numpy._core.numeric _frombuffer": FROM_BUFFER,
    "numpy ndarray": NDARRAY,
    "numpy dtype": DTYPE,
    "_codecs encode": ENCODE,
}
MOST_DIMENSIONS = 4


class Name(NamedTuple):
    means: str


class Uint8(NamedTuple):
    """The only dtype."""


class Array:
    """A place that BUILD fills."""

    filled: np.ndarray | None = None


def read_pickle(data: bytes) -> dict[str, Any]:
    """The pickled dict; its values are lists, bytes, text, numbers and uint8 arrays.

    Memory is in proportion to len(data), whatever the file says. Byte strings of Python 2 stay
    bytes; keys become text.

    >>> read_pickle(b"\\x80\\x02}U\\x06labels]K\\x03as.")
    {'labels': [3]}
    >>> read_pickle(b"cos\\nsystem\\n.")
    Traceback (most recent call last):
    stochens.errors.InputError: it names os system, which no data needs
    """
    try:
        top = _run(data)
    except InputError:
        raise
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise InputError(f"it is no pickle, or damaged: {error}") from None
    if not isinstance(top, dict):
        raise InputError(f"it holds a {type(top).__name__}, not a dict")
    return {_text(key): _filled(value) for key, value in top.items()}


def _run(data: bytes) -> Any:
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}
    latin1 = functools.cache(lambda text: text.encode("latin-1"))  # or a file could repeat itself

    def since_mark() -> list[Any]:
        start = marks.pop()
        items = stack[start:]
        del stack[start:]
        return items

    instructions: Iterable[tuple[Any, Any, Any]] = pickletools.genops(data)
    for opcode, arg, _ in instructions:
        match opcode.name:
            case "PROTO" | "FRAME":
                pass
            case "MARK":
                marks.append(len(stack))
            case "EMPTY_DICT":
                stack.append({})
            case "EMPTY_LIST":
                stack.append([])
            case "EMPTY_TUPLE":
                stack.append(())
            case "NONE":
                stack.append(None)
            case "NEWTRUE":
                stack.append(True)
            case "NEWFALSE":
                stack.append(False)
            case "BININT" | "BININT1" | "BININT2" | "LONG1":
                stack.append(arg)
            case "BINSTRING" | "SHORT_BINSTRING":
                stack.append(arg.encode("latin-1"))  # pickletools shows bytes as text
            case "BINUNICODE" | "SHORT_BINUNICODE" | "BINUNICODE8":
                stack.append(arg)
            case "BINBYTES" | "SHORT_BINBYTES" | "BINBYTES8" | "BYTEARRAY8":
                stack.append(bytes(arg))
            case "TUPLE":
                stack.append(tuple(since_mark()))
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                count = int(opcode.name[-1])
                items = [stack.pop() for _ in range(count)]
                stack.append(tuple(reversed(items)))
            case "APPEND":
                value = stack.pop()
                _expect(stack[-1], list).append(value)
            case "APPENDS":
                values = since_mark()
                _expect(stack[-1], list).extend(values)
            case "SETITEM":
                value, key = stack.pop(), stack.pop()
                _set(stack[-1], [key, value])
            case "SETITEMS":
                values = since_mark()
                _set(stack[-1], values)
            case "BINPUT" | "LONG_BINPUT":
                memo[arg] = stack[-1]
            case "MEMOIZE":
                memo[len(memo)] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(memo[arg])
            case "GLOBAL":
                stack.append(_name(arg))
            case "STACK_GLOBAL":
                name, module = stack.pop(), stack.pop()
                stack.append(_name(f"{_expect(module, str)} {_expect(name, str)}"))
            case "REDUCE":
                given = stack.pop()
                means = _expect(stack.pop(), Name).means
                if means == ENCODE:  # how Python 3 writes bytes for Python 2
                    text, _ = _expect(given, tuple)
                    stack.append(latin1(_expect(text, str)))
                else:
                    stack.append(_make(means, _expect(given, tuple)))
            case "BUILD":
                state = stack.pop()
                _build(stack[-1], _expect(state, tuple))
            case "STOP":
                return stack.pop()
            case other:
                raise InputError(f"it has the instruction {other}, which no data needs")
    raise InputError("it ends too early")


def _expect(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise InputError(f"it has a {type(value).__name__} where a {kind.__name__} belongs")
    return value


def _set(target: Any, items: list[Any]) -> None:
    """Keys are text: to hash a nested tuple may take forever."""
    _expect(target, dict)
    for key, value in zip(items[::2], items[1::2], strict=True):
        target[key if isinstance(key, bytes) else _expect(key, str)] = value


def _name(words: str) -> Name:
    if words not in NAMES:
        raise InputError(f"it names {words[:80]}, which no data needs")
    return Name(NAMES[words])


def _make(means: str, given: tuple[Any, ...]) -> Any:
    """What calling the name would have made."""
    if means == DTYPE:
        if _text(given[0]) != "u1":
            raise InputError(f"it has an array of {_text(given[0])[:20]}, not of bytes (u1)")
        return Uint8()
    if means == RECONSTRUCT:
        return Array()
    if means == FROM_BUFFER:
        raw, _, shape, order = given
        return _array(raw, shape, _text(order))
    raise InputError(f"it calls {means} in a way that no data needs")


def _build(target: Any, state: tuple[Any, ...]) -> None:
    if isinstance(target, Array):
        _, shape, kind, by_columns, raw = state
        _expect(kind, Uint8)
        target.filled = _array(raw, shape, "F" if by_columns else "C").filled
    else:
        _expect(target, Uint8)  # a dtype's state says byte order and fields: bytes have none


def _array(raw: Any, shape: Any, order: str) -> Array:
    _expect(raw, bytes)
    sizes = [_expect(size, int) for size in _expect(shape, tuple)]
    if len(sizes) > MOST_DIMENSIONS or min(sizes, default=0) < 0 or math.prod(sizes) != len(raw):
        raise InputError(f"it has {len(raw)} bytes for an array of shape {sizes[:5]}")
    made = Array()
    made.filled = np.frombuffer(raw, np.uint8).reshape(sizes, order="F" if order == "F" else "C")
    return made


def _filled(value: Any) -> Any:
    return value.filled if isinstance(value, Array) else value


def _text(value: Any) -> str:
    text: str = value.decode("latin-1") if isinstance(value, bytes) else _expect(value, str)
    return text
