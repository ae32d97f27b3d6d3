"""Values as bytes in a checkpoint: self-describing, typed, without pickle; equal values in equal order are equal bytes.

A value is a tag and its content. Numbers up to 64 bits have one length, so that a counter that grows moves nothing
behind it from one chunk into the next.
"""

from __future__ import annotations

import datetime as dt
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from decimal import Decimal
from typing import Any

from drainmark.jobs.errors.operator_code import CheckpointUnreadable

Put = Callable[[bytes], None]
Take = Callable[[int], bytes]

_LENGTH = struct.Struct(">Q")
_INT = struct.Struct(">q")
_FLOAT = struct.Struct(">d")


def encode(value: Any, put: Put) -> None:
    """Give the bytes of a value, piece by piece, to a function.

    Takes None, bool, int, float, str, bytes, date, datetime, timedelta, Decimal, Arrow tables, and lists, tuples, sets
    and mappings of them, views of frozen ones too; of mappings keys are values of any of these kinds.

    Raises:
        TypeError: a value of another type.
    """
    if isinstance(value, Mapping):
        put(b"m" + _LENGTH.pack(len(value)))
        for key, item in value.items():
            encode(key, put)
            encode(item, put)
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray | memoryview):
        put((b"t" if isinstance(value, tuple) else b"l") + _LENGTH.pack(len(value)))
        for item in value:
            encode(item, put)
    elif isinstance(value, Set):
        put((b"z" if isinstance(value, frozenset) else b"e") + _LENGTH.pack(len(value)))
        for content in sorted(_bytes_of(item) for item in value):
            put(content)
    else:
        put(_scalar(value))


def _bytes_of(value: Any) -> bytes:
    pieces: list[bytes] = []
    encode(value, pieces.append)
    return b"".join(pieces)


def _scalar(value: Any) -> bytes:
    if value is None or isinstance(value, bool):
        return {None: b"N", True: b"T", False: b"F"}[value]
    if type(value) is int:
        if -(1 << 63) <= value < 1 << 63:
            return b"i" + _INT.pack(value)
        return _sized(b"I", value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))
    if type(value) is float:
        return b"f" + _FLOAT.pack(value)
    return _text(value)


def _text(value: Any) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        return _sized(b"b", bytes(value))
    if type(value) is str:
        return _sized(b"s", value.encode("utf-8", "surrogatepass"))
    for kind, tag, spelled in _SPELLED:
        if isinstance(value, kind):
            return _sized(tag, spelled(value).encode())
    return _sized(b"a", _arrow(value))


def _arrow(value: Any) -> bytes:
    import pyarrow as pa

    if not isinstance(value, pa.Table):
        raise TypeError(
            f"a checkpoint cannot hold a {type(value).__name__}: write numbers, texts, bytes, times, lists, mappings, "
            "sets or Arrow tables"
        )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, value.schema) as writer:
        writer.write_table(value)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _sized(tag: bytes, content: bytes) -> bytes:
    return tag + _LENGTH.pack(len(content)) + content


def decode(take: Take) -> Any:
    """Return the next value, its bytes being taken from a function that gives as many as asked for.

    Raises:
        CheckpointUnreadable: these are no bytes of a value.
    """
    tag = take(1)
    if tag in _CONSTANTS:
        return _CONSTANTS[tag]
    if tag == b"i":
        return _INT.unpack(take(8))[0]
    if tag == b"f":
        return _FLOAT.unpack(take(8))[0]
    (length,) = _LENGTH.unpack(take(8))
    if tag in _SCALARS:
        return _SCALARS[tag](take(length))
    if tag in _CONTAINERS:
        return _CONTAINERS[tag](_each(take, length))
    if tag == b"m":
        return dict(_pairs(take, length))
    raise CheckpointUnreadable(f"a checkpoint holds the tag {tag!r}", remedy="restore it, or: drainmark reset --to N")


def _each(take: Take, count: int) -> Iterator[Any]:
    return (decode(take) for _ in range(count))


def _pairs(take: Take, count: int) -> Iterator[tuple[Any, Any]]:
    for _ in range(count):
        key = decode(take)
        yield key, decode(take)


def _arrow_back(content: bytes) -> Any:
    import pyarrow as pa

    return pa.ipc.open_stream(content).read_all()


def _duration(content: bytes) -> dt.timedelta:
    days, seconds, microseconds = map(int, content.split())
    return dt.timedelta(days, seconds, microseconds)


_SPELLED: Sequence[tuple[type, bytes, Callable[[Any], str]]] = (
    (dt.datetime, b"w", lambda value: value.isoformat()),
    (dt.date, b"d", lambda value: value.isoformat()),
    (dt.timedelta, b"p", lambda value: f"{value.days} {value.seconds} {value.microseconds}"),
    (Decimal, b"D", str),
)
_CONSTANTS = {b"N": None, b"T": True, b"F": False}
_CONTAINERS: Mapping[bytes, Callable[[Iterator[Any]], Sequence[Any] | Set[Any]]] = {
    b"l": list, b"t": tuple, b"e": set, b"z": frozenset,
}  # fmt: skip
_SCALARS: Mapping[bytes, Callable[[bytes], Any]] = {
    b"I": lambda content: int.from_bytes(content, "big", signed=True),
    b"b": lambda content: content,
    b"s": lambda content: content.decode("utf-8", "surrogatepass"),
    b"w": lambda content: dt.datetime.fromisoformat(content.decode()),
    b"d": lambda content: dt.date.fromisoformat(content.decode()),
    b"p": _duration,
    b"D": lambda content: Decimal(content.decode()),
    b"a": _arrow_back,
}
